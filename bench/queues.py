"""Queues, gangs and priorities over time: a synthetic week, openb's times, thousands of random orders of events.

All of it is the code of a live cluster in virtual time (`sharepod simulate --week` and `--times` do the same). A job's
wait ends when its work begins. A high one that a round has passed over is held up, since it came, while it would fit if
all lower ones were gone: that follows from where pods are alone (witness.py). What low jobs use is of what the others
leave of the devices' time, while low jobs want more: processors or memory that are short, and devices that are kept for
gangs or are in pieces, count against it. Small low jobs may use what is idle on their devices up to their limits, as
with the arbiter; weeks in which nobody may are there, too. Beside it is what it is of the most that low jobs could use
if each of them could be moved anywhere (packing.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.density import double
from bench.scale import FULL, Scale
from bench.table import Line
from sharepod.cli.play import listed
from sharepod.scheduler.ask import PodAsk
from sharepod.scheduler.course import Task
from sharepod.scheduler.courses import Result, judge
from sharepod.scheduler.queues import Queues
from sharepod.scheduler.timeline import Timeline
from sharepod.scheduler.trace import read_nodes
from sharepod.scheduler.week import HIGH, week_nodes, week_tasks
from sharepod.scheduler.witness import Witness

OPENB = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "openb"
WEEKS = ((2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (8, 0))
"""Nodes and seeds of whole weeks."""
ORDERS = 3_000
ONE_IN = 60
"""Of openb's nodes: with all of them nobody would ever wait."""
HIGH_S = 2.0
LOW = 0.95
DAY_S, HOUR_S = 86_400.0, 3_600.0
SIZES = (
    (1, "usual", 7.0), (1, "crowded", 4.0), (4, "light", 1.8), (2, "heavy", 0.8), (1, "light", 7.0), (1, "heavy", 1.8),
    (2, "usual", 7.0), (2, "crowded", 3.0), (4, "heavy", 0.8), (4, "usual", 2.8), (8, "usual", 1.8),
    (8, "crowded", 0.8), (16, "usual", 0.8), (16, "crowded", 0.6),
)  # fmt: skip
"""Nodes, load and days."""


def played(nodes: Sequence[Any], tasks: Sequence[Task]) -> tuple[Result, Timeline, Witness]:
    """Play tasks under the default rules until the last one has ended."""
    line, witness = _watched(nodes, tasks, float("inf"))
    courses = list(line.courses.values())
    fits = {course.task.name: line.fits(course.task) for course in courses}
    devices = sum(node.devices for node in nodes)
    return judge(courses, lambda one: fits[one.task.name], devices, line.queues, line.now_s), line, witness


def _watched(nodes: Sequence[Any], tasks: Sequence[Task], until_s: float) -> tuple[Timeline, Witness]:
    line = Timeline(nodes, Queues())
    line.expect(tasks)
    witness = Witness(line, nodes, min(task.priority for task in tasks))
    line.play(tasks, until_s, witness.look)
    witness.end()
    return line, witness


def _held_up_s(witness: Witness) -> float:
    """Return for how long at most one of the highest priority was held up; also by what was kept for others."""
    return max((denial.lasted_s for denial in witness.denials if denial.priority == HIGH), default=0.0)


def _time(seconds: float) -> str:
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.1f} s"


def _waits(result: Result) -> str:
    return "; ".join(
        f"{waits.priority}: {_time(waits.median_s)} / {_time(waits.p95_s)} / {_time(waits.longest_s)}"
        for waits in result.waits
    )


def _losses(result: Result) -> str:
    return "; ".join(
        f"{waits.priority}: {waits.paused} paused, {waits.evicted} evicted, {waits.lost_device_s / HOUR_S:.1f} h"
        for waits in result.waits
        if waits.paused or waits.evicted
    )


def _starving(what: str, result: Result) -> Line:
    longest = result.longest
    text = f"{_time(longest.waited_s)} of {_time(longest.bound_s)} ({longest.task}), {result.over_bound} late"
    met = result.over_bound == 0 and result.unended == 0
    return Line("queues", f"{what}: nobody starves: the longest wait, and its bound", "no job late", text, met)


def weeks(cases: Sequence[tuple[int, int]]) -> list[Line]:
    """Play synthetic weeks."""
    lines: list[Line] = []
    for count, seed in cases:
        nodes = week_nodes(count)
        result, line, witness = played(nodes, week_tasks(nodes, seed))
        what = f"week {seed}, {result.devices} devices, {sum(waits.tasks for waits in result.waits)} jobs"
        [high] = [waits for waits in result.waits if waits.priority == HIGH]
        held_up_s = _held_up_s(witness)
        text = f"{high.p99_s:.1f} / {high.longest_s:.1f} s; {held_up_s:.1f} s"
        low, packed = result.low_use or 0.0, result.low_packed or 0.0
        detail: dict[str, object] = {"rounds": line.rounds, "waits": [str(waits) for waits in result.waits]}
        lines += [
            Line("queues", f"{what}: wait of the highest priority, p99 / longest; while lower ones held its room",
                 f"≤ {HIGH_S:g} s", text, held_up_s <= HIGH_S, detail=detail),
            Line("queues", f"{what}: low jobs use, of what the others leave (of what they could, packed at best)",
                 f"≥ {LOW:g}", f"{low:.3f} ({packed:.3f})", low >= LOW),
            _starving(what, result),
            Line("queues", f"{what}: used; Jain's index per user", "",
                 f"{result.used:.3f}; {result.jain or 1:.3f}", None),
            Line("queues", f"{what}: waits by priority, median / p95 / longest", "", _waits(result), None),
            Line("queues", f"{what}: what yielded, by priority, and the device time lost", "", _losses(result), None),
        ]  # fmt: skip
    return lines


def by_requests(cases: Sequence[tuple[int, int]]) -> Line:
    """Play weeks in which no job may use more than it asks for, and return what low ones use."""
    uses: list[float] = []
    for count, seed in cases:
        nodes = week_nodes(count)
        result, _, _ = played(nodes, [replace(task, ask=_by_request(task.ask)) for task in week_tasks(nodes, seed)])
        uses.append(result.low_use or 0.0)
    text = f"{fmean(uses):.3f} ({min(uses):.3f} to {max(uses):.3f})"
    what = f"{len(cases)} weeks in which nobody may use more than he asks for"
    return Line("queues", f"{what}: low jobs use, of what the others leave, mean (least to most)", "", text, None)


def _by_request(ask: PodAsk) -> PodAsk:
    return replace(ask, shares=tuple(replace(share, limit_milli=None) for share in ask.shares))


def sizes(cases: Sequence[tuple[int, str, float]]) -> Line:
    """Play the first days of weeks on clusters of so many nodes, under other loads, and return who was held up."""
    held_up_s, jobs = 0.0, 0
    for seed, (count, load, days) in enumerate(cases):
        nodes = week_nodes(count)
        line, witness = _watched(nodes, double("rounds_world").loaded(nodes, seed, load), days * DAY_S)
        held_up_s = max(held_up_s, _held_up_s(witness))
        jobs += sum(course.task.priority == HIGH for course in line.courses.values())
    what = f"{len(cases)} clusters of 1 to {max(count for count, _, _ in cases)} nodes, light to crowded, {jobs} jobs"
    return Line(
        "queues", f"{what} of the highest priority: longest wait while lower ones held the room", f"≤ {HIGH_S:g} s",
        f"{held_up_s:.1f} s", held_up_s <= HIGH_S,
    )  # fmt: skip


def openb(most: int) -> list[Line]:
    """Play openb's pods at their times, on a few of its nodes."""
    if not OPENB.exists():
        return []
    nodes = read_nodes(OPENB / "openb_node_list_gpu_node.csv.gz")[::ONE_IN]
    tasks = listed(OPENB / "openb_pod_list_default.csv.gz")[:most]
    result, _, _ = played(nodes, tasks)
    what = f"openb's times, {result.devices} devices, {sum(waits.tasks for waits in result.waits)} pods"
    return [
        _starving(what, result),
        Line("queues", f"{what}: used; waits by priority, median / p95 / longest", "",
             f"{result.used:.3f}; {_waits(result)}", None),
        Line("queues", f"{what}: what yielded, by priority, and the device time lost", "", _losses(result), None),
    ]  # fmt: skip


def orders(count: int) -> Line:
    """Play random jobs in random orders; after each round gangs are whole or not there, devices promised once."""
    world = double("rounds_world")
    rounds = 0
    for seed in range(count):
        line, tasks = world.random_order(seed)
        line.play(tasks, float("inf"), lambda _, line=line: world.check(line))
        for course in line.courses.values():
            if course.ended_s is None and line.fits(course.task):
                raise RuntimeError(f"seed {seed}: {course.task.name} has not ended: a deadlock")
        rounds += line.rounds
    what = f"{count} random orders of gangs, priorities, ends: whole or not there after each round, and all end"
    return Line("queues", what, "always", f"always ({rounds} rounds)", met=True)


def measure(scale: Scale) -> list[Line]:
    """Measure waits, losses and fairness over time."""
    if scale.agents >= FULL.agents:
        return [*weeks(WEEKS), by_requests(WEEKS), sizes(SIZES), *openb(100_000), orders(ORDERS)]
    if scale.agents >= 1000:
        return [*weeks(WEEKS[:1]), sizes(SIZES[:4]), *openb(2_000), orders(ORDERS // 10)]
    return [orders(20)]
