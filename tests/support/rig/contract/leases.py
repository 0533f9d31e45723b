"""Tests leases: of two writers that want one, only one can get it."""

from .connection import Body
from .there import There, promise

GROUP = "coordination.k8s.io/v1"
WRITTEN = "2026-01-02T03:04:05.678901Z"


def lease(holder: str) -> Body:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": WRITTEN, "leaseTransitions": 0}
    return {"apiVersion": GROUP, "kind": "Lease", "metadata": {"name": "leader"}, "spec": spec}


class TestLeases:
    """Leases as kube/lease.py reads and writes them."""

    @promise
    async def test_of_two_that_write_a_lease_the_second_is_refused_and_one_of_no_version(self, there: There) -> None:
        read = await there.done("POST", there.path("leases", group=GROUP), lease("one"))
        assert read["spec"] == lease("one")["spec"]
        again = await there.ask("POST", there.path("leases", group=GROUP), lease("two"))
        assert (again.status, again.reason) == (409, "AlreadyExists")
        path = there.path("leases", "leader", GROUP)
        without = await there.ask("PUT", path, lease("two"))
        assert (without.status, without.reason) == (422, "Invalid")
        first = await there.ask("PUT", path, {**read, "spec": lease("two")["spec"]})
        second = await there.ask("PUT", path, {**read, "spec": lease("three")["spec"]})
        assert first.status == 200
        assert first.body["metadata"]["resourceVersion"] != read["metadata"]["resourceVersion"]
        assert (second.status, second.reason) == (409, "Conflict")
        assert "the object has been modified" in second.message
        assert (await there.done("GET", path))["spec"]["holderIdentity"] == "two"
