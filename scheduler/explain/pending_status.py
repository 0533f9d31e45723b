"""Tells `sharepod explain` why a pod waits: the jobs before it, what its gang lacks, its possible victims. Pure.

It shows the state after the last cycle. It decides nothing, and changes nothing on the view.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.controller.fairness import weighted_shares
from sharepod.scheduler.controller.job import key_of
from sharepod.scheduler.placement.request import DEVICE_MILLI
from sharepod.scheduler.preemption.preemption_units import LAST
from sharepod.scheduler.preemption.victim_search import candidate_of, least_search

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.controller.job import Job
    from sharepod.scheduler.controller.queues import Queues
    from sharepod.scheduler.preemption.preemption_units import PreemptionUnit
    from sharepod.scheduler.preemption.victim_search import VictimSearch
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod

LISTED: Final = 5
"""Jobs before the pod's that are listed one by one."""
WAYS: Final = 3
"""Nodes of which the victims are listed: the cheapest ones."""
CANDIDATES: Final = 32
"""Nodes on which victims are searched: those where pods of lower priority hold the most."""
EXAMPLES: Final = 3
"""Nodes that are named for each reason that closes some."""
NAMED: Final = 8
"""The most pods that are named in one list."""
NOBODY: Final = "no pod of lower priority holds shares, and equals do not yield to each other"
UNLISTED: Final = "it has come since the last cycle, or is released now"
NEVER: Final = "its PriorityClass has preemptionPolicy Never: no pod yields for it"


@dataclass(frozen=True, slots=True)
class Before:
    """A job that is tried before the pod's job."""

    job: str
    priority: int
    devices: float
    why: str
    """Why it comes before."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a queue."""

    queue: str
    weight: float
    share: float
    """The dominant share of the cluster that it holds, divided by its weight."""
    held_devices: float
    cap_devices: float | None
    longest_wait_s: float


@dataclass(frozen=True, slots=True)
class Members:
    """The state of a gang."""

    size: int
    least: int
    waiting: int
    released: int
    missing: int
    """Members that have still to come before it can start."""


@dataclass(frozen=True, slots=True)
class Way:
    """The victims on a node with which one of the job's pods would fit there."""

    node: str
    paused: tuple[str, ...]
    evicted: tuple[str, ...]
    more: int
    """Pods that are not named."""
    lost_s: float
    """Work that would be lost, in seconds of whole devices."""


@dataclass(frozen=True, slots=True)
class Barred:
    """Nodes that are closed to the pod whatever is left of their devices."""

    why: str
    nodes: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """All that a cycle knows of a pod that waits or yields."""

    decides: bool
    """This replica decides. False: another one does, and knows the rest."""
    waits: bool
    """The pod has no place yet. False: it yields where it is."""
    job: str
    why: str
    """Why it is not released, in the last cycle's words."""
    position: int | None
    """From 1; None: it is not in the line, or no cycle has come to it yet."""
    in_line: int
    """How many jobs are in the line."""
    in_queue: int | None
    """As `position`, among the jobs of its queue."""
    priority: int
    waited_s: float | None
    """How long the pod has waited, or has been yielding; None: it began before this replica looked."""
    before: tuple[Before, ...]
    standing: Standing
    gang: Members | None
    yields: str
    """Why other pods do not yield; empty: `ways` lists those that would."""
    ways: tuple[Way, ...]
    barred: tuple[Barred, ...]


def turn_of(
    cluster: Cluster, state: ControllerState, queues: Queues, pod: Pod, now_s: float, *, decides: bool
) -> Turn | None:
    """Return what the last cycle knew of a pod that waits or yields; None: the pod does neither.

    `queues`: the rules. `decides`: this replica decides. If it does not, it knows neither the order of the jobs nor the
    possible victims, and both are left out.
    """
    job, waits = state.jobs.get(key_of(pod)), pod.gated and cluster.assumed(pod.uid) is None
    if job is None or not (waits or pod.yields):
        return None
    line = _in_line(state, now_s) if decides else []
    index = next((at for at, other in enumerate(line) if other.key == job.key), None)
    own = line[index] if index is not None else job  # as the cycle tried it: perhaps as one that resumes
    before = line[:index] if index is not None else []
    shares = weighted_shares(state, queues)
    if waits:
        why = next((reason for other, reason in state.waiting if other.key == job.key), UNLISTED)
        waited_s = state.waited_s(pod.uid, now_s)
        if not job.refusal and all(one.uid != pod.uid for one in job.waiting):
            why = f"its gang has {len(job.released) + len(job.waiting)} other members already, as many as it takes"
    else:
        since_s, why = state.yields.get(pod.uid, (state.paused_s(pod.uid), ""))
        waited_s = None if since_s is None else max(0.0, now_s - since_s)
    why_none, ways = _ways(cluster, state, queues, job, now_s) if waits and decides else ("", ())
    return Turn(
        decides, waits, job.title, why, position=None if index is None else index + 1, in_line=len(line),
        in_queue=None if index is None else 1 + sum(other.namespace == job.namespace for other in before),
        priority=job.priority, waited_s=waited_s,
        before=tuple(_before(other, own, state, queues, shares, now_s) for other in before[:LISTED]),
        standing=_standing(state, queues, job.namespace, shares), gang=_members(job, pod),
        yields=why_none, ways=ways, barred=tuple(_barred(cluster, state, job, pod)) if waits else (),
    )  # fmt: skip


def _in_line(state: ControllerState, now_s: float) -> list[Job]:
    """Return the jobs that wait only for their place, in the order in which the last cycle tried them.

    Left out are refused jobs, jobs that lack members, and jobs that are held back because their gang has lost a member.
    A job that resumes is not held back: its waiting pods are on their nodes and paused.
    """
    held = state.restarts.held_back(now_s)
    return [
        job for job, _ in state.waiting if not job.refusal and not job.missing and (job.resumes or job.key not in held)
    ]


def _before(
    other: Job, job: Job, state: ControllerState, queues: Queues, shares: dict[str, float], now_s: float
) -> Before:
    """Return `other`, which is tried before `job`, with the reason: the first rule that tells them apart.

    The rules come in the order of a cycle: reservations, age, priority, a pause, the queues' shares, the time of
    arrival. `shares`: by queue, the dominant share divided by its weight. `queues`: the rules.
    """

    def aged(one: Job) -> bool:
        return now_s - one.since_s >= queues.of(one.namespace).longest_wait_s

    mine, theirs = shares.get(job.namespace, 0.0), shares.get(other.namespace, 0.0)
    came, above = "it came before", f"priority {other.priority} is above {job.priority}"
    if other.key in state.kept and job.key in state.kept:
        why = above if other.priority > job.priority else came
    elif other.key in state.kept:
        why = "nodes are kept free for it"
    elif aged(other):
        why = came if aged(job) else "it has waited for longer than its queue lets anyone wait"
    elif other.priority > job.priority:
        why = above
    elif other.resumes and not job.resumes:
        why = "it is paused: among equal jobs a paused one goes on first"
    elif other.namespace != job.namespace and theirs <= mine:
        why = f"its queue holds {theirs:.3f} of the cluster by its weight, this one {mine:.3f}"
    else:
        why = came
    devices = sum(pod.request.milli for pod in other.waiting) / DEVICE_MILLI
    return Before(other.title, other.priority, devices, why)


def _standing(state: ControllerState, queues: Queues, name: str, shares: dict[str, float]) -> Standing:
    """Return the state of the queue `name`; `shares`: by queue, the dominant share divided by its weight."""
    rules = queues.of(name)
    cap = None if rules.cap_milli is None else rules.cap_milli / DEVICE_MILLI
    held = state.held(name, device_mib=0).device_milli / DEVICE_MILLI
    return Standing(name, rules.weight, shares.get(name, 0.0), held, cap, rules.longest_wait_s)


def _members(job: Job, pod: Pod) -> Members | None:
    """Return the state of a pod's gang, which is `job`; None: the pod has none."""
    if pod.gang is None:
        return None
    return Members(pod.gang.size, job.least, len(job.waiting), len(job.released), job.missing)


def _barred(cluster: Cluster, state: ControllerState, job: Job, pod: Pod) -> Iterator[Barred]:
    """Yield the nodes that are closed to a pod of a job, by reason, the most frequent first.

    A node counts by its first reason. All nodes that are reserved for other jobs count, also those that are closed only
    to lower and equal priorities.
    """
    # By node: the name of the job for which it is reserved.
    kept = {
        name: key[1].partition("/")[2] for key, (nodes, _) in state.kept.items() if key != job.key for name in nodes
    }
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(cluster.names()):
        node, row = cluster.node(name), cluster.row(name)
        if node is not None and not node.suits(pod.constraints):
            found["its node selector or affinity, a taint or a cordon keeps it away"].append(name)
        elif name in kept:
            found[f"kept free for {kept[name]}, which has waited for too long or for which pods are leaving"].append(
                name
            )
        elif row is not None and row.units < pod.units:
            found["kubelet has not enough percents of devices left there, paused pods count, too"].append(name)
    for why, names in sorted(found.items(), key=lambda item: -len(item[1])):
        yield Barred(why, len(names), tuple(names[:EXAMPLES]))


def _ways(
    cluster: Cluster, state: ControllerState, queues: Queues, job: Job, now_s: float
) -> tuple[str, tuple[Way, ...]]:
    """Return why no pods would yield for the largest pod of a job, and by node those that would, the cheapest first.

    One of both is empty. Both are empty if the job needs no place, or waits for something else. The search is that of a
    cycle, on at most CANDIDATES nodes.
    """
    needed = job.needed
    if not needed or job.refusal or job.missing:
        return "", ()
    if not all(pod.preempts for pod in needed):
        return NEVER, ()
    pod = max(needed, key=lambda one: one.request.milli)
    lower_on: defaultdict[str, list[PreemptionUnit]] = defaultdict(list)  # the holders of lower priority, by node
    lower = 0
    for holder in (_as_judged(one, state, queues, now_s) for own in state.holders.values() for one in own):
        if holder.priority < job.priority:
            lower += 1
            for name in {one.place for one in holder.pods if one.place}:
                lower_on[name].append(holder)
    if not lower:
        return NOBODY, ()
    names = [name for name in lower_on if (node := cluster.node(name)) is not None and node.suits(pod.constraints)]
    names.sort(key=lambda name: (-sum(one.request.milli for holder in lower_on[name] for one in holder.pods), name))
    found = [
        search
        for name in names[:CANDIDATES]
        if (search := _search(cluster, state, pod, name, lower_on[name], now_s)) is not None
    ]
    if not found:
        spared = sum(holder.pods[0].uid in state.spared for own in state.holders.values() for holder in own)
        kept = f", and disruption budgets keep {spared} from being evicted" if spared else ""
        return f"of {lower} that are of lower priority not even all would make room for it on one node{kept}", ()
    found.sort(key=lambda search: (search.cost, search.node))
    return "", tuple(map(_way, found[:WAYS]))


def _as_judged(holder: PreemptionUnit, state: ControllerState, queues: Queues, now_s: float) -> PreemptionUnit:
    """Return a holder with the priority that a cycle gives it: LAST if it overruns or idles by its queue's rules."""
    rules = queues.of(holder.pods[0].namespace)
    over = any(state.overruns(pod, rules, now_s) or state.idles(pod, rules, now_s) for pod in holder.pods)
    return replace(holder, priority=LAST) if over else holder


def _search(
    cluster: Cluster, state: ControllerState, pod: Pod, node: str, lower: Sequence[PreemptionUnit], now_s: float
) -> VictimSearch | None:
    """Return the cheapest victims on a node, evicted only if pauses do not suffice; None: the pod would not fit.

    `lower`: the holders there that may yield to the pod.
    """
    candidate = candidate_of(cluster, pod, node, lower, now_s)
    if candidate is None:
        return None
    without = least_search(cluster, candidate, pod, state.spared, now_s, evict=False)
    return without or least_search(cluster, candidate, pod, state.spared, now_s, evict=True)


def _way(search: VictimSearch) -> Way:
    """Return the victims on a node by name, at most NAMED of the paused and NAMED of the evicted."""
    paused = [pod.title for holder in search.paused for pod in holder.pods]
    evicted = [pod.title for holder in search.evicted for pod in holder.pods]
    more = max(0, len(paused) - NAMED) + max(0, len(evicted) - NAMED)
    lost_ms, _ = search.cost
    return Way(search.node, tuple(paused[:NAMED]), tuple(evicted[:NAMED]), more, lost_ms / 1000)
