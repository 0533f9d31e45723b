"""Tests scheduling gates and the fields that may be tightened behind them (Kubernetes 1.27, KEP-3521, KEP-3838)."""

from typing import Any

from .connection import STRATEGIC, Answer, Body
from .there import There, promise

GATE = "sharepod.io/gate"


async def gated(there: There, spec: Body | None = None, *more: str) -> Body:
    gates = [{"name": name} for name in (GATE, *more)]
    return await there.pod("a", {"schedulingGates": gates, **(spec or {})})


async def patch(there: There, spec: Body, **metadata: Any) -> Answer:
    body = {"metadata": metadata, "spec": spec}
    return await there.ask("PATCH", there.path("pods", "a"), body, media=STRATEGIC)


class TestGates:
    """The promises that the gate controller relies on."""

    @promise
    async def test_a_gated_pod_says_so_and_is_released_by_one_patch_and_once_more_does_no_harm(
        self, there: There
    ) -> None:
        made = await gated(there, {"nodeSelector": {"a": "b"}}, "other/gate")
        assert [gate["name"] for gate in made["spec"]["schedulingGates"]] == [GATE, "other/gate"]
        [condition] = [one for one in made["status"]["conditions"] if one["type"] == "PodScheduled"]
        assert (condition["status"], condition["reason"]) == ("False", "SchedulingGated")
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": "n1"}, "schedulingGates": [{"$patch": "delete", "name": GATE}],
        }  # fmt: skip
        for _ in range(2):
            answer = await patch(there, spec, uid=made["metadata"]["uid"], annotations={"sharepod.io/node": "n1"})
            assert answer.status == 200, answer
            assert answer.body["spec"]["schedulingGates"] == [{"name": "other/gate"}]
            assert answer.body["spec"]["nodeSelector"] == {"a": "b", "kubernetes.io/hostname": "n1"}
            assert answer.body["metadata"]["annotations"]["sharepod.io/node"] == "n1"

    @promise
    async def test_a_gate_is_never_added(self, there: There) -> None:
        await gated(there)
        answer = await patch(there, {"schedulingGates": [{"name": "late/gate"}]})
        assert (answer.status, answer.reason) == (422, "Invalid")
        assert "only deletion is allowed" in answer.message
        answer = await there.merge(there.path("pods", "a"), {"spec": {"schedulingGates": None}})
        assert answer.status == 200
        answer = await patch(there, {"schedulingGates": [{"name": GATE}]})
        assert answer.status == 422

    @promise
    async def test_a_node_selector_is_only_added_to_and_only_behind_a_gate(self, there: There) -> None:
        await gated(there, {"nodeSelector": {"a": "b"}})
        path = there.path("pods", "a")
        for selector in ({"a": "c"}, {"a": None}):
            answer = await there.merge(path, {"spec": {"nodeSelector": selector}})
            assert answer.status == 422
            assert "only additions to spec.nodeSelector are allowed" in answer.message
        assert (await there.merge(path, {"spec": {"nodeSelector": {"c": "d"}}})).status == 200
        together = {"nodeSelector": {"e": "f"}, "schedulingGates": None}
        assert (await there.merge(path, {"spec": together})).status == 200, "with the last gate in one write"
        assert (await there.merge(path, {"spec": {"nodeSelector": {"g": "h"}}})).status == 422
