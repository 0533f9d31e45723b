"""Decides one scheduling cycle: which waiting jobs are released, and which pods yield for them. Pure: `now_s` is given.

Jobs are considered in their order (job_order.py). Each gets a place for all of its members, or other pods make room for
it, or it waits. A waiting job does not hold up the jobs behind it. When it has waited too long, nodes are reserved for
it; after twice that time they are closed to higher priorities too. Each decision counts at once in the view (what is
known of the cluster, with all that is assumed: state/cluster.py). Holders are pods that yield together, by themselves
or as a gang (preemption_units.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.controller.actions import Action, Evict, Release, Tell, Yield
from sharepod.scheduler.controller.controller_state import BIND_S
from sharepod.scheduler.controller.gang_placement import Placer
from sharepod.scheduler.controller.job import key_of
from sharepod.scheduler.controller.job_order import JobOrder
from sharepod.scheduler.controller.reservations import Reservations
from sharepod.scheduler.placement.request import DEVICE_MILLI
from sharepod.scheduler.preemption.contention import CALM_S, may_burst, relieve
from sharepod.scheduler.preemption.preemption_units import LAST, PreemptionUnit
from sharepod.scheduler.preemption.room import Preemption
from sharepod.scheduler.state.capacity import capacity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.controller.job import Job, Key
    from sharepod.scheduler.controller.queues import Queues
    from sharepod.scheduler.state.cluster import Assumed, Cluster
    from sharepod.scheduler.state.pod import Pod

PLACED: Final = 256
"""The most pods that are placed in one cycle; the next cycle then follows at once."""
PLANS: Final = 16
"""The most jobs for which one cycle searches victims, in a large cluster."""
PLANS_MOST: Final = 64
"""The same in a small cluster."""
PLANNED: Final = 4096
"""Between these two it is PLANNED / nodes: the cost of a search grows with the nodes."""
OVERRUN: Final = -(2**31)
"""The priority of a paused pod that has run for longer than its queue allows: it goes on when no other job waits."""


def decide(cluster: Cluster, state: ControllerState, queues: Queues, now_s: float) -> list[Action]:
    """Return the actions of one cycle, for the caller to write. The view and the state show them at once.

    `now_s` is of a monotonic clock. Measured contention comes first, then gangs that start anew, then the waiting jobs.
    """
    cluster.advance(now_s)
    rules = (queues.default, *queues.by_name.values())
    state.look(cluster, _busy(cluster) if any(queue.idle_s is not None for queue in rules) else (), now_s)
    if not state.decides:
        state.take_over(now_s)
    actions = relieve(cluster, state, now_s) + state.restarts.restart(cluster, state, now_s)
    actions += _Cycle(cluster, state, queues, now_s).run()
    for action in actions:
        if isinstance(action, Yield):
            state.yielded(action.pod, action.how, action.why, now_s)
    return actions


class _Cycle:
    """One cycle: the waiting jobs, what was tried for them, and the actions so far."""

    def __init__(self, cluster: Cluster, state: ControllerState, queues: Queues, now_s: float) -> None:
        self._cluster, self._state, self._queues, self._now_s = cluster, state, queues, now_s
        self._placer = Placer(cluster, now_s, state.avoided)
        self._counters = state.counters
        self._actions: list[Action] = []
        self._waits: list[tuple[Job, str]] = []
        """The jobs that were looked at and still wait, each with the reason."""
        self._waiting = [self._resuming(job) for job in state.waits.values()]
        """The jobs that waited when the cycle began."""
        self._held_back = state.restarts.held_back(now_s)
        """By job, for gangs that have lost a member: why it is not released yet."""
        self._capacity = capacity_of(cluster, state)
        device_mib = self._capacity.device_mib
        held = {name: state.held(name, device_mib) for name in {job.namespace for job in self._waiting}}
        ready = [
            job
            for job in self._waiting
            if job.waiting and not job.refusal and not job.missing and (job.resumes or job.key not in self._held_back)
        ]
        self._job_order = JobOrder(ready, held, self._capacity.total, device_mib, queues, now_s)
        self._aged = {job.key for job in self._job_order.aged}
        self._reservations = Reservations(cluster, state, queues, self._placer, self._capacity, now_s)
        self._holders: list[PreemptionUnit] | None = None
        """All holders of shares; None: no job has needed victims yet."""
        self._preemption: Preemption | None = None
        """The search for victims; None: no job has got so far."""
        self._failed_kinds: dict[object, tuple[int, int, str]] = {}
        """By kind of job: the placer's generation when a job of it was last tried in vain, its priority, and why."""
        self._lowest = LAST
        """The lowest priority of all holders, once these are known."""
        self._placed = self._plans = 0
        """How many pods were placed, and for how many jobs victims were searched."""
        self._plans_most = max(PLANS, min(PLANS_MOST, PLANNED // max(1, len(cluster.node_index.names()))))
        self._unplanned: set[Key] = set()
        """Jobs for which no victims were searched in this cycle."""
        self._tried: set[Key] = set()
        """Jobs for which victims were searched in vain."""

    def run(self) -> list[Action]:
        """Try the waiting jobs in their order, then their members beyond the least; return the actions.

        Before that, note the jobs that cannot be tried, and end the pods that have run, or have not started, for too
        long.
        """
        for job in self._waiting:
            if job.refusal:
                self._wait(job, job.refusal, "GateRefused")
            elif job.waiting and not job.resumes and job.key in self._held_back:
                self._wait(job, self._held_back[job.key], "GangRestarts")
            elif job.waiting and job.missing:
                self._wait_for_members(job)
        self._end_overruns()
        self._end_late_gangs()
        self._give_up_unbound()
        may_grow: list[Job] = []
        for job in self._in_order():
            self._reservations.open_for(job)
            if self._placed >= PLACED or self._has_yielded(job):
                self._wait(job, "its turn comes in the next cycle")
            elif not job.needed or self._try(job):
                may_grow.append(job)
        if self._placed < PLACED:
            for job in may_grow:
                self._reservations.open_for(job)
                self._grow(job)
        if self._preemption is not None:
            self._preemption.undo()
        # When no job waits for its first plan any more, all may have another.
        self._state.tried = self._state.tried | self._tried if self._unplanned - self._state.tried else set()
        self._state.waiting = self._waits
        return self._actions

    def _in_order(self) -> Iterator[Job]:
        """Yield the jobs that can be tried: those for which nodes are reserved, then all others in their order."""
        kept = [job for job in self._job_order.jobs if job in self._reservations]
        yield from sorted(kept, key=lambda job: (-job.priority, job.since_s, job.key))
        first = {job.key for job in kept}
        for job in self._job_order:
            if job.key not in first:
                yield job

    def _try(self, job: Job) -> bool:
        """Release the members that a job needs, or note why not; tell whether they were released.

        It takes free room first: the job's reserved nodes, then open ones. Then other pods have to yield. If the job
        still waits, nodes may be reserved for it. A job like one that was tried in vain is not tried (`_failed_kinds`).
        """
        needed = job.needed
        if job.resumes:
            return self._resume(job)
        if self._job_order.exceeds(job, needed):
            cap = self._queues.of(job.namespace).cap_milli or 0
            cap_text = f"{cap / DEVICE_MILLI:g} devices"
            self._wait(job, f"queue {job.namespace} would hold more than its cap of {cap_text}", "QueueCap")
            return False
        aged = job.key in self._aged
        may_reserve = self._reservations.nodes(job) or (aged and self._reservations.may_begin)
        preempts = all(pod.preempts for pod in needed)
        ordinary = not may_reserve and not any(map(self._placer.avoids, needed))
        kind = (job.kind, len(needed), preempts) if ordinary else None  # None: a failure says nothing about other jobs
        generation, priority, why = self._failed_kinds.get(kind, (-1, 0, ""))
        if generation == self._placer.generation and job.priority <= priority:  # there is no more room than then
            self._wait(job, why)
            return False
        free = self._reservations.free(job)
        places = self._placer.place(needed, within=free) if free else None
        places = places or self._placer.place(needed)
        if places is None and not self._reservations.is_waited_for(job):  # else its victims are ending already
            places = self._have_yield(job)
        if places is not None:
            self._release(job, needed, places)
            return True
        if not self._capacity.can_hold(needed):
            if silent := self._capacity.silent:
                why = f"no room for {_shown(needed)} on nodes with a reporting agent, nodes without: {silent}"
                self._wait(job, why)
            else:
                self._wait(job, f"{_shown(needed)} would not fit into the empty cluster", "NeverFits")
        elif aged and self._reservations.keep_for_aged(job):
            self._wait(job, f"has waited for too long: {self._reservations.where(job)} kept free for it")
        elif job not in self._reservations:
            why = f"no room for {_shown(needed)} now"
            self._wait(job, why)
            if kind is not None and job.kind is not None and job.key not in self._unplanned:
                self._failed_kinds[kind] = self._placer.generation, job.priority, why
        else:
            self._wait(job, "the pods that make room for it have not ended yet")
        return False

    def _release(self, job: Job, pods: Sequence[Pod], places: Sequence[Assumed]) -> None:
        """Order the release of pods of a job to their places, which are assumed; end the job's reservation.

        From now on the order of the jobs counts them as held by their queue.
        """
        self._actions.append(Release(job, tuple(places)))
        self._state.sent |= {pod.uid: self._now_s for pod in pods}
        if job.is_gang and pods == job.needed:  # not members beyond the least
            self._state.released[job.key] = self._now_s
            if not job.released:
                self._counters.gangs["released"] += 1
                first_s = min(map(self._state.came_s, job.waiting))
                self._counters.gang_times["release"].observe(self._now_s - first_s)
        self._state.told.pop(job.key, None)
        self._reservations.end(job)
        self._job_order.take(job, pods)
        self._placed += len(pods)

    def _resume(self, job: Job) -> bool:
        """Let a paused job run again where it is, if all of its devices have room; else note why it waits.

        Return False in any case, so that its members beyond the least wait for the next cycle (`run`).
        """
        if any(pod.uid in self._state.pressed for pod in job.waiting):
            self._wait(job, "is paused until those of higher priority beside it wait no more")
            return False
        ending = any(pod.place in self._reservations.ending for pod in job.waiting)
        if ending or not self._placer.could_resume(job.waiting):
            self._wait(job, "is paused until its devices have room again")
            return False
        for pod in job.waiting:  # a trial on the view: if it fails, they are paused there again
            self._cluster.presume(pod.uid, "", self._now_s)
        self._cluster.advance(self._now_s)
        if all(map(self._placer.has_room, job.waiting)):
            self._actions += [Yield(pod, "", "there is room again") for pod in job.waiting]
            self._job_order.take(job, job.waiting)
            return False
        for pod in job.waiting:
            self._cluster.presume(pod.uid, "pause", self._now_s)
        self._cluster.advance(self._now_s)
        self._wait(job, "is paused until its devices have room again")
        return False

    def _have_yield(self, job: Job) -> list[Assumed] | None:
        """Order other pods to yield for a job and return its places; None: there is no room, or pods have to end first.

        Victims are paused at once where that is enough. If some have to be evicted, that is ordered, and the nodes are
        reserved for the job: a later cycle places it there. No more than `_plan_limit` searches are made in a cycle.
        """
        if not all(pod.preempts for pod in job.needed):
            return None
        if self._holders is None:
            self._holders = self._all_holders()
            self._lowest = min((holder.priority for holder in self._holders), default=float("inf"))
        if not self._lowest < job.priority:
            return None
        if self._plans >= self._plan_limit(job) or job.key in self._state.tried:
            self._unplanned.add(job.key)
            return None
        if self._preemption is None:
            spared = self._state.spared
            ending = [
                PreemptionUnit((pod,), LAST, (), may_pause=False, ends=True) for pod in self._state.ending.values()
            ]
            self._preemption = Preemption(self._cluster, self._placer, self._holders + ending, spared, self._now_s)
        self._plans += 1
        reservations = self._reservations
        plan = self._preemption.make_room(job.needed, job.priority, reservations.reserved(job), reservations.ending)
        if plan is None:
            self._tried.add(job.key)
            return None
        why = f"for {job.title} of priority {job.priority}"
        self._actions += [Yield(pod, "pause", why) for pod in plan.paused]
        if not plan.placed:
            self._evict(plan.evicted, why)
            self._tell_shrunk([pod for pod in plan.evicted if not pod.deleting], why)
            reservations.keep(job, plan.nodes, {*plan.nodes, *plan.ending})
            return None
        self._limit_beside(job, plan.placed, why)
        return list(plan.placed)

    def _plan_limit(self, job: Job) -> int:
        """Return how many plans a cycle makes, for any jobs, before this job gets none.

        A plan is a search for victims. Jobs that have waited too long leave half of the plans to the others.
        """
        return self._plans_most // 2 if job.key in self._aged else self._plans_most

    def _limit_beside(self, job: Job, placed: Sequence[Assumed], why: str) -> None:
        """Limit the pods of lower priority on the job's devices to their requests. `placed`: the job's places.

        That lasts for CALM_S, and longer only while contention.py measures that the job's pods wait. `why`: for users.
        """
        for assumed in placed:
            devices = {device for share in assumed.devices for device in share}
            for other in self._cluster.pods_on(assumed.node):
                beside = any(device in devices for share in other.chosen for device in share)
                if beside and not other.yields and other.priority < job.priority and may_burst(other):
                    self._actions.append(Yield(other, "limit", why))
                    self._cluster.presume(other.uid, "limit", self._now_s)
                    self._state.pressed[other.uid] = self._now_s + CALM_S, assumed.pod.uid

    def _all_holders(self) -> list[PreemptionUnit]:
        """Return all holders of shares; those that overran or idle have the lowest priority, LAST."""
        rules = (self._queues.default, *self._queues.by_name.values())
        holders = [holder for of_job in self._state.holders.values() for holder in of_job]
        if all(queue.longest_run_s is None and queue.idle_s is None for queue in rules):
            return holders
        return [
            replace(holder, priority=LAST) if any(map(self._has_to_yield, holder.pods)) else holder
            for holder in holders
        ]

    def _tell_shrunk(self, evicted: Sequence[Pod], why: str) -> None:
        """Order an Event about each elastic gang that goes on without those of its members that are `evicted`."""
        for key in sorted({key_of(pod) for pod in evicted if pod.gang}):
            job = self._state.jobs.get(key)
            if job is not None and len(job.released) >= job.least:
                self._counters.gangs["shrunk"] += 1
                gone = sum(key_of(pod) == key for pod in evicted)
                text = f"{gone} of its members make room {why}: the gang goes on with {len(job.released)}"
                self._actions.append(Tell(job.released[0], "GangShrunk", text, warning=False))

    def _grow(self, job: Job) -> None:
        """Release members of an elastic gang beyond its least, one by one, as long as there is free room.

        No pod yields for them. It stops when a member of the gang has yielded, when the queue's cap is reached, when
        the cycle has placed PLACED pods, or at the first member without a place.
        """
        grown: list[Pod] = []
        for pod in job.surplus:
            if self._has_yielded(job) or self._job_order.exceeds(job, [pod]) or self._placed >= PLACED:
                break
            places = self._placer.place([pod])
            if places is None:
                break
            self._release(job, [pod], places)
            grown.append(pod)
        if grown:
            self._counters.gangs["grown"] += 1
            # The needed members were released earlier in this cycle, and `job` still lists them as needed.
            there = len(job.released) + len(job.needed) + len(grown)
            text = f"the gang has {len(grown)} more of its members, {there} in all: it needs {job.least} to run"
            self._actions.append(Tell(grown[0], "GangGrown", text, warning=False))

    def _has_yielded(self, job: Job) -> bool:
        """Tell whether a released member of a job is paused or being evicted; then no other member is released now."""
        return any(self._cluster.yields(pod) == "pause" or pod.uid in self._state.leaving for pod in job.released)

    def _end_overruns(self) -> None:
        """Evict jobs that have run for longer than their queue allows, if the queue's rule for that is `end`."""
        rules = (self._queues.default, *self._queues.by_name.values())
        if not any(queue.overrun == "end" and queue.longest_run_s is not None for queue in rules):
            return
        for job in list(self._state.jobs.values()):
            if self._queues.of(job.namespace).overrun == "end" and any(map(self._overruns, job.released)):
                why = f"it has run for longer than queue {job.namespace} lets it"
                self._evict(job.released, why, "overrun")

    def _evict(self, pods: Sequence[Pod], why: str, cause: str = "yield") -> None:
        """Order the eviction of pods; from now on they belong to no job, and their end is awaited.

        `why`: for users. `cause`: one of gate_metrics.EVICTIONS.
        """
        for pod in pods:
            if pod.uid not in self._state.ending:  # else it ends anyway: waiting for it spares other pods
                self._actions.append(Evict(pod, why, cause))
            self._state.evicted(pod, self._now_s, self._cluster)

    def _end_late_gangs(self) -> None:
        """Evict the released members of gangs that did not all run in time after their release: they start anew.

        A gang of which all run, or that has gone, is watched no more.
        """
        for key, released_s in list(self._state.released.items()):
            job = self._state.jobs.get(key)
            running = sum(pod.running for pod in job.released) if job else 0
            # All run, or a member has gone: then its replacement is released with a timeout of its own.
            if job is None or not job.starts:
                del self._state.released[key]
                if job is not None and running >= job.least:
                    self._counters.gang_times["start"].observe(self._now_s - released_s)
            elif job.timeout_s and self._now_s - released_s > job.timeout_s:
                del self._state.released[key]
                for pod in job.released:
                    if not pod.node:
                        self._state.avoid_node(pod, self._now_s)
                text = f"{running} of {job.least} members ran {job.timeout_s} s after their release: all start anew"
                self._actions += [Tell(pod, "GangTimedOut", text) for pod in job.released]
                self._evict(job.released, text, "timeout")
                self._counters.gangs["timed_out"] += 1

    def _give_up_unbound(self) -> None:
        """Give up released pods that kube-scheduler did not bind within BIND_S.

        While a gang starts, its own timeout counts instead (`_end_late_gangs`).
        """
        for uid, sent_s in list(self._state.sent.items()):
            sent = self._cluster.pod(uid)
            if sent is None or sent.deleting or uid in self._state.leaving:
                continue  # it ends
            if sent.destined and self._now_s - sent_s > BIND_S:
                job = self._state.jobs.get(key_of(sent))
                if job is None or not (job.timeout_s and job.starts):
                    self._give_up(sent)

    def _give_up(self, pod: Pod) -> None:
        """Free the room of a pod that kube-scheduler did not bind within BIND_S, and order an Event about it.

        A pod with a controller is evicted, because the controller makes another. If it is still there after BIND_S, it
        is given up again. A pod without a controller cannot be replaced: it is left alone, and counts nowhere until it
        is bound after all.
        """
        text = f"kube-scheduler has not bound it to {pod.place} for {BIND_S:g} s (`kubectl describe pod` says why)"
        if pod.controller:
            self._state.avoid_node(pod, self._now_s)
            self._actions.append(Tell(pod, "NotBound", f"{text}: the next one of its controller is sent elsewhere"))
            self._evict([pod], text, "unbound")
            self._state.sent[pod.uid] = self._now_s  # BIND_S begins anew
        else:
            why = (
                f"{text}: its room is given to others, and if it is bound after all it waits there until there is room"
            )
            self._actions.append(Tell(pod, "NotBound", f"{why}: delete it, and make it anew"))
            self._cluster.strand(pod)
            self._state.sent.pop(pod.uid)

    def _wait_for_members(self, job: Job) -> None:
        """Note that a gang waits until more of its members have come."""
        there = len(job.waiting) + len(job.released)
        self._wait(job, f"{there} of {job.least} members of the gang are there", "GangIncomplete")

    def _wait(self, job: Job, why: str, reason: str = "Waits") -> None:
        """Note why a job waits, in words (`why`), and order an Event if `reason` is new and the job is not paused.

        `reason`: the Event's, one word.
        """
        self._waits.append((job, why))
        # The details change with every cycle: `sharepod queue` shows them. The Event only says that the job waits.
        if self._state.told.get(job.key) != reason and not job.resumes:
            self._state.told[job.key] = reason
            pod = job.waiting[0] if job.waiting else job.released[0]
            self._actions.append(Tell(pod, reason, why, warning=reason != "Waits"))

    def _resuming(self, job: Job) -> Job:
        """Return a job that has paused pods as one that waits to go on: `resumes` is True, `waiting` has these pods.

        It has waited since the first pause. Any other job is returned unchanged.
        """
        paused = tuple(pod for pod in job.released if pod.yields == "pause")
        if not paused:
            return job
        others = tuple(pod for pod in job.released if pod.yields != "pause")
        priority = OVERRUN if any(map(self._overruns, paused)) else job.priority
        since_s = min(map(self._state.since_s, paused))
        return replace(job, waiting=paused, released=others, priority=priority, since_s=since_s, resumes=True)

    def _overruns(self, pod: Pod) -> bool:
        """Tell whether a pod has run for longer than its queue allows."""
        return self._state.overruns(pod, self._queues.of(pod.namespace), self._now_s)

    def _has_to_yield(self, pod: Pod) -> bool:
        """Tell whether a pod yields to any job, because it has run for too long or does not use what it holds."""
        return self._overruns(pod) or self._state.idles(pod, self._queues.of(pod.namespace), self._now_s)


def _busy(cluster: Cluster) -> Iterator[str]:
    """Yield the uids of pods that have a share which used its device in the last minute."""
    for name in cluster.names():
        use = cluster.use(name)
        for device in use.devices if use else ():
            yield from (share.terms.pod_uid for share in device.shares if share.used_1m_millipercent)


def _shown(pods: Sequence[Pod]) -> str:
    """Return what pods ask for, in words for users, as if each asked for as much as the largest of them."""
    most = max(pods, key=lambda pod: pod.request.milli)
    each = " and ".join(
        (f"{share.devices} x " if share.devices > 1 else "") + f"{share.milli / 10:g} percent"
        for share in most.request.shares
    )
    return f"{len(pods)} pods of {each}" if len(pods) > 1 else each
