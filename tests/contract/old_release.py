"""What releases before 1.22 do in place of gates and of policy/v1: our code tells them by this."""

from __future__ import annotations

from .evictions import eviction
from .there import There, promise


class TestOldRelease:
    """Kubernetes 1.20."""

    @promise
    async def test_gates_are_dropped_as_any_unknown_field(self, there: There) -> None:
        made = await there.pod("a", {"schedulingGates": [{"name": "sharepod.io/gate"}]})
        assert "schedulingGates" not in made["spec"]

    @promise
    async def test_an_eviction_of_policy_v1_is_a_bad_request(self, there: There) -> None:
        await there.running_pod("a")
        answer = await eviction(there, "a", "policy/v1")
        assert answer.status == 400
        assert (await there.ask("GET", there.path("pods", "a"))).status == 200
