"""Finds the victims on one node with which a pod, or several of a gang, fit there, and their cost. Pure.

Pausing frees the time of devices. Evicting frees everything, but loses work: it is used where memory, processors or the
units that kubelet counts are short. If the holders are few, every set of them is tried (victims.py). A holder is pods
that yield together (preemption_units.py); a unit of kubelet is 1 % of a device.
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

LOOKS: Final = 300
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
    """Units that kubelet has left there."""
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
        others = {one.uid for holder in but for one in holder.pods}
        uids = {one.uid: None for holder in holders for one in holder.pods}
        return [self.there[uid] for uid in uids if uid in self.there and uid not in others]

    def units_without(self, holders: Sequence[PreemptionUnit]) -> int:
        """Return the units that kubelet has left once the pods of these holders have gone."""
        return self.units + sum(one.request.milli * 100 // DEVICE_MILLI for one in self.here(holders))


def candidate_of(
    cluster: Cluster, pod: Pod, node: str, lower: Sequence[PreemptionUnit], now_s: float
) -> Candidate | None:
    """Return the whole node `node` as a candidate for a pod; None: it takes no shares.

    `lower`: the holders there of lower priority, which may yield to the pod.
    """
    found, row = cluster.rest(pod, node), cluster.row(node)
    if found is None or row is None:
        return None
    rest, running = found
    lost_ms = sum(holder.lost_ms(now_s) for holder in lower)
    return Candidate(node, row.units, rest, tuple(lower), {one.uid: one for one in running}, DEVICE_MILLI, lost_ms)


def devices_of(candidate: Candidate, pod: Pod, now_s: float) -> list[Candidate]:
    """Return, as candidates of their own, the devices of a node that a pod may have and on which a holder could yield.

    `candidate` is the whole node. On each only the holders with a share there are compared. There are none
    for a pod that needs several devices. What it lacks there (`short_milli`) and the least that one eviction loses
    (`lost_ms`) only sort the candidates.
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

    Without `evict` they are paused. With it they are evicted, but holders with a pod in `spared` (uids) only paused.
    """
    may_go = _may_go(candidate, spared) if evict else []
    copies = Room(candidate.rest, pod.request).copies(
        candidate.here(may_go), candidate.here(_may_pause(cluster, candidate), may_go)
    )
    return min(copies, candidate.units_without(may_go) // pod.units) if pod.units else copies


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

    Without `evict` no pod is evicted; with it none of those in `spared` (uids). First the holders to evict are chosen,
    as if all others were paused; then, among the others, those to pause. Several copies: the pod has one share.
    """
    room, here = Room(candidate.rest, pod.request, copies), candidate.here
    may_pause = _may_pause(cluster, candidate)
    units = pod.units * copies
    evicted: list[PreemptionUnit] = []
    if evict:

        def enough(chosen: Sequence[PreemptionUnit]) -> bool:
            """Tell whether the pods fit once `chosen` is evicted and all others that may be paused are paused."""
            return candidate.units_without(chosen) >= units and room.is_made_by(here(chosen), here(may_pause, chosen))

        may_go = _may_go(candidate, spared)
        if not enough(may_go):
            return None
        evicted = least_set(enough, may_go, [holder.lost_ms(now_s) for holder in may_go], LOOKS)
    elif candidate.units < units:
        return None
    others = [holder for holder in may_pause if holder not in evicted]
    if not room.is_made_by(here(evicted), here(others, evicted)):
        return None
    weights = [holder.milli for holder in others]
    paused = least_set(lambda chosen: room.is_made_by(here(evicted), here(chosen, evicted)), others, weights, LOOKS)
    cost = sum(one.lost_ms(now_s) for one in evicted), sum(one.milli for one in paused)
    return VictimSearch(candidate.node, tuple(paused), tuple(evicted), cost)


def _may_pause(cluster: Cluster, candidate: Candidate) -> list[PreemptionUnit]:
    """Return the holders on a candidate that may be paused and are not paused yet.

    The pods of a holder yield together, so the first one tells.
    """
    return [one for one in candidate.lower if one.may_pause and cluster.yields(one.pods[0]) != "pause"]


def _may_go(candidate: Candidate, spared: Collection[str]) -> list[PreemptionUnit]:
    """Return the holders on a candidate that may be evicted: none of their pods is in `spared` (uids)."""
    return [holder for holder in candidate.lower if not any(one.uid in spared for one in holder.pods)]
