"""Plays tasks that come, run and end against scheduling cycles, in virtual time. Pure.

The cycles are those of a live cluster, on the same view of it. Everything else is as simple as possible: a pod runs as
soon as it is released, and does not run while it is paused. The work of an evicted pod starts from the beginning, in a
new pod. A gang works in proportion to its running members, if these are at least its least. A share with a limit above
its request also gets a part of what is left of its devices (burst_model.py). `sharepod simulate --times` runs it.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import MIB
from sharepod.scheduler.controller.actions import Evict, Release, Yield
from sharepod.scheduler.controller.controller_state import ControllerState
from sharepod.scheduler.controller.gang_annotations import Gang
from sharepod.scheduler.controller.scheduling_cycle import decide
from sharepod.scheduler.placement.constraints import ANY_NODE
from sharepod.scheduler.placement.mix import Mix
from sharepod.scheduler.placement.policy import Policy
from sharepod.scheduler.preemption.contention import CALM_S
from sharepod.scheduler.simulation.burst_model import BurstModel
from sharepod.scheduler.simulation.job_run import JobRun, Step
from sharepod.scheduler.state.capacity import capacity_of
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.node import Node
from sharepod.scheduler.state.pod import Pod
from sharepod.scheduler.state.usage import DeviceFacts, DeviceUse, NodeFacts, NodeUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sharepod.scheduler.controller.actions import Action
    from sharepod.scheduler.controller.queues import Queues
    from sharepod.scheduler.placement.request import NodeSpec
    from sharepod.scheduler.simulation.job_run import Task

LOOK_S: Final = 30.0
"""The time between two cycles while nodes are reserved: a reservation expires if no cycle renews it for a minute."""
ROUND_S: Final = 1.0
"""The shortest time between two cycles."""
_SEEN_S: Final = ROUND_S + 0.001
"""The next cycle after its release sees a pod run; the run is too long only when it is longer than the rule says."""
_UNITS: Final = 1_000_000
"""Units of a node: room for any number of paused pods, as on nodes that offer spare units."""


class Timeline:
    """One play."""

    def __init__(self, nodes: Sequence[NodeSpec], queues: Queues, policy: str = "worth") -> None:
        """Begin at time 0 with these nodes, no pods, and the rules of `queues`.

        Raises PlacementError for impossible nodes and unknown policies.
        """
        self.cluster = Cluster(policy)
        self.state, self.queues = ControllerState(), queues
        self.job_runs: dict[str, JobRun] = {}
        """By the task's name, in the order in which they came."""
        self.rounds = 0
        """How many cycles there were."""
        self._serial = 0
        """How many pods there were: it makes uids unique, and says which of two pods is older."""
        self._burst_model = BurstModel()
        self.now_s = 0.0
        self._tasks: dict[str, str] = {}
        """By a pod's uid: its task."""
        self._uids: defaultdict[str, set[str]] = defaultdict(set)
        """By task: the uids of its pods."""
        self._wants: set[str] = set()
        """Tasks that have pods which do not run."""
        self._looks: list[float] = []
        """A heap of the times at which a pod will have waited or run for too long: a cycle is due then."""
        self._ends: list[tuple[float, int, str, int]] = []
        """A heap of the ends to come: when, a number for ties, the task, its JobRun.pace_changes when it was noted."""
        rules = (queues.default, *queues.by_name.values())
        self._ends_overruns = any(queue.overrun == "end" and queue.longest_run_s is not None for queue in rules)
        for spec in nodes:
            self.cluster.set_node(Node(spec.name, spec.cpu_milli, spec.memory_mib, _UNITS))
            self.cluster.set_use(spec.name, _use(spec))

    def expect(self, tasks: Iterable[Task]) -> None:
        """Have places judged by the mix of these tasks' pods from now on; to be called before `play`."""
        mix = Mix.of(task.request for task in tasks for _ in range(task.size))
        self.cluster.advance(self.now_s)
        self.cluster.renew(Policy(self.cluster.policy.name, self.cluster.snapshot, mix), mix)

    def play(
        self, tasks: Iterable[Task], until_s: float, each_round: Callable[[float], None] = lambda _: None
    ) -> list[JobRun]:
        """Play these tasks, given in any order; return the runs at `until_s`, or when nothing happens any more.

        `each_round` is called after each cycle, with its time. Times are seconds of the play.
        """
        coming = sorted(tasks, key=lambda task: (task.arrive_s, task.name), reverse=True)
        round_s, happened = -ROUND_S, False
        while True:
            next_s = self._next_s(round_s, coming[-1].arrive_s if coming else math.inf, happened=happened)
            if next_s > until_s or next_s == math.inf:
                break
            self.now_s = max(self.now_s, next_s)
            while coming and coming[-1].arrive_s <= self.now_s:
                self.come(coming.pop())
            while self._ends and self._ends[0][0] <= self.now_s:
                end = heapq.heappop(self._ends)
                if not self._is_out_of_date(end):
                    self.end(end[2])
            if self.now_s < round_s + ROUND_S:  # too soon for a cycle: the next one decides what has happened
                happened = True
                continue
            while self._looks and self._looks[0] <= self.now_s:
                heapq.heappop(self._looks)
            round_s = self.now_s
            happened = self.step()
            each_round(self.now_s)
        return list(self.job_runs.values())

    def _next_s(self, round_s: float, comes_s: float, *, happened: bool) -> float:
        """Return when something happens next: a task comes or ends, or a cycle is due; infinity: never.

        A cycle is due after ROUND_S if something happened, after LOOK_S if a reservation has to be renewed, and when a
        pod has waited or run for too long. `round_s`: when the last cycle was. `comes_s`: when the next task comes.
        `happened`: something has happened since that cycle, or in it.
        """
        while self._ends and self._is_out_of_date(self._ends[0]):
            heapq.heappop(self._ends)
        times = [comes_s, self._ends[0][0] if self._ends else math.inf]
        if happened or self.state.tried:  # tried: other jobs wait for their first search for victims
            times.append(round_s + ROUND_S)
        elif self.state.kept:
            times.append(round_s + LOOK_S)
        if self._looks and (self._wants or self._ends_overruns):
            times.append(max(self._looks[0], round_s + ROUND_S))
        return min(times)

    def wanting(self) -> Iterator[JobRun]:
        """Yield the runs of the tasks that have pods which do not run."""
        return (self.job_runs[name] for name in self._wants)

    def fits(self, task: Task) -> bool:
        """Tell whether the pods that a task needs to run would fit into the cluster if it were empty."""
        self.cluster.advance(self.now_s)
        return capacity_of(self.cluster, self.state).holds(task.request, ANY_NODE, task.least)

    def come(self, task: Task) -> None:
        """Add a task now, with all its pods."""
        self.job_runs[task.name] = JobRun(task, since_s=self.now_s)
        self._wants.add(task.name)
        for number in range(task.size):
            self._add_pod(task, number, task.arrive_s)

    def _add_pod(self, task: Task, number: int, since_s: float) -> None:
        """Add pod number `number`, from 0 on, of a task, with its gate; it has waited since `since_s`."""
        self._serial += 1
        uid = f"{task.name}-{number}-{self._serial}"
        gang = Gang(task.name, task.size, task.least, timeout_s=0) if task.size > 1 else None
        name = f"{task.name}-{number}" if gang else task.name
        containers = ("main",) * len(task.request.shares)
        pod = Pod(
            uid, task.user, name, "", task.priority, f"{self._serial:012d}", ended=False, deleting=False,
            request=task.request, containers=containers, gang=gang, gated=True,
        )  # fmt: skip
        self._tasks[uid] = task.name
        self._uids[task.name].add(uid)
        self.state.note(pod, since_s=since_s)
        self.cluster.set_pod(pod)
        heapq.heappush(self._looks, since_s + self.queues.of(task.user).longest_wait_s)

    def step(self) -> bool:
        """Decide one cycle and carry it out; tell whether there was anything to do."""
        self.rounds += 1
        return self.obey(decide(self.cluster, self.state, self.queues, self.now_s))

    def obey(self, actions: Iterable[Action]) -> bool:
        """Carry out a cycle's actions, at once and without failure; tell whether a task was touched by them."""
        touched: set[str] = set()
        for action in actions:
            if isinstance(action, Release):
                for assumed in action.places:
                    pod = assumed.pod
                    self.cluster.set_pod(
                        replace(pod, gated=False, node=assumed.node, chosen=assumed.devices, running=True, yields="")
                    )
                    touched.add(self._set_running(pod.uid, runs=True))
            elif isinstance(action, Yield):
                there = self.cluster.pod(action.pod.uid)
                if there is not None:
                    self.cluster.set_pod(replace(there, yields=action.how))
                    name = self._set_running(action.pod.uid, runs=action.how != "pause")
                    self.job_runs[name].paused += action.how == "pause"
                    touched.add(name)
            elif isinstance(action, Evict):
                touched.add(self._evict(action.pod))
        was_anything = bool(touched)
        self._go_on(touched)
        return was_anything

    def _set_running(self, uid: str, *, runs: bool) -> str:
        """Let a pod run, or not run, from now on; return its task's name. `_go_on` has to follow: it sets speeds."""
        job_run = self.job_runs[self._tasks[uid]]
        self._count(job_run)
        job_run.active[uid] = float(runs)
        pod = self.cluster.pod(uid)
        if runs and pod is not None:
            self._burst_model.run(pod)
        else:
            self._burst_model.stop(uid)
        if job_run.started_s is None and job_run.pace:
            job_run.started_s = self.now_s
        queue = self.queues.of(job_run.task.user)
        if not runs:
            heapq.heappush(self._looks, self.now_s + queue.longest_wait_s)
            heapq.heappush(self._looks, self.now_s + CALM_S)  # contention.py may let it go on then
        elif queue.longest_run_s is not None:
            heapq.heappush(self._looks, self.now_s + queue.longest_run_s + _SEEN_S)
        return job_run.task.name

    def _go_on(self, changed: set[str]) -> None:
        """Compute speeds, steps and ends anew after these tasks (names) have changed.

        The tasks that have other speeds now, because they share a device with one of these, are added to `changed`.
        """
        for uid, speed in self._burst_model.speeds().items():
            job_run = self.job_runs[self._tasks[uid]]
            if job_run.active[uid] != speed:
                self._count(job_run)
                job_run.active[uid] = speed
                changed.add(job_run.task.name)
        for name in sorted(changed):
            self._note_step(self.job_runs[name])
            self._schedule(self.job_runs[name])

    def _note_step(self, job_run: JobRun) -> None:
        """Note the state of a task from now on as a step, and whether it has pods that do not run (`_wants`).

        Of several steps at one moment only the last is kept.
        """
        if job_run.steps and job_run.steps[-1].at_s == self.now_s:
            job_run.steps.pop()
        milli = job_run.task.request.milli * sum(job_run.active.values())
        job_run.steps.append(Step(self.now_s, job_run.running, milli))
        (self._wants.add if job_run.running < job_run.task.size else self._wants.discard)(job_run.task.name)

    def _evict(self, pod: Pod) -> str:
        """End a pod, and add another in its place; return its task's name.

        The task's work is lost if fewer than its least of pods are left.
        """
        job_run = self.job_runs[self._tasks[pod.uid]]
        self._count(job_run)
        job_run.active.pop(pod.uid, None)
        job_run.evicted += 1
        if len(job_run.active) < job_run.task.least and job_run.done_s:
            job_run.lost_s += job_run.done_s
            job_run.done_s = 0.0
        self._forget(pod.uid)
        number = int(pod.name.rpartition("-")[2]) if pod.gang else 0  # as `_add_pod` has named it
        self._add_pod(job_run.task, number, self.now_s)
        return job_run.task.name

    def _count(self, job_run: JobRun) -> None:
        """Count the work that a run has done since the last call; to be called before its pace changes."""
        job_run.done_s += (self.now_s - job_run.since_s) * job_run.pace
        job_run.since_s = self.now_s

    def _schedule(self, job_run: JobRun) -> None:
        """Note when a task will have ended at its present pace; what was noted before is out of date from now on."""
        job_run.pace_changes += 1
        if job_run.pace:
            ends_s = self.now_s + max(0.0, job_run.task.run_s - job_run.done_s) / job_run.pace
            heapq.heappush(self._ends, (ends_s, self._serial, job_run.task.name, job_run.pace_changes))

    def _is_out_of_date(self, end: tuple[float, int, str, int]) -> bool:
        """Tell whether the pace of the task has changed since this end, an entry of `_ends`, was noted."""
        _, _, name, pace_changes = end
        return pace_changes != self.job_runs[name].pace_changes

    def end(self, name: str) -> None:
        """End the task `name` now, whatever it has done. Its pods are gone, and others beside them may speed up."""
        job_run = self.job_runs[name]
        job_run.pace_changes += 1
        self._count(job_run)
        job_run.ended_s = self.now_s
        for uid in sorted(self._uids[job_run.task.name]):
            self._forget(uid)
        job_run.active.clear()
        self._go_on({name})
        self._wants.discard(job_run.task.name)
        del self._uids[job_run.task.name]

    def _forget(self, uid: str) -> None:
        """Remove a pod from the view, and from all that is noted of pods."""
        self._burst_model.stop(uid)
        self.cluster.remove_pod(uid)
        self._uids[self._tasks.pop(uid)].discard(uid)


def _use(spec: NodeSpec) -> NodeUse:
    """Return what the agent of a node without shares would report."""
    facts = [
        DeviceFacts(
            index, f"{spec.name}/{index}", spec.model, spec.device_mib * MIB, healthy=True, health_reason="",
            offered=True, numa_node=-1, nvlink_peers=(),
        )
        for index in range(spec.devices)
    ]  # fmt: skip
    return NodeUse(NodeFacts(spec.name, ""), tuple(map(DeviceUse, facts)))
