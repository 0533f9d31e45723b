"""Sums up the runs of a simulation: how long tasks waited, what yielded, how much was used. Pure.

All of it follows from the steps of the runs: between two steps nothing changes, so the sums over time are exact. Times
are seconds of the play. `end_s`: when the play ended, for tasks that had not begun or ended by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.scheduler.simulation.job_run import JobRun


@dataclass(frozen=True, slots=True)
class Waits:
    """The tasks of one priority.

    Attributes:
        priority: the priority of these tasks.
        tasks: how many there are.
        unstarted: of these, how many never began; they count as if they had begun when the play ended.
        median_s, p95_s, p99_s, longest_s: the wait until a task began.
        paused: how often one of their pods was paused.
        evicted: how many of their pods were evicted.
        lost_device_s: work that the evictions lost, in seconds of whole devices.
        stopped_longest_s: the longest time for which a task that had begun did not run.
    """

    priority: int
    tasks: int
    unstarted: int
    median_s: float
    p95_s: float
    p99_s: float
    longest_s: float
    paused: int
    evicted: int
    lost_device_s: float
    stopped_longest_s: float


def wait_s(run: JobRun, end_s: float) -> float:
    """Return how long a task waited until its work first began; until the end of the play if it never did."""
    return max(0.0, (end_s if run.started_s is None else run.started_s) - run.task.arrive_s)


def stopped_s(run: JobRun, end_s: float) -> float:
    """Return the longest time for which a task that had begun did not run, until it or the play ended.

    A task does not run while fewer than its least of pods do.
    """
    longest, since_s = 0.0, None  # since_s: since when the task does not run; None: it runs
    last_s = end_s if run.ended_s is None else run.ended_s
    # At its end a task counts as running: that ends the last stretch.
    for at_s, running in [*((step.at_s, step.running) for step in run.steps), (last_s, run.task.size)]:
        if run.started_s is None or at_s < run.started_s:
            continue
        if running < run.task.least:
            since_s = at_s if since_s is None else since_s
        elif since_s is not None:
            longest, since_s = max(longest, at_s - since_s), None
    return longest


def waits(runs: Sequence[JobRun], end_s: float) -> list[Waits]:
    """Return how long the tasks of each priority waited, the highest first; `end_s` is when the play ended."""
    levels = sorted({run.task.priority for run in runs}, reverse=True)
    return [_of_priority(level, [one for one in runs if one.task.priority == level], end_s) for level in levels]


def _of_priority(priority: int, runs: Sequence[JobRun], end_s: float) -> Waits:
    """Return how long the tasks of one priority waited; `runs` are these tasks, at least one."""
    waited = sorted(wait_s(run, end_s) for run in runs)
    # A percentile is the wait at the nearest rank: at least that part of the tasks waited no longer.
    median_s, p95_s, p99_s = (waited[max(0, math.ceil(part * len(waited)) - 1)] for part in (0.5, 0.95, 0.99))
    return Waits(
        priority, len(runs), unstarted=sum(run.started_s is None for run in runs),
        median_s=median_s, p95_s=p95_s, p99_s=p99_s, longest_s=waited[-1],
        paused=sum(run.paused for run in runs), evicted=sum(run.evicted for run in runs),
        lost_device_s=sum(run.lost_s * run.task.milli / DEVICE_MILLI for run in runs),
        stopped_longest_s=max(stopped_s(run, end_s) for run in runs),
    )  # fmt: skip


def used_part(runs: Sequence[JobRun], devices: int, end_s: float) -> float:
    """Return the part of the devices' time, 0..1, that was used between the arrivals of the first and the last task.

    `devices`: how many the cluster has. A task that has not ended is taken to run until `end_s`. Returns 0 if all tasks
    came at once.
    """
    arrivals = [run.task.arrive_s for run in runs]
    span_s = max(arrivals, default=0.0) - min(arrivals, default=0.0)
    return sum(device_s(run, end_s, max(arrivals)) for run in runs) / (devices * span_s) if span_s else 0.0


def device_s(run: JobRun, end_s: float, until_s: float = math.inf) -> float:
    """Return the device time that a task has used by `until_s`, in seconds of one whole device.

    A task that has not ended is taken to run until `end_s`.
    """
    last_s = end_s if run.ended_s is None else run.ended_s
    steps = [*((step.at_s, step.milli) for step in run.steps), (last_s, 0.0)]
    milli_s = sum(milli * max(0.0, min(next_s, until_s) - at_s) for (at_s, milli), (next_s, _) in pairwise(steps))
    return milli_s / DEVICE_MILLI
