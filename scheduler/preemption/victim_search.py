"""Finds the victims on one node with which a pod, or several of a gang, fit there, and their cost. Pure.

Pausing frees the time of devices. Evicting frees everything, but loses work: it is used where memory, processors or the
units that kubelet counts are short. If the holders are few, every set of them is tried (victims.py). A holder is pods
that yield together (preemption_units.py). A unit of kubelet is 1 % of a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.placement.request import DEVICE_MILLI
from sharepod.scheduler.preemption.victims import Room, least_set

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sharepod.scheduler.preemption.preemption_units import PreemptionUnit
    from sharepod.scheduler.preemption.victims import Rest, Running
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod

TRIES_MAX: Final = 300
"""The most sets of holders that are tried for one candidate: that takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class VictimSearch:
    """The victims on one node and their cost."""

    node: str
    paused: tuple[PreemptionUnit, ...]
    evicted: tuple[PreemptionUnit, ...]
    cost: tuple[int, int]
    """Milliseconds of whole devices' work that are lost, then milli of devices that are paused."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, or one device of it, with the holders there that would have to yield."""

    node: str
    units: int
    """Units that kubelet has left on the node."""
    rest: Rest
    lower: tuple[PreemptionUnit, ...]
    there: dict[str, Running]
    """The pods of the node, by uid."""
    short_milli: int
    """For sorting: the time that is missing on the device; DEVICE_MILLI for a whole node."""
    lost_ms: int
    """For sorting: the least work that an eviction loses on the device; for a whole node, the work of all holders."""

    def here(self, holders: Sequence[PreemptionUnit], but: Sequence[PreemptionUnit] = ()) -> list[Running]:
        """Return the pods of holders that are on this node, each once, without the pods of the holders in `but`."""
        excluded = {one.uid for holder in but for one in holder.pods}
        uids = {one.uid: None for holder in holders for one in holder.pods}
        return [self.there[uid] for uid in uids if uid in self.there and uid not in excluded]

    def units_without(self, holders: Sequence[PreemptionUnit]) -> int:
        """Return the units that kubelet has left once the pods of these holders have gone."""
        return self.units + sum(one.request.milli * 100 // DEVICE_MILLI for one in self.here(holders))


def candidate_of(
    cluster: Cluster, pod: Pod, node: str, lower: Sequence[PreemptionUnit], now_s: float
) -> Candidate | None:
    """Return the whole node `node` as a candidate for a pod; None: the node takes no shares.

    `lower`: the holders there of lower priority, which may yield to the pod.
    """
    found, row = cluster.rest(pod, node), cluster.row(node)
    if found is None or row is None:
        return None
    rest, running = found
    lost_ms = sum(holder.lost_ms(now_s) for holder in lower)
    there = {one.uid: one for one in running}
    return Candidate(node, row.units, rest, tuple(lower), there, short_milli=DEVICE_MILLI, lost_ms=lost_ms)


def devices_of(candidate: Candidate, pod: Pod, now_s: float) -> list[Candidate]:
    """Return, as a candidate of its own, each device of a node that a pod may have and on which a holder has a share.

    `candidate` is the whole node. Only the holders with a share on the device may yield there. Empty: there is no such
    device, or the pod needs several.
    """
    if [share.devices for share in pod.request.shares] != [1]:
        return []
    found = []
    for device, free_milli in enumerate(candidate.rest.free_milli):
        on_it = tuple(
            holder
            for holder in candidate.lower
            if any(
                device in held
                for one in holder.pods
                if one.uid in candidate.there
                for held in candidate.there[one.uid].devices
            )
        )
        if on_it and candidate.rest.allowed >> device & 1:
            alone = replace(candidate.rest, allowed=1 << device)
            short = max(0, pod.request.shares[0].milli - free_milli)
            lost_ms = min(holder.lost_ms(now_s) for holder in on_it)
            found.append(replace(candidate, rest=alone, lower=on_it, short_milli=short, lost_ms=lost_ms))
    return found


def most_copies(cluster: Cluster, candidate: Candidate, pod: Pod, spared: Collection[str], *, evict: bool) -> int:
    """Return how many pods like `pod`, with one share, fit on a candidate if all holders that may yield there do so.

    Without `evict` they are paused. With it they are evicted; only those with a pod in `spared` (uids) are paused.
    """
    evictable = _evictable(candidate, spared) if evict else []
    copies = Room(candidate.rest, pod.request).copies(
        candidate.here(evictable), candidate.here(_pausable(cluster, candidate), evictable)
    )
    return min(copies, candidate.units_without(evictable) // pod.units) if pod.units else copies


def least_search(
    cluster: Cluster,
    candidate: Candidate,
    pod: Pod,
    spared: Collection[str],
    now_s: float,
    *,
    evict: bool,
    copies: int = 1,
) -> VictimSearch | None:
    """Return the cheapest victims on a candidate with which `copies` pods like `pod` fit; None: they do not fit.

    Without `evict` no pod is evicted. With it the holders to evict are chosen first, as if all others were paused; none
    of them has a pod in `spared` (uids). Then those to pause are chosen among the others. Several copies: the pod has
    one share.
    """
    room, here = Room(candidate.rest, pod.request, copies), candidate.here
    pausable = _pausable(cluster, candidate)
    units = pod.units * copies
    evicted: list[PreemptionUnit] = []
    if evict:

        def enough(chosen: Sequence[PreemptionUnit]) -> bool:
            """Tell whether the pods fit once `chosen` is evicted and all others that may be paused are paused."""
            return candidate.units_without(chosen) >= units and room.is_made_by(here(chosen), here(pausable, chosen))

        evictable = _evictable(candidate, spared)
        if not enough(evictable):
            return None
        evicted = least_set(enough, evictable, [holder.lost_ms(now_s) for holder in evictable], TRIES_MAX)
    elif candidate.units < units:  # a pause frees none of them
        return None
    others = [holder for holder in pausable if holder not in evicted]
    if not room.is_made_by(here(evicted), here(others, evicted)):
        return None
    weights = [holder.milli for holder in others]
    paused = least_set(lambda chosen: room.is_made_by(here(evicted), here(chosen, evicted)), others, weights, TRIES_MAX)
    cost = sum(one.lost_ms(now_s) for one in evicted), sum(one.milli for one in paused)
    return VictimSearch(candidate.node, tuple(paused), tuple(evicted), cost)


def _pausable(cluster: Cluster, candidate: Candidate) -> list[PreemptionUnit]:
    """Return the holders on a candidate that may be paused and are not paused yet.

    The pods of a holder yield together, so the first one tells.
    """
    return [one for one in candidate.lower if one.may_pause and cluster.yields(one.pods[0]) != "pause"]


def _evictable(candidate: Candidate, spared: Collection[str]) -> list[PreemptionUnit]:
    """Return the holders on a candidate that may be evicted: none of their pods is in `spared` (uids)."""
    return [holder for holder in candidate.lower if not any(one.uid in spared for one in holder.pods)]
