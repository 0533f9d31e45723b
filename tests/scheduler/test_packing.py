"""The most that the lowest priority could use, against every way to put its jobs on the devices."""

from __future__ import annotations

import random
from itertools import product

import pytest
from rounds_world import DEFAULT, ask, loaded, nodes, task

from sharepod.scheduler.courses import judge
from sharepod.scheduler.packing import Packing, held
from sharepod.scheduler.timeline import Timeline
from sharepod.scheduler.week import DAY_S, week_nodes


def best(free_milli: list[int], jobs: list[int]) -> int:
    """Return the most that jobs use together, of all ways to put each on a device or on none."""
    most = 0
    for where in product(range(-1, len(free_milli)), repeat=len(jobs)):
        pairs = list(zip(jobs, where, strict=True))
        sums = [sum(job for job, at in pairs if at == index) for index in range(len(free_milli))]
        if all(used <= free for used, free in zip(sums, free_milli, strict=True)):
            most = max(most, sum(sums))
    return most


@pytest.mark.parametrize("seed", range(40))
def test_no_packing_uses_more_and_on_one_device_one_uses_as_much(seed: int) -> None:
    chance = random.Random(seed)
    devices = 1 + seed % 3
    jobs = [chance.choice((100, 250, 300, 470, 500, 700, 1000)) for _ in range(5)]
    taken = {f"n0/{index}": chance.choice((0, 0, 200, 500, 850)) for index in range(devices)}
    packing = Packing(devices)
    packing.hold((), tuple(taken.items()))
    for milli in jobs:
        packing.offer(ask(milli), 1)
    exact = best([1000 - milli for milli in taken.values()], jobs)
    assert packing.most_milli() >= exact
    if devices == 1:
        assert packing.most_milli() == exact


def test_what_ends_is_counted_no_more() -> None:
    packing = Packing(2)
    high = held([(ask(400), (("n0/0",),))])
    packing.hold((), high)
    packing.offer(ask(700), 2)
    assert packing.most_milli() == 700, "600 of the one device take none of them"
    packing.hold(high, ())
    assert packing.most_milli() == 1400
    packing.offer(ask(700), -1)
    packing.offer(ask(300), 1)
    assert packing.most_milli() == 2000, "each device could be filled by the two; it is a bound"
    packing.offer(ask(700), -1)
    assert packing.most_milli() == 600, "likewise"


def test_pieces_that_nobody_takes_are_not_what_low_jobs_could_have_used() -> None:
    line = Timeline(nodes(1, 1), DEFAULT)
    low = [task(f"low{number}", milli=700, run_s=100.0) for number in range(3)]
    courses = line.play([*low, task("high", priority=10, milli=300, run_s=300.0)], 1e9)
    result = judge(courses, lambda _: True, 1, DEFAULT, line.now_s)
    assert result.low_use == pytest.approx(1.0, abs=0.02)
    line = Timeline(nodes(1, 1), DEFAULT)
    courses = line.play([*low, task("high", priority=10, milli=100, run_s=300.0)], 1e9)
    result = judge(courses, lambda _: True, 1, DEFAULT, line.now_s)
    assert result.low_use == pytest.approx(7 / 9, abs=0.02)
    assert result.low_packed == pytest.approx(1.0, abs=0.02)


def test_nobody_uses_more_than_a_packing_could() -> None:
    specs = week_nodes(1)
    line = Timeline(specs, DEFAULT)
    courses = line.play(loaded(specs, 1, "usual"), 2 * DAY_S)
    result = judge(courses, lambda _: True, 8, DEFAULT, line.now_s)
    assert result.low_use is not None
    assert result.low_packed is not None
    assert result.low_use < result.low_packed < 1
