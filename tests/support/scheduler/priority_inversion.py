"""Find the tasks of a play that waited while only lower priorities held the room that they needed. Pure.

It asks no cycle: the pods alone tell which pod is where. A task could have begun where its least members would all fit
if every pod of lower priority were gone. Two cycles of waiting are normal: one in which the evicted pods end, and the
one before the cycle in which the task begins. A longer wait is a fault of the scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharepod.scheduler.controller.reservations import AGED_TWICE
from sharepod.scheduler.placement.native import Snapshot
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.scheduler.placement.request import NodeSpec
    from sharepod.scheduler.simulation.job_run import Task
    from sharepod.scheduler.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Denial:
    """A stretch of time in which a task could have begun, and did not."""

    task: str
    priority: int
    since_s: float
    lasted_s: float
    kept: bool
    """All the while some job had waited for twice as long as its queue allows. What is free may then be reserved for
    that job, and without the free room the task did not fit."""


class Witness:
    """Looks at a play after each of its cycles."""

    def __init__(self, timeline: Timeline, nodes: Sequence[NodeSpec], above: int) -> None:
        """Take the play to watch; only tasks with a priority above `above` are looked at."""
        self._timeline, self._nodes, self._above = timeline, nodes, above
        self._snapshot = Snapshot(tuple(nodes))
        self._looked_s = 0.0
        self._since: dict[str, tuple[float, bool]] = {}
        """By task, since when it could have begun, and whether a reservation may explain that it waits."""
        self._seen: set[str] = set()
        self.denials: list[Denial] = []

    def look(self, now_s: float) -> None:
        """Look at the state after a cycle."""
        waiting = {
            job_run.task.name: job_run.task
            for job_run in self._timeline.wanting()
            if job_run.task.priority > self._above and job_run.started_s is None
        }
        for name in [name for name in self._since if name not in waiting]:
            self._end(name, now_s)
        aged = bool(waiting) and self._somebody_aged_twice(now_s)
        for name, task in waiting.items():
            if not self._could_begin(task, idle=True):
                self._end(name, self._looked_s)
            else:
                kept = aged and not self._could_begin(task, idle=False)
                if name in self._since and self._since[name][1] != kept:
                    self._end(name, now_s)
                self._since.setdefault(name, (now_s if name in self._seen else task.arrive_s, kept))
            self._seen.add(name)
        self._looked_s = now_s

    def longest(self, priority: int) -> Denial | None:
        """Return the longest stretch of the tasks of a priority that a reservation does not explain."""
        own = [denial for denial in self.denials if denial.priority == priority and not denial.kept]
        return max(own, key=lambda denial: denial.lasted_s, default=None)

    def end(self) -> None:
        """Count also the tasks that still wait at the end of the play."""
        for name in list(self._since):
            self._end(name, self._timeline.now_s)

    def _end(self, name: str, end_s: float) -> None:
        since_s, kept = self._since.pop(name, (end_s, False))
        if end_s > since_s:
            priority = self._timeline.job_runs[name].task.priority
            self.denials.append(Denial(name, priority, since_s, end_s - since_s, kept))

    def _somebody_aged_twice(self, now_s: float) -> bool:
        return any(
            now_s - job_run.task.arrive_s >= AGED_TWICE * self._timeline.queues.of(job_run.task.user).longest_wait_s
            for job_run in self._timeline.wanting()
        )

    def _could_begin(self, task: Task, *, idle: bool) -> bool:
        """Tell whether a task would fit if lower priorities were gone; without `idle`, only into the time they hold."""
        milli: defaultdict[str, int] = defaultdict(lambda: DEVICE_MILLI)
        yielded: defaultdict[str, int] = defaultdict(int)
        mib: defaultdict[str, int] = defaultdict(int)
        cpu_milli: defaultdict[str, int] = defaultdict(int)
        memory_mib: defaultdict[str, int] = defaultdict(int)
        sizes = {node.name: node.device_mib for node in self._nodes}
        for pod in self._timeline.cluster.pods():
            if not pod.place:
                continue
            lower = pod.priority < task.priority
            if not lower:
                cpu_milli[pod.place] += pod.request.cpu_milli
                memory_mib[pod.place] += pod.request.memory_mib
            for share, devices in zip(pod.request.shares, pod.chosen, strict=True):
                own_mib = share.mib_of(sizes[pod.place])
                for device in devices:
                    runs_milli = share.milli if pod.yields != "pause" else 0
                    if lower:
                        yielded[device] += runs_milli
                    else:
                        milli[device] -= runs_milli
                        mib[device] += own_mib
        for index, node in enumerate(self._nodes):
            names = [f"{node.name}/{device}" for device in range(node.devices)]
            self._snapshot.set_left(
                index,
                node.cpu_milli - cpu_milli[node.name],
                node.memory_mib - memory_mib[node.name],
                [milli[name] if idle else yielded[name] for name in names],
                [node.device_mib - mib[name] for name in names],
            )
        copies = self._snapshot.copies_array(task.request, range(len(self._nodes)))
        return int(copies.sum()) >= task.least
