"""Allocations: the units given to one container, and the container that holds them.

Pure values; docs/device-plugin.md has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sharepod.deviceplugin.core.unit import UnitId
    from sharepod.kube.pod import Pod

AllocationId = NewType("AllocationId", str)
"""Ten letters of the agent's alphabet. The allocation's share gets the same id."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The container that holds an allocation."""

    namespace: str
    pod: str
    container: str
    pod_uid: str
    cgroup_uid: str
    """The uid in the names of the pod's cgroups. It differs from `pod_uid` for static pods."""

    @property
    def title(self) -> str:
        """Return `namespace/pod/container`."""
        return f"{self.namespace}/{self.pod}/{self.container}"


def labels_of(binding: Binding, pod: Pod) -> dict[str, str]:
    """Return the labels by which the agent shows what a container's share is for. `owner` is the pod's workload."""
    labels = {
        "namespace": binding.namespace, "pod": binding.pod, "container": binding.container, "pod_uid": binding.pod_uid,
    }  # fmt: skip
    return labels | ({"owner": pod.owner} if pod.owner else {})


@dataclass(frozen=True, slots=True)
class Allocation:
    """Units that belong to one container, from its admission until it is gone."""

    id: AllocationId
    units: frozenset[UnitId]
    issued_unix_ns: int
    binding: Binding | None = None
    """None: unbound, no container has begun to start with it."""
    devices: tuple[str, ...] = field(default=())
    """UUIDs of the devices at the last registration; empty before the first."""


class Allocations:
    """All allocations of the node, oldest first.

    Invariants: ids are unique. Of the allocations with the same units, at most one is unbound, and each pod has at most
    one.
    """

    def __init__(self, allocations: Iterable[Allocation] = ()) -> None:
        self._allocations = {item.id: item for item in allocations}

    def all(self) -> tuple[Allocation, ...]:
        """Return all of them, oldest first."""
        return tuple(self._allocations.values())

    def get(self, allocation_id: str) -> Allocation | None:
        """Return an allocation as it is now; None: there is none with this id."""
        return self._allocations.get(AllocationId(allocation_id))

    def issue(self, units: frozenset[UnitId], fresh_id: AllocationId, unix_ns: int) -> Allocation:
        """Return the allocation for a container that is being admitted: a new one with `fresh_id`, issued at `unix_ns`.

        If there is an unbound allocation of the same units, it is returned instead: init containers and the containers
        after them are admitted together, with the same units. A bound one belongs to a container that may still live.
        """
        for item in self._allocations.values():
            if item.units == units and item.binding is None:
                return item
        issued = Allocation(fresh_id, units, unix_ns)
        self._allocations[issued.id] = issued
        return issued

    def claim(self, units: frozenset[UnitId], binding: Binding) -> Allocation | None:
        """Bind an allocation to the container about to start, and return it; None: these units were never given out.

        If the pod has an allocation of these units, it is taken: the container restarts, or comes after an init
        container. Else the newest unbound one is. A pod is known by its cgroup uid, because a static pod's uid changes.
        """
        same = [item for item in self._allocations.values() if item.units == units]
        own = [item for item in same if item.binding is not None and item.binding.cgroup_uid == binding.cgroup_uid]
        found = own or [item for item in same if item.binding is None]
        if not found:
            return None
        return self.put(replace(found[-1], binding=binding))

    def superseded(self, claimed: Allocation) -> tuple[Allocation, ...]:
        """Return the pod's other allocations that have some of the same units. Their containers are done.

        Kubelet gives the units of an init container to the pod's next container when the init container is done. The
        caller releases the shares of these allocations. The allocations stay: later containers may get their units,
        and init containers may run again.
        """
        if claimed.binding is None:
            return ()
        return tuple(
            item
            for item in self._allocations.values()
            if item.id != claimed.id
            and item.units & claimed.units
            and item.binding is not None
            and item.binding.cgroup_uid == claimed.binding.cgroup_uid
        )

    def put(self, allocation: Allocation) -> Allocation:
        """Store an allocation, in place of one with the same id, and return it."""
        self._allocations[allocation.id] = allocation
        return allocation

    def drop(self, allocation_id: AllocationId) -> None:
        """Forget an allocation. One that is not there is no error."""
        self._allocations.pop(allocation_id, None)
