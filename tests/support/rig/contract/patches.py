"""Tests what patches do, and when they are refused."""

from .there import There, promise


class TestPatches:
    """Merge patches. Strategic merge patches are in gates.py, as only gates need them."""

    @promise
    async def test_a_merge_patch_changes_what_it_names_and_null_takes_away(self, there: There) -> None:
        made = await there.pod("a", annotations={"one": "1", "two": "2"})
        metadata = {"uid": made["metadata"]["uid"], "annotations": {"two": None, "three": "3"}}
        answer = await there.merge(there.path("pods", "a"), {"metadata": metadata})
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
    async def test_a_patch_of_what_is_not_there_is_refused(self, there: There) -> None:
        for plural in ("pods", "events"):
            answer = await there.merge(there.path(plural, "nobody"), {"metadata": {"annotations": {"x": "y"}}})
            assert (answer.status, answer.reason) == (404, "NotFound")
