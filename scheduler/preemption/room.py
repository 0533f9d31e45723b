"""Makes room for pods by having others yield: those are paused where that is enough, else some are evicted.

What is looked for is the least loss: of pauses the fewest milli of devices, of evictions the least work. Members of a
gang are shared out over nodes so that all of it together costs least, as far as holders are on one node each. Nothing
yields that is not below the priority of whoever it yields to.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.preemption.victim_search import Giving, devices_of, least_giving, most_copies, site_of
from sharepod.scheduler.state.node_info import GONE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sharepod.scheduler.controller.gang_placement import Placer
    from sharepod.scheduler.preemption.preemption_units import Holder
    from sharepod.scheduler.preemption.victim_search import Site
    from sharepod.scheduler.state.cluster import Assumed, Cluster
    from sharepod.scheduler.state.pod import Pod

SITES_SEARCHED: Final = 32
"""Of those where it might be cheapest, and where there is a way."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How room is made."""

    paused: tuple[Pod, ...]
    evicted: tuple[Pod, ...]
    placed: tuple[Assumed, ...]
    """Where the pods go; none: there is no room before those have gone who were evicted, for them or for others."""
    nodes: tuple[str, ...]
    """Where the pods go; closed to others until then."""
    ending: tuple[str, ...] = ()
    """From where others go for them, or will be paused."""


class Yielding:
    """Who yields to whom in one round."""

    def __init__(
        self, cluster: Cluster, placer: Placer, holders: Iterable[Holder], spared: Collection[str], now_s: float
    ) -> None:
        """`spared`: uids of pods that are not evicted."""
        self._cluster, self._placer, self._spared, self._now_s = cluster, placer, spared, now_s
        self._on: defaultdict[str, list[Holder]] = defaultdict(list)
        """Holders by node; one on several is on each."""
        for holder in holders:
            for node in sorted({pod.place for pod in holder.pods if pod.place}):
                self._on[node].append(holder)
        self._vain: set[object] = set()
        self._pending: list[_Trial] = []
        """Plans for which somebody has to go first: they stay on the view, so that others plan beside them."""
        self._reserved: frozenset[str] = frozenset()
        self._ending: frozenset[str] = frozenset()

    def make_room(
        self,
        pods: Sequence[Pod],
        priority: int,
        reserved: frozenset[str] = frozenset(),
        ending: frozenset[str] = frozenset(),
    ) -> Plan | None:
        """Have others yield so that all of these pods fit; None: there is no way, and nothing has changed.

        `reserved`: closed nodes of which the pods may have what others yield there, but nothing that is free. `ending`:
        closed nodes on which there is room on the view only. On the view all yield at once, and the pods are assumed;
        where somebody has to go first that is until `undo`.
        """
        self._reserved, self._ending = reserved, ending
        key = (
            tuple((pod.ask, pod.demands) for pod in pods),
            pods[0].namespace,
            pods[0].affinity,
            pods[0].anti_affinity,
            priority,
            self._placer.closed,
            reserved,
            ending,
        )
        if key in self._vain:
            return None
        plan: Plan | None = None
        if not _are_alike(pods):
            plan = self._try_one_by_one(pods, priority)
        elif self._sites_for(pods[0], len(pods), priority, evict=True):
            plan = self._try_together(pods, priority) or self._try_one_by_one(pods, priority)
        if plan is None:
            self._vain.add(key)
        return plan

    def undo(self) -> None:
        """Make the view as it is as long as nobody has gone."""
        while self._pending:
            self._pending.pop().undo()

    def _plan(self, trial: _Trial) -> Plan:
        plan = trial.plan(self._ending)
        if not plan.placed:
            self._pending.append(trial)
        return plan

    def _try_one_by_one(self, pods: Sequence[Pod], priority: int) -> Plan | None:
        trial = _Trial(self._cluster, self._placer, self._now_s)
        for pod in pods:
            found = self._placer.place([pod])
            if not found and (giving := self._cheapest(pod, priority)) is not None:
                trial.have_yield([giving])
                found = self._placer.place([pod], within=[giving.node])
            if not found:
                trial.undo()
                return None
            trial.placed += found
        return self._plan(trial)

    def _try_together(self, pods: Sequence[Pod], priority: int) -> Plan | None:
        """Share out pods that are alike over the nodes where that costs least."""
        for evict in (False, True):
            givings = self._cheapest_together(pods[0], len(pods), priority, evict=evict)
            if givings is None:
                continue
            trial = _Trial(self._cluster, self._placer, self._now_s)
            trial.have_yield([giving for giving, _ in givings])
            for giving, count in givings:
                found = self._placer.place(pods[len(trial.placed) :][:count], within=[giving.node])
                trial.placed += found or []
            if len(trial.placed) == len(pods):
                return self._plan(trial)
            trial.undo()
        return None

    def _lower(self, node: str, priority: int) -> list[Holder]:
        return [holder for holder in self._on.get(node, ()) if holder.priority < priority]

    def _sites(self, pod: Pod, priority: int, *, evict: bool) -> Iterator[Site]:
        """Yield the nodes on which a pod may go; with `evict` also where it has to wait for others that end."""
        for node in self._placer.open_names(pod, self._reserved | self._ending if evict else self._reserved):
            site = site_of(self._cluster, pod, node, self._lower(node, priority), self._now_s)
            if site is not None and node in self._reserved:
                free_milli = tuple(min(0, milli) for milli in site.rest.free_milli)
                site = replace(site, rest=replace(site.rest, free_milli=free_milli))
            if site is not None:
                yield site

    def _sites_for(self, pod: Pod, wanted: int, priority: int, *, evict: bool) -> list[Site]:
        """Return the nodes for so many pods with one share; none where all nodes together would not take them."""
        sites = list(self._sites(pod, priority, evict=evict))
        most = sum(most_copies(self._cluster, site, pod, self._spared, evict=evict) for site in sites)
        return sites if most >= wanted else []

    def _sites_of(self, pod: Pod, priority: int, *, evict: bool) -> list[Site]:
        """Return these nodes and their devices, where somebody would have to yield."""
        found: list[Site] = []
        for site in self._sites(pod, priority, evict=evict):
            if site.lower or site.node in self._ending:
                # Where the node is short of something else, those on other devices may help, too.
                found += [*devices_of(site, pod, self._now_s), site]
        return found

    def _cheapest(self, pod: Pod, priority: int) -> Giving | None:
        """Return the least that has to yield on one node so that a pod fits there."""
        sites: list[Site] = []
        for evict in (False, True):
            if not evict or self._ending:
                sites = self._sites_of(pod, priority, evict=evict)
            sites.sort(key=lambda site: (site.lost_ms if evict else site.short_milli, site.node))
            best: Giving | None = None
            searched = 0
            for site in sites:
                found = least_giving(self._cluster, site, pod, self._spared, self._now_s, evict=evict)
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
    ) -> list[tuple[Giving, int]] | None:
        """Return who yields on which nodes, and how many pods go there, so that so many fit at the least cost."""
        offers: list[tuple[float, list[tuple[Giving, int]]]] = []
        for site in self._sites_for(pod, wanted, priority, evict=evict):
            if own := self._offers(site, pod, wanted, evict=evict):
                dearest, most = own[-1]
                offers.append((sum(dearest.cost) / most, own))
        offers.sort(key=lambda offer: (offer[0], offer[1][0][0].node))
        # The cheapest way to have so many pods on the nodes looked at so far, for each number of pods.
        best: list[tuple[tuple[int, int], tuple[tuple[Giving, int], ...]] | None] = [((0, 0), ())]
        best += [None] * wanted
        searched = 0
        for _, own in offers:
            if searched >= SITES_SEARCHED and best[wanted] is not None:
                break
            searched += 1
            for count in range(wanted, 0, -1):
                for giving, copies in own:
                    before = best[max(0, count - copies)]
                    if before is None:
                        continue
                    (lost, paused), chosen = before
                    cost = lost + giving.cost[0], paused + giving.cost[1]
                    now = best[count]
                    if now is None or cost < now[0]:
                        best[count] = cost, (*chosen, (giving, min(copies, count)))
        found = best[wanted]
        return list(found[1]) if found else None

    def _offers(self, site: Site, pod: Pod, wanted: int, *, evict: bool) -> list[tuple[Giving, int]]:
        """Return what has to yield on a node for one pod, for two, and so on, as many as would fit."""
        found: list[tuple[Giving, int]] = []
        for copies in range(1, wanted + 1):
            giving = least_giving(self._cluster, site, pod, self._spared, self._now_s, evict=evict, copies=copies)
            if giving is None:
                break
            if found and found[-1][0].cost == giving.cost:
                found.pop()
            found.append((giving, copies))
        return found


class _Trial:
    """What is tried on the view: it becomes a plan, or nothing has happened."""

    def __init__(self, cluster: Cluster, placer: Placer, now_s: float) -> None:
        self._cluster, self._placer, self._now_s = cluster, placer, now_s
        self._before: dict[str, str] = {}
        self._told: dict[str, list[Pod]] = {GONE: [], "pause": []}
        self.placed: list[Assumed] = []

    def have_yield(self, givings: Sequence[Giving]) -> None:
        """Have holders yield on the view."""
        holders = [(holder, GONE) for giving in givings for holder in giving.evicted]
        holders += [(holder, "pause") for giving in givings for holder in giving.paused]
        for pod, how in [(pod, how) for holder, how in holders for pod in holder.pods]:
            now = self._cluster.yields(pod)
            if now not in (how, GONE):
                self._before.setdefault(pod.uid, now)
                self._cluster.presume(pod.uid, how, self._now_s)
                self._told[how].append(pod)
        self._cluster.settle(self._now_s)
        self._placer.reopened()

    def undo(self) -> None:
        """Make it as it was before."""
        for uid, how in self._before.items():
            self._cluster.presume(uid, how, self._now_s)
        self._placer.undo(self.placed)
        self._placer.reopened()

    def plan(self, ending: frozenset[str]) -> Plan:
        """Return what was tried as a plan; `ending`: nodes on which there is no room yet."""
        nodes = tuple(sorted({assumed.node for assumed in self.placed}))
        if self._told[GONE] or not ending.isdisjoint(nodes):
            # Who is to be paused is only when the others have gone: until then he runs on.
            places = {pod.place for pods in self._told.values() for pod in pods}
            return Plan((), tuple(self._told[GONE]), (), nodes, tuple(sorted(places)))
        return Plan(tuple(self._told["pause"]), (), tuple(self.placed), nodes)


def _are_alike(pods: Sequence[Pod]) -> bool:
    """Tell whether these are several pods of one share each that ask for the same, and for nobody's company."""
    first = pods[0]
    return (
        len(pods) > 1
        and len(first.ask.shares) == 1
        and all(
            pod.ask == first.ask and pod.demands == first.demands and not pod.affinity and not pod.anti_affinity
            for pod in pods
        )
    )
