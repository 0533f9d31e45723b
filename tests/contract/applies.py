"""Server-side apply: who owns a field, and what happens where two want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .connection import APPLY, Answer, Body
from .there import There, promise

if TYPE_CHECKING:
    from collections.abc import Mapping


async def apply(there: There, data: Mapping[str, str], manager: str, **parameters: str) -> Answer:
    body: Body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": dict(data)}
    path = there.path("configmaps", "a")
    return await there.ask(
        "PATCH", path, body, media=APPLY, **({"fieldManager": manager} if manager else {}), **parameters
    )


def owners(body: Body) -> dict[tuple[str, str], Body]:
    entries = body["metadata"].get("managedFields", [])
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"].get("f:data", {}) for entry in entries}


class TestApplies:
    """Of ConfigMaps, whose fields are anyone's."""

    @promise
    async def test_what_is_not_there_is_made_and_owned(self, there: There) -> None:
        answer = await apply(there, {"x": "1"}, "one")
        assert answer.status == 201
        assert answer.body["data"] == {"x": "1"}
        assert owners(answer.body)["one", "Apply"].keys() - {"."} == {"f:x"}

    @promise
    async def test_a_field_that_another_owns_is_a_conflict_that_names_both(self, there: There) -> None:
        await apply(there, {"x": "1", "y": "1"}, "one")
        answer = await apply(there, {"x": "2", "y": "1"}, "two")
        assert (answer.status, answer.reason) == (409, "Conflict")
        [cause] = answer.body["details"]["causes"]
        assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.x")
        assert '"one"' in cause["message"]
        assert (await there.done("GET", there.path("configmaps", "a")))["data"] == {"x": "1", "y": "1"}

    @promise
    async def test_what_two_want_alike_both_own(self, there: There) -> None:
        await apply(there, {"x": "1"}, "one")
        answer = await apply(there, {"x": "1", "y": "2"}, "two")
        assert answer.status == 200
        found = owners(answer.body)
        assert "f:x" in found["one", "Apply"]
        assert "f:x" in found["two", "Apply"]
        answer = await apply(there, {}, "one")
        assert answer.body["data"] == {"x": "1", "y": "2"}, "the other still owns it"

    @promise
    async def test_who_forces_takes_a_field_over(self, there: There) -> None:
        await apply(there, {"x": "1", "y": "1"}, "one")
        answer = await apply(there, {"x": "2"}, "two", force="true")
        assert (answer.status, answer.body["data"]) == (200, {"x": "2", "y": "1"})
        found = owners(answer.body)
        assert "f:x" in found["two", "Apply"]
        assert "f:x" not in found["one", "Apply"]

    @promise
    async def test_what_is_applied_no_more_goes(self, there: There) -> None:
        await apply(there, {"x": "1", "y": "1"}, "one")
        answer = await apply(there, {"y": "1"}, "one")
        assert answer.body["data"] == {"y": "1"}

    @promise
    async def test_an_ordinary_write_takes_its_fields_and_is_a_conflict_to_who_applies(self, there: There) -> None:
        await apply(there, {"x": "1", "y": "1"}, "one")
        answer = await there.merge(there.path("configmaps", "a"), {"data": {"x": "9"}}, fieldManager="hand")
        found = owners(answer.body)
        assert "f:x" in found["hand", "Update"]
        assert "f:x" not in found["one", "Apply"]
        answer = await apply(there, {"x": "1", "y": "1"}, "one")
        assert answer.status == 409
        assert '"hand"' in answer.message

    @promise
    async def test_whoever_applies_has_a_name(self, there: There) -> None:
        answer = await apply(there, {"x": "1"}, "")
        assert answer.status in (400, 422)
        assert "fieldManager" in answer.message
