"""What the courses of tasks come to: who waited how long, what was lost, what was used, how even it was. Pure.

All of it follows from when how many pods of each task ran: between two such moments nothing changes, so that the
integrals over time are exact.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.ask import DEVICE_MILLI
from sharepod.scheduler.course import Step
from sharepod.scheduler.fairness import jain
from sharepod.scheduler.keeping import AGED_TWICE
from sharepod.scheduler.packing import Packing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sharepod.scheduler.course import Course
    from sharepod.scheduler.packing import Held
    from sharepod.scheduler.queues import Queues

POINTS: Final = 400
"""Of a curve over time."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The tasks of one priority."""

    priority: int
    tasks: int
    unstarted: int
    """They count as if they had started when the play ended."""
    median_s: float
    p95_s: float
    p99_s: float
    longest_s: float
    paused: int
    """How often one of their pods was paused."""
    evicted: int
    """How many of their pods were."""
    lost_device_s: float
    """Work that was lost with them, in seconds of whole devices."""
    stopped_longest_s: float
    """For how long at most one that had begun did not run."""


@dataclass(frozen=True, slots=True)
class Longest:
    """The task that waited longest until it began, and for how long it might have had to."""

    task: str
    waited_s: float
    rule_s: float
    """Its queue's longest wait: after that it goes before all others."""
    ahead: int
    """How many had waited longer then."""
    run_s: float
    """The longest that anybody was there who began before it."""

    @property
    def bound_s(self) -> float:
        """Return the time by which it has begun at the latest: those ahead may need each other's devices in turn."""
        late_s = AGED_TWICE * self.rule_s + (1 + self.ahead) * self.run_s
        return late_s if self.waited_s > self.rule_s else self.rule_s


@dataclass(frozen=True, slots=True)
class User:
    """What one user got."""

    name: str
    tasks: int
    device_s: float
    wanted_s: float
    """For how long it had less than it asked for."""
    got: float
    """Devices on average in that time, divided by its weight."""


@dataclass(frozen=True, slots=True)
class Curves:
    """What was used and wanted over time, in devices on average."""

    at_s: tuple[float, ...]
    """The middle of each stretch."""
    used: Mapping[int, tuple[float, ...]]
    """By priority."""
    wanted: Mapping[int, tuple[float, ...]]
    """By priority: asked for and not got."""
    by_user: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Result:
    """What a play has come to; of tasks that would fit into the empty cluster."""

    devices: int
    span_s: float
    """From the first task's coming to the last one's."""
    unfit: int
    """Tasks that could never fit."""
    unended: int
    waits: tuple[Waits, ...]
    """By priority, the highest first."""
    used: float
    """Of the time of all devices, in that span."""
    low_use: float | None
    """What the lowest priority used of what the others left while it wanted more, 0..1; None: it never did.

    Where it wanted less than was left, of what it wanted.
    """
    low_packed: float | None
    """The same, of the most that any packing of its jobs could have used (packing.py): what is left in pieces that none
    of them takes does not count."""
    users: tuple[User, ...]
    jain: float | None
    """Jain's index of what users got while they wanted more; None: fewer than two ever did."""
    longest: Longest
    over_bound: int
    """Tasks that waited for longer than their bound."""


def wait_s(course: Course, end_s: float) -> float:
    """Return how long a task waited until it began, at the end of the play if it never did."""
    return max(0.0, (end_s if course.started_s is None else course.started_s) - course.task.arrive_s)


def stopped_s(course: Course, end_s: float) -> tuple[float, float]:
    """Return for how long a task that had begun did not run, in all and at a stretch."""
    whole = longest = 0.0
    since_s = None
    last_s = end_s if course.ended_s is None else course.ended_s
    steps = [(step.at_s, step.running) for step in course.steps]
    for at_s, running in [*steps, (last_s, course.task.size)]:
        if course.started_s is None or at_s < course.started_s:
            continue
        if running < course.task.least:
            since_s = at_s if since_s is None else since_s
        elif since_s is not None:
            whole, longest = whole + at_s - since_s, max(longest, at_s - since_s)
            since_s = None
    if since_s is not None and since_s < last_s:
        whole, longest = whole + last_s - since_s, max(longest, last_s - since_s)
    return whole, longest


def judge(
    courses: Sequence[Course], fits: Callable[[Course], bool], devices: int, queues: Queues, end_s: float
) -> Result:
    """Return what courses come to, of which there is one at least that fits; `end_s`: when the play ended."""
    fitting = [course for course in courses if fits(course)]
    arrivals = [course.task.arrive_s for course in fitting]
    levels = sorted({course.task.priority for course in fitting}, reverse=True)
    used_s = low_got = low_could = low_packed = 0.0
    span_s = max(arrivals) - min(arrivals)
    got: defaultdict[str, float] = defaultdict(float)
    wanted: defaultdict[str, float] = defaultdict(float)
    whole = devices * DEVICE_MILLI
    for from_s, to_s, state in _stretches(fitting, end_s, Packing(devices)):
        length_s = to_s - from_s
        used_s += sum(state.used.values()) * max(0.0, min(to_s, max(arrivals)) - from_s)
        if state.missing[levels[-1]]:
            low = state.used[levels[-1]]
            left = whole - sum(state.asked.values()) + state.asked[levels[-1]]
            low_got += low * length_s
            could = min(left, low + state.missing[levels[-1]])
            low_could += could * length_s
            low_packed += min(could, state.packing.most_milli()) * length_s
        for user, missing in state.user_missing.items():
            if missing:
                got[user] += state.user_used[user] * length_s
                wanted[user] += length_s
    users = _users(fitting, got, wanted, queues, end_s)
    rates = [user.got for user in users if user.wanted_s]
    bounds = _bounds(fitting, queues, end_s)
    return Result(
        devices, span_s, len(courses) - len(fitting), sum(course.ended_s is None for course in fitting),
        tuple(_waits(level, [one for one in fitting if one.task.priority == level], end_s) for level in levels),
        used_s / (whole * span_s) if span_s else 0.0,
        low_got / low_could if low_could else None,
        low_got / low_packed if low_packed else None,
        users, jain(rates) if len(rates) > 1 else None,
        max(bounds, key=lambda bound: bound.waited_s),
        sum(bound.waited_s > bound.bound_s for bound in bounds),
    )  # fmt: skip


def curves(courses: Sequence[Course], fits: Callable[[Course], bool], end_s: float) -> Curves:
    """Return what was used and wanted over time."""
    fitting = [course for course in courses if fits(course)]
    begin_s = min(course.task.arrive_s for course in fitting)
    width_s = max(1e-9, end_s - begin_s) / POINTS

    def empty() -> list[float]:
        return [0.0] * POINTS

    used: defaultdict[int, list[float]] = defaultdict(empty)
    wanted: defaultdict[int, list[float]] = defaultdict(empty)
    by_user: defaultdict[str, list[float]] = defaultdict(empty)
    for from_s, to_s, state in _stretches(fitting, end_s, Packing(0)):
        first, last = (from_s - begin_s) / width_s, (to_s - begin_s) / width_s
        for index in range(int(first), min(POINTS, math.ceil(last))):
            part = (min(last, index + 1) - max(first, index)) / DEVICE_MILLI
            for level, milli in state.used.items():
                used[level][index] += part * milli
            for level, milli in state.missing.items():
                wanted[level][index] += part * milli
            for user, milli in state.user_used.items():
                by_user[user][index] += part * milli
    return Curves(
        tuple(begin_s + (index + 0.5) * width_s for index in range(POINTS)),
        {level: tuple(used[level]) for level in sorted(used, reverse=True)},
        {level: tuple(wanted[level]) for level in sorted(wanted, reverse=True)},
        {user: tuple(values) for user, values in sorted(by_user.items())},
    )


@dataclass(frozen=True, slots=True)
class _Use:
    """What a task uses of devices' time, asks for with what runs and with what does not, in milli; how many pods."""

    used: float = 0.0
    asked: int = 0
    missing: int = 0
    pods: int = 0

    def less(self, other: _Use) -> _Use:
        return _Use(
            self.used - other.used, self.asked - other.asked, self.missing - other.missing, self.pods - other.pods
        )


class _State:
    """What is used and wanted at one moment, in milli of devices."""

    def __init__(self, packing: Packing, lowest: int) -> None:
        self.packing, self._lowest = packing, lowest
        self.used: defaultdict[int, float] = defaultdict(float)
        self.asked: defaultdict[int, int] = defaultdict(int)
        """What pods that run ask for: what they use beyond it others may have."""
        self.missing: defaultdict[int, int] = defaultdict(int)
        self.user_used: defaultdict[str, float] = defaultdict(float)
        self.user_missing: defaultdict[str, int] = defaultdict(int)

    def add(self, course: Course, more: _Use) -> None:
        task = course.task
        self.used[task.priority] += more.used
        self.asked[task.priority] += more.asked
        self.user_used[task.user] += more.used
        self.missing[task.priority] += more.missing
        self.user_missing[task.user] += more.missing

    def hold(self, course: Course, before: Held, now: Held, pods: int) -> None:
        """Take it that a task holds something else, and that so many more of its pods are there."""
        if course.task.priority > self._lowest:
            self.packing.hold(before, now)
        elif pods:
            self.packing.offer(course.task.ask, pods)


def _stretches(courses: Sequence[Course], end_s: float, packing: Packing) -> Iterator[tuple[float, float, _State]]:
    """Yield the stretches of time in which nothing changes, with what is so then."""
    changes: list[tuple[float, int, _Use, Held, Held]] = []
    for index, course in enumerate(courses):
        milli, size = course.task.ask.milli, course.task.size
        last_s = end_s if course.ended_s is None else course.ended_s
        first = Step(course.task.arrive_s, 0, 0.0, ())
        before, held = _Use(), first.held
        for step in (first, *(step for step in course.steps if step.at_s < last_s)):
            asked = step.running * milli
            now = _Use(step.milli, asked, size * milli - asked, size)
            changes.append((step.at_s, index, now.less(before), held, step.held))
            before, held = now, step.held
        changes.append((last_s, index, _Use().less(before), held, ()))
    changes.sort(key=lambda change: change[:2])
    state = _State(packing, min((course.task.priority for course in courses), default=0))
    for (at_s, index, more, held, holds), (next_s, *_) in pairwise([*changes, (end_s, 0, _Use(), (), ())]):
        state.add(courses[index], more)
        state.hold(courses[index], held, holds, more.pods)
        if next_s > at_s:
            yield at_s, next_s, state


def _waits(priority: int, courses: Sequence[Course], end_s: float) -> Waits:
    waited = sorted(wait_s(course, end_s) for course in courses)

    def part(which: float) -> float:
        return waited[max(0, math.ceil(which * len(waited)) - 1)]

    return Waits(
        priority=priority,
        tasks=len(courses),
        unstarted=sum(course.started_s is None for course in courses),
        median_s=part(0.5),
        p95_s=part(0.95),
        p99_s=part(0.99),
        longest_s=waited[-1],
        paused=sum(course.paused for course in courses),
        evicted=sum(course.evicted for course in courses),
        lost_device_s=sum(course.lost_s * course.task.milli / DEVICE_MILLI for course in courses),
        stopped_longest_s=max(stopped_s(course, end_s)[1] for course in courses),
    )


def _users(
    courses: Sequence[Course], got: Mapping[str, float], wanted: Mapping[str, float], queues: Queues, end_s: float
) -> tuple[User, ...]:
    tasks: defaultdict[str, int] = defaultdict(int)
    device_s: defaultdict[str, float] = defaultdict(float)
    for course in courses:
        tasks[course.task.user] += 1
        last_s = end_s if course.ended_s is None else course.ended_s
        used = [*((step.at_s, step.milli) for step in course.steps), (last_s, 0.0)]
        for (at_s, milli), (next_s, _) in pairwise(used):
            device_s[course.task.user] += milli * max(0.0, next_s - at_s) / DEVICE_MILLI
    return tuple(
        User(
            name, tasks[name], device_s[name], wanted.get(name, 0.0),
            got[name] / wanted[name] / DEVICE_MILLI / queues.of(name).weight if wanted.get(name) else 0.0,
        )
        for name in sorted(tasks)
    )  # fmt: skip


def _bounds(courses: Sequence[Course], queues: Queues, end_s: float) -> list[Longest]:
    """Return of each task how long it waited, and what that might have been at most."""
    rules = [queues.of(course.task.user).longest_wait_s for course in courses]
    began = [end_s if course.started_s is None else course.started_s for course in courses]
    by_start = sorted(range(len(courses)), key=began.__getitem__)
    runs: dict[int, float] = {}
    longest_s = 0.0
    for index in by_start:
        runs[index] = longest_s
        ended_s = courses[index].ended_s
        longest_s = max(longest_s, (end_s if ended_s is None else ended_s) - began[index])
    late = [index for index in range(len(courses)) if began[index] - courses[index].task.arrive_s > rules[index]]
    found = []
    for index, course in enumerate(courses):
        waited_s = max(0.0, began[index] - course.task.arrive_s)
        ahead = 0
        if waited_s > rules[index]:
            aged_s = course.task.arrive_s + rules[index]
            ahead = sum(
                courses[other].task.arrive_s <= course.task.arrive_s and began[other] > aged_s
                for other in late
                if other != index
            )
        found.append(Longest(course.task.name, waited_s, rules[index], ahead, runs[index]))
    return found
