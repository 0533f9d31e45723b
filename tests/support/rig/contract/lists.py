"""Tests what the list of a kind holds, at which version, and how it continues."""

import pytest

from .there import NODE, There, promise

CLUSTERS_OWN = ("kube-root-ca.crt", "openshift-service-ca.crt")
"""Config maps that controllers put into every namespace."""


class TestLists:
    """Lists and single objects."""

    @promise
    async def test_a_list_has_a_version_its_items_no_kind_and_at_version_0_it_comes_in_one_piece(
        self, there: There
    ) -> None:
        made = await there.pod("a")
        listed = await there.done("GET", there.path("pods"))
        assert listed["kind"] == "PodList"
        assert int(listed["metadata"]["resourceVersion"]) >= int(made["metadata"]["resourceVersion"])
        [item] = listed["items"]
        assert item["metadata"]["uid"] == made["metadata"]["uid"]
        assert "kind" not in item
        for name in ("b", "c"):
            await there.pod(name)
        version = await there.version("pods")
        answer = await there.ask("GET", there.path("pods"), resourceVersion=version)
        for _ in range(5):  # a busy server's cache may need longer to catch up than one request waits
            if answer.status == 504:
                answer = await there.ask("GET", there.path("pods"), resourceVersion=version)
        assert len(answer.body["items"]) == 3
        listed = await there.done("GET", there.path("pods"), resourceVersion="0", limit="1")
        assert len(listed["items"]) == 3
        assert not listed["metadata"].get("continue")

    @promise
    async def test_the_pages_of_a_list_are_of_one_version_whatever_happens_between(self, there: There) -> None:
        for name in ("a", "b", "c", "d", "e"):
            await there.config_map(f"map-{name}", {})
        only = {"fieldSelector": ",".join(f"metadata.name!={name}" for name in CLUSTERS_OWN), "limit": "2"}
        first = await there.done("GET", there.path("configmaps"), **only)
        await there.config_map("map-bb", {})
        await there.done("DELETE", there.path("configmaps", "map-e"))
        pages, version = [first], first["metadata"]["resourceVersion"]
        while token := pages[-1]["metadata"].get("continue"):
            pages.append(await there.done("GET", there.path("configmaps"), **only, **{"continue": token}))
        assert {page["metadata"]["resourceVersion"] for page in pages} == {version}
        names = [item["metadata"]["name"] for page in pages for item in page["items"]]
        assert names == ["map-a", "map-b", "map-c", "map-d", "map-e"]

    @promise
    async def test_a_page_of_a_version_that_is_compacted_is_of_that_version_or_gone(self, there: There) -> None:
        if there.connection.compact is None:
            pytest.skip("this API server's history cannot be compacted from here")
        for name in ("a", "b", "c"):
            await there.config_map(f"map-{name}", {})
        first = await there.done("GET", there.path("configmaps"), limit="1")
        await there.config_map("later", {})
        await there.connection.compact()
        token = first["metadata"]["continue"]
        answer = await there.ask("GET", there.path("configmaps"), **{"continue": token})
        if answer.status == 200:  # since 1.34, while the API server has a snapshot of its own
            assert answer.body["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
            assert "later" not in [item["metadata"]["name"] for item in answer.body["items"]]
        else:
            assert (answer.status, answer.reason) == (410, "Expired")

    @promise
    async def test_a_version_that_is_not_there_yet_is_a_timeout(self, there: There) -> None:
        ahead = str(int(await there.version("pods")) + 1_000_000)
        answer = await there.ask("GET", there.path("pods"), resourceVersion=ahead)
        assert (answer.status, answer.reason) == (504, "Timeout")
        assert "Too large resource version" in answer.message

    @promise
    async def test_fields_select_pods(self, there: There) -> None:
        for name in ("a", "b", "c"):
            await there.pod(name)
        await there.bind("a")
        await there.merge(there.path("pods", "b") + "/status", {"status": {"phase": "Succeeded"}})

        async def named(selector: str) -> list[str]:
            listed = await there.done("GET", there.path("pods"), fieldSelector=selector)
            return [item["metadata"]["name"] for item in listed["items"]]

        assert await named(f"spec.nodeName={NODE}") == ["a"]
        assert await named("spec.nodeName=") == ["b", "c"]
        assert await named("status.phase!=Succeeded,status.phase!=Failed") == ["a", "c"]
        assert await named("spec.nodeName=,metadata.name!=c") == ["b"]
        answer = await there.ask("GET", there.path("pods"), fieldSelector="spec.hostname=a")
        assert answer.status == 400

    @promise
    async def test_what_is_not_there_is_named(self, there: There) -> None:
        answer = await there.ask("GET", there.path("pods", "nobody"))
        assert (answer.status, answer.reason) == (404, "NotFound")
        assert answer.body["details"]["kind"] == "pods"
        assert answer.body["details"]["name"] == "nobody"
