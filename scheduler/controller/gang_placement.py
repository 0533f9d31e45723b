"""Finds places for pods that start together, on the view of the cluster: for all of them or for none.

A place that is found is assumed on the view (state/cluster.py) at once: the pod counts there, so that the next job does
not get the same room. Members go to as few nodes as can take them, within the smallest domain (rack, switch, zone) that
has room for all. Within a cycle room only shrinks, unless others yield. So when pods do not fit, later pods that ask
for the same are not tried. An area is a set of nodes, given by their indices in the snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from sharepod.scheduler.placement.native import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from sharepod.scheduler.placement.constraints import Constraints
    from sharepod.scheduler.state.cluster import Assumed, Cluster
    from sharepod.scheduler.state.pod import Pod

    Indices = NDArray[np.int32]

DOMAINS_TRIED: Final = 4
"""Domains that are tried on each level: those that the pods would fill most."""


class Placer:
    """Finds places in one cycle."""

    def __init__(self, cluster: Cluster, now_s: float, avoided: Iterable[tuple[str, str]] = ()) -> None:
        """Look at the cluster as of `now_s`; all nodes are open.

        `avoided`: pairs of a controller's uid and a node to which none of its pods is sent.
        """
        cluster.advance(now_s)
        self._cluster, self._now_s = cluster, now_s
        self.closed: frozenset[str] = frozenset()
        """Nodes on which no places are looked for."""
        self._open: Indices = cluster.node_index.indices()
        self._suits: dict[Constraints, NDArray[np.bool_]] = {}
        """By a pod's constraints: whether such pods may be bound to a node, by the node's index."""
        self._avoided: defaultdict[str, list[str]] = defaultdict(list)
        for controller, node in avoided:
            self._avoided[controller].append(node)
        self._unfit: set[object] = set()
        """What did not fit: a class of pods, and how many of them."""
        self.generation = 0
        """Grows whenever there may be more room than before."""
        self._levels: list[dict[str, Indices]] | None = None
        """What `_domains` returns; None: it has to be computed for the nodes that are open now."""

    def close(self, names: Collection[str]) -> None:
        """Look for places on all nodes but these from now on. Nodes that were closed before are open again."""
        self.closed = frozenset(names)
        closed = np.array(self._cluster.node_index.find(sorted(names))[1], dtype=np.int32)
        self._open = np.setdiff1d(self._cluster.node_index.indices(), closed)
        self._levels = None
        self.forget_failures()

    def open_names(self, pod: Pod, more: Collection[str] = ()) -> list[str]:
        """Return the names of the nodes to which a pod may be bound, among the open ones and those in `more`."""
        node_index = self._cluster.node_index
        area = (
            np.union1d(self._open, np.array(node_index.find(sorted(more))[1], dtype=np.int32)) if more else self._open
        )
        return [node_index.name(index) for index in self._bindable(pod, area).tolist()]

    def _bindable(self, pod: Pod, area: Indices) -> Indices:
        """Return the nodes of an area to which a pod may be bound.

        The pod avoids nodes to which kube-scheduler has lately not bound another pod of its controller. These are left
        out, unless no other node would remain.
        """
        by_index = self._suits.get(pod.constraints)
        if by_index is None:
            node_index = self._cluster.node_index
            all_nodes = node_index.indices()
            by_index = np.zeros(1 + int(all_nodes.max(initial=0)), dtype=np.bool_)
            for index in all_nodes.tolist():
                node = self._cluster.node(node_index.name(index))
                by_index[index] = node is not None and node.suits(pod.constraints)
            self._suits[pod.constraints] = by_index
        found = area[by_index[area]]
        if not self.avoids(pod):
            return found
        avoided = self._cluster.node_index.find(sorted(self._avoided[pod.controller]))[1]
        others = np.setdiff1d(found, np.array(avoided, dtype=np.int32))
        return others if others.size else found  # it avoids all: perhaps kube-scheduler was down, not the nodes

    def avoids(self, pod: Pod) -> bool:
        """Tell whether there are nodes that a pod avoids (`_bindable`)."""
        return pod.controller in self._avoided

    def forget_failures(self) -> None:
        """Try again from now on what did not fit: pods yield or other nodes are open, so there may be more room."""
        self._unfit.clear()
        self.generation += 1

    def place(self, pods: Sequence[Pod], within: Sequence[str] = ()) -> list[Assumed] | None:
        """Assume all of these pods somewhere and return where; None: they do not fit together, and nothing is assumed.

        They go to open nodes; with `within` only to these nodes (names), open or closed. If not even one pod of their
        class has fitted on open nodes since `forget_failures`, or not as many as these, no node is looked at.
        """
        if within:
            return self._place_in(pods, np.array(self._cluster.node_index.find(within)[1], dtype=np.int32))
        alike = len({_class_of(pod) for pod in pods}) == 1
        may_fit_later = _depends_on_others(pods) or any(map(self.avoids, pods))
        key = _class_of(pods[0]) if alike and not may_fit_later else None  # None: a failure is not remembered
        if key is not None and any((key, count) in self._unfit for count in (1, len(pods))):
            return None
        for area in self._areas(pods):
            found = self._place_in(pods, area)
            if found is not None:
                return found
        if key is not None:
            self._unfit.add((key, len(pods)))
        return None

    def has_room(self, pod: Pod) -> bool:
        """Tell whether the devices on which a pod counts are promised no more time than they have.

        False also if its devices are not known.
        """
        row = self._cluster.row(pod.place)
        if row is None or pod.uid not in row.places:
            return False
        return all(row.free_milli[device] >= 0 for share in row.places[pod.uid] for device in share)

    def could_resume(self, pods: Sequence[Pod]) -> bool:
        """Tell, without a trial on the view, whether the devices of paused pods have room for all of them to go on.

        False also if the devices of a pod are not known. It is cheaper than the trial that follows (`has_room`).
        """
        needed: dict[tuple[str, int], int] = {}
        for pod in pods:
            row = self._cluster.row(pod.place)
            if row is None or pod.uid not in row.places:
                return False
            for share, devices in zip(pod.request.shares, row.places[pod.uid], strict=True):
                for device in devices:
                    needed[pod.place, device] = needed.get((pod.place, device), 0) + share.milli
                    if row.free_milli[device] < needed[pod.place, device]:
                        return False
        return True

    def _place_in(self, pods: Sequence[Pod], area: Indices) -> list[Assumed] | None:
        """Assume all of these pods on nodes of an area and return where; None: they do not fit, and nothing is assumed.

        Each pod goes to the node of the pod before it, while that node has room.
        """
        placed: list[Assumed] = []
        node = -1
        for pod in pods:
            assumed = self._assume_on(pod, node) if node >= 0 else None
            if assumed is None:
                node = self._best(pod, area, len(pods) - len(placed))
                assumed = self._assume_on(pod, node) if node >= 0 else None
            if assumed is None:
                self.undo(placed)
                return None
            placed.append(assumed)
        return placed

    def undo(self, placed: Sequence[Assumed]) -> None:
        """Undo these assumptions on the view."""
        for assumed in placed:
            self._cluster.forget(assumed.pod.uid)
        self._cluster.advance(self._now_s)

    def _best(self, pod: Pod, area: Indices, wanted: int) -> int:
        """Return the index of the best node of an area for `pod`, the first of `wanted` pods; -1: it fits on none.

        If several are wanted, the nodes that take the most pods like this one come first; then the policy decides.
        """
        cluster = self._cluster
        area = self._bindable(pod, area)
        allowed = cluster.allowed(pod, area)
        fits = cluster.snapshot.fit_array(pod.request, area, allowed) == Verdict.FITS
        fits &= cluster.node_index.units(area) >= pod.units
        if not fits.any():
            return -1
        area, allowed = area[fits], allowed[fits]
        if wanted > 1:  # better together than each pod on the node that is best for it alone
            copies = np.minimum(cluster.snapshot.copies_array(pod.request, area, allowed), wanted)
            most = copies == copies.max()
            area, allowed = area[most], allowed[most]
        ranking = cluster.snapshot.rank_array(pod.request, cluster.policy.native, area, allowed)
        best = ranking.best()
        return int(area[best]) if best >= 0 else -1

    def _assume_on(self, pod: Pod, node: int) -> Assumed | None:
        """Assume a pod on the cheapest devices of the node at this index; None: it does not fit, nothing is assumed."""
        cluster = self._cluster
        one = np.array([node], dtype=np.int32)
        ranking = cluster.snapshot.rank_array(pod.request, cluster.policy.native, one, cluster.allowed(pod, one))
        if ranking.best() < 0 or cluster.node_index.units(one)[0] < pod.units:
            return None
        name = cluster.node_index.name(node)
        assumed = cluster.assume(pod, name, cluster.named(name, ranking.devices(0)), self._now_s)
        cluster.advance(self._now_s)
        return assumed

    def _areas(self, pods: Sequence[Pod]) -> Iterator[Indices]:
        """Yield the areas to be tried for these pods: the narrowest domains first, at last all open nodes.

        A single pod needs no domain. A domain is tried if it has room for as many pods, all like the first one. Of each
        level at most DOMAINS_TRIED are tried: those that the pods would fill most.
        """
        if len(pods) > 1:
            area = self._bindable(pods[0], self._open)
            found = self._cluster.snapshot.copies_array(pods[0].request, area, self._cluster.allowed(pods[0], area))
            copies = dict(zip(area.tolist(), found.tolist(), strict=True))
            for level in self._domains():
                room = {
                    name: sum(copies.get(index, 0) for index in indices.tolist()) for name, indices in level.items()
                }
                enough = sorted((total, name) for name, total in room.items() if total >= len(pods))
                yield from (level[name] for _, name in enough[:DOMAINS_TRIED])
        yield self._open

    def _domains(self) -> list[dict[str, Indices]]:
        """Return for each level, the narrowest first, the open nodes of each domain."""
        if self._levels is None:
            found: list[dict[str, list[int]]] = []
            for index in self._open.tolist():
                node = self._cluster.node(self._cluster.node_index.name(index))
                for level, domain in enumerate(node.domains if node else ()):
                    if level == len(found):
                        found.append({})
                    if domain:
                        found[level].setdefault(domain, []).append(index)
            self._levels = [
                {name: np.array(indices, dtype=np.int32) for name, indices in level.items()} for level in found
            ]
        return self._levels


def _class_of(pod: Pod) -> object:
    """Return what decides where a pod fits: pods with equal values fit in the same places."""
    return pod.request, pod.constraints, pod.namespace, pod.affinity, pod.anti_affinity


def _depends_on_others(pods: Sequence[Pod]) -> bool:
    """Tell whether other pods decide where these fit: a pod that did not fit may fit once another one is placed."""
    return any(pod.affinity or pod.anti_affinity for pod in pods)
