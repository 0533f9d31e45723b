"""Sums up the courses of a play: how long tasks waited, what yielded, how much was used. Pure.

All of it follows from the steps of the courses: between two steps nothing changes, so the sums over time are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.scheduler.simulation.job_run import Course


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


def wait_s(course: Course, end_s: float) -> float:
    """Return how long a task waited until it began, at the end of the play if it never did."""
    return max(0.0, (end_s if course.started_s is None else course.started_s) - course.task.arrive_s)


def stopped_s(course: Course, end_s: float) -> float:
    """Return the longest stretch of time in which a task that had begun did not run."""
    longest, since_s = 0.0, None
    last_s = end_s if course.ended_s is None else course.ended_s
    for at_s, running in [*((step.at_s, step.running) for step in course.steps), (last_s, course.task.size)]:
        if course.started_s is None or at_s < course.started_s:
            continue
        if running < course.task.least:
            since_s = at_s if since_s is None else since_s
        elif since_s is not None:
            longest, since_s = max(longest, at_s - since_s), None
    return longest


def waits(courses: Sequence[Course], end_s: float) -> list[Waits]:
    """Return how long the tasks of each priority waited, the highest first; `end_s` is when the play ended."""
    levels = sorted({course.task.priority for course in courses}, reverse=True)
    return [_waits(level, [one for one in courses if one.task.priority == level], end_s) for level in levels]


def _waits(priority: int, courses: Sequence[Course], end_s: float) -> Waits:
    waited = sorted(wait_s(course, end_s) for course in courses)
    median_s, p95_s, p99_s = (waited[max(0, math.ceil(part * len(waited)) - 1)] for part in (0.5, 0.95, 0.99))
    return Waits(
        priority, len(courses), sum(course.started_s is None for course in courses), median_s, p95_s, p99_s, waited[-1],
        sum(course.paused for course in courses), sum(course.evicted for course in courses),
        sum(course.lost_s * course.task.milli / DEVICE_MILLI for course in courses),
        max(stopped_s(course, end_s) for course in courses),
    )  # fmt: skip


def used(courses: Sequence[Course], devices: int, end_s: float) -> float:
    """Return how much of the devices' time was used, 0..1, from the first task's coming to the last one's."""
    arrivals = [course.task.arrive_s for course in courses]
    span_s = max(arrivals, default=0.0) - min(arrivals, default=0.0)
    return sum(device_s(course, end_s, max(arrivals)) for course in courses) / (devices * span_s) if span_s else 0.0


def device_s(course: Course, end_s: float, until_s: float = math.inf) -> float:
    """Return the time of whole devices that a task has used by `until_s`."""
    last_s = end_s if course.ended_s is None else course.ended_s
    steps = [*((step.at_s, step.milli) for step in course.steps), (last_s, 0.0)]
    milli_s = sum(milli * max(0.0, min(next_s, until_s) - at_s) for (at_s, milli), (next_s, _) in pairwise(steps))
    return milli_s / DEVICE_MILLI
