"""Tests what a watch says, and how it ends."""

import time

import pytest

from .there import NODE, There, promise


class TestWatches:
    """Watches of pods, ConfigMaps and Events."""

    @promise
    async def test_a_watch_of_a_name_tells_what_happens_to_it_after_its_version(self, there: There) -> None:
        await there.config_map("before", {})
        version = await there.version("configmaps")
        made = await there.config_map("a", {"key": "1"})
        await there.config_map("others", {})
        only = {"fieldSelector": "metadata.name=a", "resourceVersion": version}
        async with there.client.watch(there.path("configmaps"), **only) as lines:
            line = await anext(lines)
            assert (line["type"], line["object"]["metadata"]["uid"]) == ("ADDED", made["metadata"]["uid"])
            assert (line["object"]["kind"], line["object"]["apiVersion"]) == ("ConfigMap", "v1")
            await there.merge(there.path("configmaps", "a"), {"data": {"key": "2"}})
            changed = await anext(lines)
            assert (changed["type"], changed["object"]["data"]) == ("MODIFIED", {"key": "2"})
            await there.done("DELETE", there.path("configmaps", "a"))
            gone = await anext(lines)
            assert gone["type"] == "DELETED"
            versions = [int(one["object"]["metadata"]["resourceVersion"]) for one in (line, changed, gone)]
            assert versions == sorted(set(versions))

    @promise
    async def test_who_begins_to_match_is_added_and_who_ceases_is_deleted(self, there: There) -> None:
        await there.pod("a")
        version = await there.version("pods")
        here = {"fieldSelector": f"spec.nodeName={NODE}", "resourceVersion": version}
        live = {"fieldSelector": "status.phase!=Succeeded", "resourceVersion": version}
        async with (
            there.client.watch(there.path("pods"), **here) as of_node,
            there.client.watch(there.path("pods"), **live) as of_live,
        ):
            await there.bind("a")
            assert (await anext(of_node))["type"] == "ADDED"
            assert (await anext(of_live))["type"] == "MODIFIED"
            answer = await there.merge(there.path("pods", "a") + "/status", {"status": {"phase": "Succeeded"}})
            assert (await anext(of_node))["type"] == "MODIFIED"
            last = await anext(of_live)
            assert last["type"] == "DELETED"
            assert last["object"]["metadata"]["uid"] == answer.body["metadata"]["uid"]
            assert last["object"]["metadata"]["resourceVersion"] == answer.body["metadata"]["resourceVersion"]

    @promise
    async def test_a_watch_that_takes_bookmarks_gets_one_before_it_ends_well(self, there: There) -> None:
        version = await there.version("pods")
        began_s = time.monotonic()
        asked = {"resourceVersion": version, "timeoutSeconds": "5", "allowWatchBookmarks": "true"}
        async with there.client.watch(there.path("pods"), **asked) as lines:
            await there.pod("a")
            said = [line async for line in lines]
        assert 3 <= time.monotonic() - began_s <= 10
        marks = [line["object"] for line in said if line["type"] == "BOOKMARK"]
        assert {line["type"] for line in said} == {"ADDED", "BOOKMARK"}
        assert marks[-1]["kind"] == "Pod"
        assert int(marks[-1]["metadata"]["resourceVersion"]) > int(version)
        assert said[-1]["type"] == "BOOKMARK"

    @promise
    async def test_a_watch_from_a_version_that_is_compacted_is_told_that_it_is_gone(self, there: There) -> None:
        if there.connection.compact is None:
            pytest.skip("this API server's history cannot be compacted from here")
        version = await there.version("events")
        for name in ("a", "b", "c"):  # one is too few: a watch can still start right before the kept history
            await there.config_map(name, {})
        await there.connection.compact()
        # Events are watched in the store itself, so no cache remembers more than the store.
        async with there.client.watch(there.path("events"), resourceVersion=version) as lines:
            line = await anext(lines)
        assert line["type"] == "ERROR"
        assert (line["object"]["code"], line["object"]["reason"]) in ((410, "Expired"), (410, "Gone"))
        assert await there.version("events")  # a list still works
