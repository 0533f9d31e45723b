"""What patches and replacements do, and when they are refused."""

from __future__ import annotations

from .there import There, promise


class TestPatches:
    """Merge patches. Strategic merge patches are in gates.py, which alone needs them."""

    @promise
    async def test_a_merge_patch_changes_what_it_names_and_null_takes_away(self, there: There) -> None:
        await there.pod("a", annotations={"one": "1", "two": "2"})
        answer = await there.merge(there.path("pods", "a"), {"metadata": {"annotations": {"two": None, "three": "3"}}})
        assert answer.status == 200
        assert answer.body["metadata"]["annotations"] == {"one": "1", "three": "3"}

    @promise
    async def test_a_patch_that_names_another_uid_is_refused_and_changes_nothing(self, there: There) -> None:
        await there.pod("a")
        other = "00000000-0000-0000-0000-000000000000"
        answer = await there.merge(there.path("pods", "a"), {"metadata": {"uid": other, "annotations": {"x": "y"}}})
        assert (answer.status, answer.reason) == (422, "Invalid"), answer
        found = await there.done("GET", there.path("pods", "a"))
        assert "x" not in found["metadata"].get("annotations", {})

    @promise
    async def test_a_patch_that_names_its_uid_is_done(self, there: There) -> None:
        made = await there.pod("a")
        patch = {"metadata": {"uid": made["metadata"]["uid"], "annotations": {"x": "y"}}}
        assert (await there.merge(there.path("pods", "a"), patch)).status == 200

    @promise
    async def test_a_patch_of_what_is_not_there_is_refused(self, there: There) -> None:
        answer = await there.merge(there.path("pods", "nobody"), {"metadata": {"annotations": {"x": "y"}}})
        assert (answer.status, answer.reason) == (404, "NotFound")

    @promise
    async def test_a_patch_that_changes_nothing_leaves_the_version(self, there: There) -> None:
        made = await there.pod("a", annotations={"x": "y"})
        answer = await there.merge(there.path("pods", "a"), {"metadata": {"annotations": {"x": "y", "z": None}}})
        assert answer.status == 200
        assert answer.body["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

    @promise
    async def test_a_patch_of_a_version_that_has_passed_is_refused(self, there: There) -> None:
        made = await there.config_map("a", {})
        await there.merge(there.path("configmaps", "a"), {"data": {"x": "1"}})
        stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"x": "2"}}
        answer = await there.merge(there.path("configmaps", "a"), stale)
        assert (answer.status, answer.reason) == (409, "Conflict")

    @promise
    async def test_a_write_notes_which_fields_its_manager_has_changed(self, there: There) -> None:
        await there.config_map("a", {"x": "1", "y": "1"})
        answer = await there.merge(there.path("configmaps", "a"), {"data": {"x": "2"}}, fieldManager="hand")
        entries = answer.body["metadata"]["managedFields"]
        data = {entry["manager"]: entry["fieldsV1"].get("f:data", {}).keys() - {"."} for entry in entries}
        assert data == {"contract": {"f:y"}, "hand": {"f:x"}}
        assert {entry["operation"] for entry in entries} == {"Update"}

    @promise
    async def test_a_patch_of_an_unknown_kind_is_refused(self, there: There) -> None:
        await there.config_map("a", {})
        answer = await there.ask("PATCH", there.path("configmaps", "a"), {"data": {}}, media="application/json")
        assert answer.status == 415

    @promise
    async def test_the_status_is_written_through_its_own_path_alone(self, there: There) -> None:
        await there.pod("a")
        path = there.path("pods", "a")
        answer = await there.merge(path, {"status": {"phase": "Running"}, "metadata": {"annotations": {"x": "y"}}})
        assert (answer.status, answer.body["status"]["phase"]) == (200, "Pending")
        answer = await there.merge(f"{path}/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "n"}})
        assert (answer.status, answer.body["status"]["phase"]) == (200, "Running")
        assert not answer.body["spec"].get("nodeName")
        assert answer.body["metadata"]["annotations"] == {"x": "y"}
