"""Tests evictions and the disruption budgets that they respect."""

from rig.until import eventually

from .connection import Answer, Body
from .there import There, promise

GUARDED = {"guarded": "yes"}


async def eviction(there: There, name: str, **options: Body) -> Answer:
    metadata = {"name": name, "namespace": there.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
    return await there.ask("POST", there.path("pods", name) + "/eviction", body)


async def budget(there: There, least: int, healthy: int) -> None:
    """Make a budget with this minimum, and wait until its controller has counted this number of healthy pods."""
    spec = {"minAvailable": least, "selector": {"matchLabels": GUARDED}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "budget"}, "spec": spec}
    await there.done("POST", there.path("poddisruptionbudgets", group="policy/v1"), body)
    await counted(there, healthy)


async def counted(there: There, healthy: int) -> None:
    async def seen() -> bool:
        found = await there.done("GET", there.path("poddisruptionbudgets", "budget", "policy/v1"))
        status = found.get("status", {})
        new = status.get("observedGeneration", 0) >= found["metadata"].get("generation", 1)
        return bool(new and status.get("currentHealthy") == healthy)

    await eventually(seen, f"{healthy} are healthy")


class TestEvictions:
    """Evictions as the scheduler's action_writer.py asks for them."""

    @promise
    async def test_a_pod_without_a_budget_is_evicted_by_its_own_uid(self, there: There) -> None:
        made = await there.running_pod("a")
        answer = await eviction(there, "a", preconditions={"uid": "00000000-0000-0000-0000-000000000000"})
        assert (answer.status, answer.reason) == (409, "Conflict")
        assert (await eviction(there, "nobody")).status == 404
        assert "deletionTimestamp" not in (await there.done("GET", there.path("pods", "a")))["metadata"]
        answer = await eviction(there, "a", preconditions={"uid": made["metadata"]["uid"]})
        assert (answer.status, answer.body["status"]) == (201, "Success")
        assert (await there.done("GET", there.path("pods", "a")))["metadata"]["deletionTimestamp"]

    @promise
    async def test_a_budget_lets_go_whom_it_can_spare_and_refuses_with_429_and_its_name(self, there: There) -> None:
        for name in ("a", "b"):
            await there.running_pod(name, labels=GUARDED)
        await budget(there, 1, 2)
        assert (await eviction(there, "b")).status == 201
        await counted(there, 1)
        answer = await eviction(there, "a")
        assert (answer.status, answer.reason) == (429, "TooManyRequests")
        assert "disruption budget" in answer.message
        [cause] = answer.body["details"]["causes"]
        assert cause["reason"] == "DisruptionBudget"
        assert "needs 1 healthy pods and has 1 currently" in cause["message"]
        found = await there.done("GET", there.path("pods", "a"))
        assert "deletionTimestamp" not in found["metadata"]

    @promise
    async def test_a_pod_that_has_not_started_is_evicted_whatever_its_budget(self, there: There) -> None:
        await there.running_pod("a", labels=GUARDED)
        await there.pod("b", labels=GUARDED)
        await budget(there, 1, 1)
        assert (await eviction(there, "b")).status == 201
        assert (await there.ask("GET", there.path("pods", "b"))).status == 404
