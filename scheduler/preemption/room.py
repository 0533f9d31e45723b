"""Makes room for pods by making others yield: the victims are paused where that is enough, else some are evicted.

It searches the least loss: with pauses the fewest milli of devices, with evictions the least work. The members of a
gang are spread over nodes at the least total cost; that is exact only where no holder is on several nodes. A pod yields
only to pods of a higher priority. Holders are pods that yield together (preemption_units.py). What was found is tried
on the view (state/cluster.py): victims count as yielding there, then the placer looks for places as always.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.preemption.victim_search import (
    VictimSearch,
    candidate_of,
    devices_of,
    least_search,
    most_copies,
)
from sharepod.scheduler.state.node_info import GONE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sharepod.scheduler.controller.gang_placement import Placer
    from sharepod.scheduler.preemption.preemption_units import PreemptionUnit
    from sharepod.scheduler.preemption.victim_search import Candidate
    from sharepod.scheduler.state.cluster import Assumed, Cluster
    from sharepod.scheduler.state.pod import Pod

SITES_SEARCHED: Final = 32
"""The search ends after this many candidates with a solution. It begins with those that might be cheapest."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The victims that make room, and the places that they make."""

    paused: tuple[Pod, ...]
    evicted: tuple[Pod, ...]
    placed: tuple[Assumed, ...]
    """Where the pods go; empty: there is no room before evicted pods, of this plan or an earlier one, have gone."""
    nodes: tuple[str, ...]
    """The nodes where the pods go; closed to others until the pods are placed."""
    ending: tuple[str, ...] = ()
    """The nodes where victims are evicted for the pods, or are to be paused later."""


class Preemption:
    """The search for victims in one cycle."""

    def __init__(
        self, cluster: Cluster, placer: Placer, holders: Iterable[PreemptionUnit], spared: Collection[str], now_s: float
    ) -> None:
        """Search among these holders; `spared`: uids of pods that must not be evicted."""
        self._cluster, self._placer, self._spared, self._now_s = cluster, placer, spared, now_s
        self._holders_on: defaultdict[str, list[PreemptionUnit]] = defaultdict(list)
        """By node; a holder on several nodes is listed for each."""
        for holder in holders:
            for node in sorted({pod.place for pod in holder.pods if pod.place}):
                self._holders_on[node].append(holder)
        self._failed_calls: set[object] = set()
        """The calls of `make_room` that found no way: the same call is not tried again in this cycle."""
        self._pending: list[_Trial] = []
        """Plans that wait for evicted pods to end. They stay on the view, so that later plans do not use their room."""
        self._reserved: frozenset[str] = frozenset()
        self._ending: frozenset[str] = frozenset()
        """Both as in the latest call of `make_room`: closed nodes that may still be candidates."""

    def make_room(
        self,
        pods: Sequence[Pod],
        priority: int,
        reserved: frozenset[str] = frozenset(),
        ending: frozenset[str] = frozenset(),
    ) -> Plan | None:
        """Make holders below `priority` yield so that all of these pods fit.

        None: there is no way, and nothing has changed.

        `reserved`: closed nodes on which the pods may have what their victims free, but nothing that is free already.
        `ending`: closed nodes where earlier victims still run, so there is room on the view only.

        On the view all victims yield at once, and the pods are assumed. The caller orders what the plan says. If pods
        have to end first, the plan has no places, and the view stays in this state until `undo`.
        """
        self._reserved, self._ending = reserved, ending
        key = (
            tuple((pod.request, pod.constraints, pod.namespace, pod.affinity, pod.anti_affinity) for pod in pods),
            priority,
            self._placer.closed,
            reserved,
            ending,
        )
        if key in self._failed_calls:
            return None
        plan: Plan | None = None
        if not _are_alike(pods):
            plan = self._try_one_by_one(pods, priority)
        elif self._nodes_if_enough(pods[0], len(pods), priority, evict=True):  # cheap, before the search
            plan = self._try_together(pods, priority) or self._try_one_by_one(pods, priority)
        if plan is None:
            self._failed_calls.add(key)
        return plan

    def undo(self) -> None:
        """Take the plans that wait for pods to end off the view; called at the end of a cycle, before these end."""
        while self._pending:
            self._pending.pop().undo()

    def _plan(self, trial: _Trial) -> Plan:
        """Return the plan of a trial that has succeeded. What the trial has changed stays on the view.

        A plan without places waits for other pods to end: `undo` takes its trial off the view again.
        """
        plan = trial.plan(self._ending)
        if not plan.placed:
            self._pending.append(trial)
        return plan

    def _try_one_by_one(self, pods: Sequence[Pod], priority: int) -> Plan | None:
        """Place pod after pod, each where it fits or where the cheapest victims make room for it; return the plan.

        None: one of them fits nowhere, and nothing has changed.
        """
        trial = _Trial(self._cluster, self._placer, self._now_s)
        for pod in pods:
            found = self._placer.place([pod])
            if not found and (search := self._cheapest(pod, priority)) is not None:
                trial.have_yield([search])
                found = self._placer.place([pod], within=[search.node])
            if not found:
                trial.undo()
                return None
            trial.placed += found
        return self._plan(trial)

    def _try_together(self, pods: Sequence[Pod], priority: int) -> Plan | None:
        """Distribute pods that are alike (`_are_alike`) over the nodes where that costs least; return the plan.

        It evicts only if pauses do not suffice. None: they do not all fit, and nothing has changed.
        """
        for evict in (False, True):
            searches = self._cheapest_together(pods[0], len(pods), priority, evict=evict)
            if searches is None:
                continue
            trial = _Trial(self._cluster, self._placer, self._now_s)
            trial.have_yield([search for search, _ in searches])
            for search, count in searches:
                found = self._placer.place(pods[len(trial.placed) :][:count], within=[search.node])
                trial.placed += found or []
            if len(trial.placed) == len(pods):
                return self._plan(trial)
            trial.undo()
        return None

    def _lower(self, node: str, priority: int) -> list[PreemptionUnit]:
        """Return the holders on a node that yield to this priority: those below it."""
        return [holder for holder in self._holders_on.get(node, ()) if holder.priority < priority]

    def _candidates(self, pod: Pod, priority: int, *, evict: bool) -> Iterator[Candidate]:
        """Yield, as candidates, the nodes to which a pod may be bound: the open ones and those in `_reserved`.

        With `evict` also those in `_ending`, where earlier victims still run. On a reserved node only the time that
        victims free counts, not the time that is free already. Holders below `priority` may yield.
        """
        for node in self._placer.open_names(pod, self._reserved | self._ending if evict else self._reserved):
            candidate = candidate_of(self._cluster, pod, node, self._lower(node, priority), self._now_s)
            if candidate is not None and node in self._reserved:
                free_milli = tuple(min(0, milli) for milli in candidate.rest.free_milli)  # below 0: over-booked
                candidate = replace(candidate, rest=replace(candidate.rest, free_milli=free_milli))
            if candidate is not None:
                yield candidate

    def _nodes_if_enough(self, pod: Pod, wanted: int, priority: int, *, evict: bool) -> list[Candidate]:
        """Return the candidates for a pod with one share; empty: together they have no room for `wanted` such pods.

        Room is counted as if all holders that may yield did so.
        """
        candidates = list(self._candidates(pod, priority, evict=evict))
        most = sum(most_copies(self._cluster, candidate, pod, self._spared, evict=evict) for candidate in candidates)
        return candidates if most >= wanted else []

    def _nodes_and_devices(self, pod: Pod, priority: int, *, evict: bool) -> list[Candidate]:
        """Return, as candidates, the nodes on which holders may yield or pods are ending, and each of their devices."""
        found: list[Candidate] = []
        for candidate in self._candidates(pod, priority, evict=evict):
            if candidate.lower or candidate.node in self._ending:
                # If the node is short of something else, holders on other devices may help, too.
                found += [*devices_of(candidate, pod, self._now_s), candidate]
        return found

    def _cheapest(self, pod: Pod, priority: int) -> VictimSearch | None:
        """Return the cheapest victims, all on one node, with which a pod fits there; None: it fits nowhere.

        It evicts only if pauses do not suffice. The search begins with the candidates that might be cheapest, and ends
        after SITES_SEARCHED that have a solution.
        """
        candidates: list[Candidate] = []
        for evict in (False, True):
            if not evict or self._ending:  # else the candidates are the same as before
                candidates = self._nodes_and_devices(pod, priority, evict=evict)
            candidates.sort(
                key=lambda candidate: (candidate.lost_ms if evict else candidate.short_milli, candidate.node)
            )
            best: VictimSearch | None = None
            searched = 0
            for candidate in candidates:
                found = least_search(self._cluster, candidate, pod, self._spared, self._now_s, evict=evict)
                if found is not None:
                    searched += 1
                    if best is None or (found.cost, found.node) < (best.cost, best.node):
                        best = found
                if searched == SITES_SEARCHED:
                    break
            if best is not None:
                return best
        return None

    def _cheapest_together(
        self, pod: Pod, wanted: int, priority: int, *, evict: bool
    ) -> list[tuple[VictimSearch, int]] | None:
        """Return the victims on each node, and how many pods go there, so that `wanted` pods like `pod` fit.

        None: they do not fit. Of all ways over the nodes that were searched, it is the one that costs least. One node
        is added after the other (a knapsack): each offers ways to take some of the pods (`_offers`), and for each
        number of pods the cheapest way on the nodes so far is kept.
        """
        by_node: list[tuple[float, list[tuple[VictimSearch, int]]]] = []
        for candidate in self._nodes_if_enough(pod, wanted, priority, evict=evict):
            if offers := self._offers(candidate, pod, wanted, evict=evict):
                dearest, most = offers[-1]
                by_node.append((sum(dearest.cost) / most, offers))  # the cost of each pod: the cheapest nodes first
        by_node.sort(key=lambda entry: (entry[0], entry[1][0][0].node))
        # best[n]: the cost of the cheapest way to place n pods on the nodes so far, and its offers; None: no way.
        best: list[tuple[tuple[int, int], tuple[tuple[VictimSearch, int], ...]] | None] = [((0, 0), ())]
        best += [None] * wanted
        searched = 0
        for _, offers in by_node:
            if searched >= SITES_SEARCHED and best[wanted] is not None:
                break
            searched += 1
            for count in range(wanted, 0, -1):  # from the top: so no node is used twice
                for search, copies in offers:
                    without = best[max(0, count - copies)]
                    if without is None:
                        continue
                    (lost, paused), chosen = without
                    cost = lost + search.cost[0], paused + search.cost[1]
                    known = best[count]
                    if known is None or cost < known[0]:
                        best[count] = cost, (*chosen, (search, min(copies, count)))
        found = best[wanted]
        return list(found[1]) if found else None

    def _offers(self, candidate: Candidate, pod: Pod, wanted: int, *, evict: bool) -> list[tuple[VictimSearch, int]]:
        """Return the victims on a node that make room for one pod, for two, and so on, at most for `wanted`.

        Each comes with its number of pods. Of offers of equal cost only the one for the most pods is returned.
        """
        found: list[tuple[VictimSearch, int]] = []
        for copies in range(1, wanted + 1):
            search = least_search(self._cluster, candidate, pod, self._spared, self._now_s, evict=evict, copies=copies)
            if search is None:
                break
            if found and found[-1][0].cost == search.cost:
                found.pop()  # one pod more at the same cost
            found.append((search, copies))
        return found


class _Trial:
    """A trial on the view: victims yield there and pods are assumed; it becomes a plan or is undone."""

    def __init__(self, cluster: Cluster, placer: Placer, now_s: float) -> None:
        self._cluster, self._placer, self._now_s = cluster, placer, now_s
        self._before: dict[str, str] = {}
        """By uid, for the pods that this trial makes yield: how they yielded before (Pod.yields)."""
        self._victims: dict[str, list[Pod]] = {GONE: [], "pause": []}
        """The pods that this trial makes yield, by how they yield: GONE is evicted."""
        self.placed: list[Assumed] = []
        """The places that the caller has found after the victims yielded."""

    def have_yield(self, searches: Sequence[VictimSearch]) -> None:
        """On the view, make each victim of these searches yield, unless it yields like that already or has gone.

        A pod may be in two holders. Evictions come first, so a pod that is evicted is not paused, too.
        """
        orders = [(holder, GONE) for search in searches for holder in search.evicted]
        orders += [(holder, "pause") for search in searches for holder in search.paused]
        for pod, how in [(pod, how) for holder, how in orders for pod in holder.pods]:
            already = self._cluster.yields(pod)
            if already not in (how, GONE):
                self._before.setdefault(pod.uid, already)
                self._cluster.presume(pod.uid, how, self._now_s)
                self._victims[how].append(pod)
        self._cluster.advance(self._now_s)
        self._placer.forget_failures()

    def undo(self) -> None:
        """Restore the view to what it was before this trial."""
        for uid, how in self._before.items():
            self._cluster.presume(uid, how, self._now_s)
        self._placer.undo(self.placed)
        self._placer.forget_failures()

    def plan(self, ending: frozenset[str]) -> Plan:
        """Return the trial as a plan. If pods have to end before there is room, the plan has no places and pauses none.

        `ending`: nodes where earlier victims still run, so that there is room on the view only.
        """
        nodes = tuple(sorted({assumed.node for assumed in self.placed}))
        if self._victims[GONE] or not ending.isdisjoint(nodes):
            # The pods to be paused run on until the evicted ones have gone: a later cycle pauses them.
            places = {pod.place for pods in self._victims.values() for pod in pods}
            return Plan(
                paused=(), evicted=tuple(self._victims[GONE]), placed=(), nodes=nodes, ending=tuple(sorted(places))
            )
        return Plan(paused=tuple(self._victims["pause"]), evicted=(), placed=tuple(self.placed), nodes=nodes)


def _are_alike(pods: Sequence[Pod]) -> bool:
    """Tell whether these are several pods of one share each that ask for the same and have no device affinity."""
    first = pods[0]
    return (
        len(pods) > 1
        and len(first.request.shares) == 1
        and all(
            pod.request == first.request
            and pod.constraints == first.constraints
            and not pod.affinity
            and not pod.anti_affinity
            for pod in pods
        )
    )
