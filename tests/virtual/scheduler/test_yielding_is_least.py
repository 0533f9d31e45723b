"""What is lost when others yield, against the least that could be: every set of those who might is tried."""

from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from rounds_world import DEFAULT, DEVICE_MIB, ask, nodes

from sharepod.scheduler.course import Task
from sharepod.scheduler.job import key_of
from sharepod.scheduler.placing import Placer
from sharepod.scheduler.row import GONE
from sharepod.scheduler.timeline import Timeline
from sharepod.scheduler.yielding import Yielding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sharepod.scheduler.holders import Holder
    from sharepod.scheduler.pod import Pod

SLACK = 1.10
NOW_S = 5000.0


def full_cluster(chance: random.Random, *, memory: bool) -> Timeline:
    line = Timeline(nodes(chance.randint(1, 3), 2), DEFAULT)
    at_s = 0.0
    for number in range(9):
        at_s += chance.uniform(1, 1500)
        line.now_s = at_s
        milli = chance.choice((200, 300, 500, 700, 1000))
        size = chance.choice((1, 1, 1, 2))
        mib = chance.choice((DEVICE_MIB // 4, DEVICE_MIB // 2)) if memory else 1000
        devices = chance.choice((1, 1, 2)) if size == 1 else 1
        line.come(
            Task(f"t{number}", f"u{number % 3}", chance.choice((0, 5)), ask(milli, devices, mib), at_s, 1e6, size, size)
        )
        line.step()
    return line


def wanted(line: Timeline, chance: random.Random, *, memory: bool) -> list[Pod]:
    size = chance.choice((1, 1, 2))
    mib = DEVICE_MIB // 2 if memory else 1000
    line.come(Task("high", "boss", 10, ask(chance.choice((400, 600, 1000)), 1, mib), NOW_S, 1.0, size, size))
    return sorted((pod for pod in line.cluster.pods() if pod.priority == 10), key=lambda pod: pod.name)


def subsets(holders: list[Holder]) -> Iterator[tuple[Holder, ...]]:
    for count in range(len(holders) + 1):
        yield from combinations(holders, count)


def fits(line: Timeline, pods: list[Pod], what: dict[str, str]) -> bool:
    for uid, how in what.items():
        line.cluster.presume(uid, how, NOW_S)
    placer = Placer(line.cluster, NOW_S)
    placed = placer.place(pods)
    placer.undo(placed or [])
    for uid in what:
        line.cluster.presume(uid, "", NOW_S)
    line.cluster.settle(NOW_S)
    return placed is not None


def least(line: Timeline, pods: list[Pod], holders: list[Holder]) -> tuple[int, int] | None:
    """Return the least work that has to be lost, and where none has to be the least milli that have to be paused."""
    pauses = [
        sum(holder.milli for holder in chosen)
        for chosen in subsets(holders)
        if fits(line, pods, {pod.uid: "pause" for holder in chosen for pod in holder.pods})
    ]
    if pauses:
        return 0, min(pauses)
    losses = []
    for chosen in subsets(holders):
        what = {pod.uid: "pause" for holder in holders for pod in holder.pods}
        what |= {pod.uid: GONE for holder in chosen for pod in holder.pods}
        if fits(line, pods, what):
            losses.append(sum(holder.lost_ms(NOW_S) for holder in chosen))
    return (min(losses), 0) if losses else None


@pytest.mark.parametrize("memory", [False, True], ids=["time", "memory"])
@pytest.mark.parametrize("block", range(4))
def test_no_more_is_lost_than_the_least_and_a_tenth(block: int, *, memory: bool) -> None:
    ratios = []
    for seed in range(block * 10, block * 10 + 10):
        chance = random.Random(f"{seed} {memory}")
        line = full_cluster(chance, memory=memory)
        pods = wanted(line, chance, memory=memory)
        line.memory.look(line.cluster, (), NOW_S)
        holders = [holder for own in line.memory.holders.values() for holder in own]
        if fits(line, pods, {}):
            continue
        exact = least(line, pods, holders)
        plan = Yielding(line.cluster, Placer(line.cluster, NOW_S), holders, (), NOW_S).make_room(pods, 10)
        assert (plan is None) == (exact is None), f"seed {seed}"
        if plan is None or exact is None:
            continue
        gone, paused = ({key_of(pod) for pod in some} for some in (plan.evicted, plan.paused))
        own = {key_of(holder.pods[0]): holder for holder in holders}
        found = sum(own[key].lost_ms(NOW_S) for key in gone), sum(own[key].milli for key in paused)
        assert bool(found[0]) == bool(exact[0]), f"seed {seed}: evicts where pausing is enough"
        ratios.append((found[0] / exact[0] if exact[0] else found[1] / exact[1], seed))
    assert ratios
    assert max(ratios)[0] <= SLACK, f"of {len(ratios)} cases the worst: {max(ratios)}"
