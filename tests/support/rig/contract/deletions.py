"""How objects end."""

from __future__ import annotations

from .there import There, promise


class TestDeletions:
    """Of pods and ConfigMaps."""

    @promise
    async def test_a_pod_that_is_on_no_node_goes_at_once(self, there: There) -> None:
        await there.pod("a")
        await there.done("DELETE", there.path("pods", "a"))
        assert (await there.ask("GET", there.path("pods", "a"))).status == 404

    @promise
    async def test_a_pod_on_a_node_stays_until_its_kubelet_has_ended_it(self, there: There) -> None:
        await there.running_pod("a")
        await there.done("DELETE", there.path("pods", "a"))
        found = await there.done("GET", there.path("pods", "a"))
        assert found["metadata"]["deletionTimestamp"] > found["metadata"]["creationTimestamp"]
        assert found["metadata"]["deletionGracePeriodSeconds"] == 30
        answer = await there.bind("a")
        assert answer.status == 409
        await there.done("DELETE", there.path("pods", "a"), {"gracePeriodSeconds": 0})
        assert (await there.ask("GET", there.path("pods", "a"))).status == 404

    @promise
    async def test_a_deletion_that_names_another_uid_is_refused(self, there: There) -> None:
        await there.pod("a")
        options = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
        answer = await there.ask("DELETE", there.path("pods", "a"), options)
        assert (answer.status, answer.reason) == (409, "Conflict")
        assert (await there.ask("GET", there.path("pods", "a"))).status == 200

    @promise
    async def test_a_pod_that_comes_again_has_another_uid(self, there: There) -> None:
        first = await there.pod("a")
        await there.done("DELETE", there.path("pods", "a"))
        assert (await there.pod("a"))["metadata"]["uid"] != first["metadata"]["uid"]

    @promise
    async def test_who_watches_sees_a_pod_end_in_two_steps(self, there: There) -> None:
        await there.running_pod("a")
        version = await there.version("pods")
        async with there.client.watch(there.path("pods"), resourceVersion=version) as lines:
            await there.done("DELETE", there.path("pods", "a"))
            line = await anext(lines)
            assert line["type"] == "MODIFIED"
            assert line["object"]["metadata"]["deletionTimestamp"]
            await there.done("DELETE", there.path("pods", "a"), {"gracePeriodSeconds": 0})
            while line["type"] == "MODIFIED":  # its grace is shorter now, or its kubelet says something of it
                assert line["object"]["metadata"]["deletionTimestamp"]
                line = await anext(lines)
            assert line["type"] == "DELETED"
