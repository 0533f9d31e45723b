"""Computes what a cluster's nodes would take if they were empty. This tells which job can never fit.

It also finds the nodes to reserve for a job: those on which the least running work has to end for it. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from sharepod.scheduler.controller.job_order import Total
from sharepod.scheduler.placement.native import Snapshot
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.placement.constraints import Constraints
    from sharepod.scheduler.placement.request import PodRequest
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod

_KNOWN_MAX: Final = 65_536


def capacity_of(cluster: Cluster, state: ControllerState) -> Capacity:
    """Return what the nodes would take. It is kept in `state`, and computed anew only when the nodes have changed."""
    known, version = state.capacity, (cluster.node_index, cluster.node_index.generation, cluster.nodes_version)
    if known is None or known[0] != version:
        known = state.capacity = version, Capacity(cluster)
    return known[1]


class Capacity:
    """What the nodes of a cluster would take without pods; `capacity_of` replaces it when the nodes change."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._specs = cluster.node_index.specs()
        specs = self._specs.values()
        self.total = Total(
            sum(spec.devices for spec in specs) * DEVICE_MILLI,
            sum(spec.devices * spec.device_mib for spec in specs),
            sum(spec.cpu_milli for spec in specs),
            sum(spec.memory_mib for spec in specs),
        )
        devices = sum(spec.devices for spec in specs)
        self.device_mib = self.total.device_mib // devices if devices else 0
        """The memory of a device, on average."""
        self.silent = sum(cluster.use(name) is None for name in cluster.names())
        """Nodes that offer devices but have no agent that reports: what they would take is not counted."""
        self._snapshot: Snapshot | None = None
        self._can_hold: dict[object, int] = {}
        """By request and constraints: how many such pods the empty nodes would take."""

    def can_hold(self, pods: Sequence[Pod]) -> bool:
        """Tell whether pods would fit together on the empty nodes; False: they never fit.

        Pods that ask for different things are looked at kind by kind, as if the others were not there. So True may be
        wrong for these.
        """
        counts = Counter((pod.request, pod.constraints) for pod in pods)
        return all(self.holds(request, constraints, count) for (request, constraints), count in counts.items())

    def emptiest(self, pods: Sequence[Pod], names: Sequence[str]) -> tuple[str, ...]:
        """Return those of the nodes `names` on which the least work has to end so that all of these pods fit there.

        They are the nodes with the least device time in use for each pod that fits on them once they are empty. Empty:
        even all of `names` do not suffice. Each pod counts like the largest of them.
        """
        request = max(pods, key=lambda pod: pod.request.milli).request
        copies = dict(zip(self._specs, self._copies(request).tolist(), strict=True))
        costs = []  # for each node: the device time that has to end, divided by the pods that then fit
        for name in names:
            row = self._cluster.row(name)
            if row is not None and copies.get(name):
                busy = sum(DEVICE_MILLI - max(0, milli) for milli in row.free_milli)
                costs.append((busy / copies[name], name))
        chosen: list[str] = []
        room = 0
        for _, name in sorted(costs):
            if room >= len(pods):
                break
            chosen.append(name)
            room += copies[name]
        return tuple(chosen) if room >= len(pods) else ()

    def part(self, names: Collection[str]) -> float:
        """Return the part of all devices, 0 to 1, that is on these nodes."""
        devices = sum(spec.devices for name in names if (spec := self._specs.get(name)))
        return devices * DEVICE_MILLI / max(1, self.total.device_milli)

    def holds(self, request: PodRequest, constraints: Constraints, count: int) -> bool:
        """Tell whether `count` pods with this request would fit together on the empty nodes that suit `constraints`."""
        key = request, constraints
        if len(self._can_hold) >= _KNOWN_MAX:
            self._can_hold.clear()
        if key not in self._can_hold:
            nodes = map(self._cluster.node, self._specs)
            suited = [node is not None and node.suits(constraints) for node in nodes]
            self._can_hold[key] = int(self._copies(request)[suited].sum(dtype=np.int64))
        return self._can_hold[key] >= count

    def _copies(self, request: PodRequest) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return how many pods with this request each node would take if empty, in the order of the nodes' names."""
        if self._snapshot is None:
            self._snapshot = Snapshot(tuple(self._specs.values()))
        return self._snapshot.copies_array(request, range(len(self._specs)))
