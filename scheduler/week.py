"""A synthetic week of a cluster, so that the rules of queues can be tried: the same seed, the same week. Pure.

Four kinds of users come, in proportion to the devices. By day teams work interactively: small shares of high priority,
in bursts after a meeting or a break. At night they train: gangs of whole devices, some of them elastic. Some jobs run
for days. And users with batch of low priority ask for more than is left, two of them for most of it; their shares may
use what is idle on their devices, too. Together they ask for a little more than there is until Friday; the weekend is
for what has piled up.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.ask import DEVICE_MILLI, NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.course import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
WORKDAYS: Final = 5
HIGH, MIDDLE, LOW = 1000, 100, 0
"""Interactive, training, batch."""
NODES: Final = 8
NODES_MAX: Final = 1000
DEVICES: Final = 8
DEVICE_MIB: Final = 144_384
_TEAMS: Final = ("ads", "search", "speech", "vision", "robots", "maps")
_BATCH: Final = {"labels": 0.42, "crawl": 0.30, "eval": 0.12, "science": 0.10, "interns": 0.06}
"""Users with batch, and their part of it."""


@dataclass(frozen=True, slots=True)
class _Pods:
    """One kind of job, of which the parts of devices and the times are drawn."""

    milli: tuple[int, ...]
    mib: tuple[int, ...]
    median_s: float
    spread: float
    """Of the logarithm of the run time."""
    least_s: float
    most_s: float


_INTERACTIVE: Final = _Pods((100, 200, 250, 300, 500), (8_000, 16_000, 24_000), 900.0, 1.0, 30.0, 4 * HOUR_S)
_TRAINING: Final = _Pods((1000,), (60_000, 100_000), 2.5 * HOUR_S, 0.5, 1200.0, 8 * HOUR_S)
_LONG: Final = _Pods((1000,), (80_000,), 2.5 * DAY_S, 0.2, DAY_S, 4 * DAY_S)
_SMALL_BATCH: Final = _Pods((300, 500, 700), (16_000, 32_000), 1200.0, 0.9, 60.0, 4 * HOUR_S)
_WHOLE_BATCH: Final = _Pods((1000,), (30_000, 70_000), 2400.0, 0.9, 120.0, 8 * HOUR_S)


def week_nodes(count: int = NODES) -> list[NodeSpec]:
    """Return nodes of eight devices."""
    return [
        NodeSpec(f"node-{number:03d}", 192_000, 2_000_000, DEVICES, "H200", DEVICE_MIB)
        for number in range(1, count + 1)
    ]


def week_tasks(nodes: Sequence[NodeSpec], seed: int) -> list[Task]:
    """Return a week's tasks for a cluster, in the order in which they come."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    devices = sum(node.devices for node in nodes)
    tasks = [
        *_interactive(chance, devices), *_training(chance, devices), *_long(chance, devices), *_batch(chance, devices),
    ]  # fmt: skip
    return sorted(tasks, key=lambda task: (task.arrive_s, task.name))


def _interactive(chance: random.Random, devices: int) -> Iterator[Task]:
    """Yield what people start while they work: bursts, and one by one between them."""
    for day in range(7):
        weight = 1.0 if day < WORKDAYS else 0.15
        for team in _TEAMS:
            bursts = [9.25, 11.0, 13.5, 15.5, 17.0]
            for number in range(_rounded(chance, weight * devices * 1.1)):
                hour = chance.choice(bursts) + chance.expovariate(8.0) if chance.random() < 0.7 else chance.gauss(14, 3)
                at_s = day * DAY_S + min(23.9, max(0.0, hour)) * HOUR_S
                ask = _ask(chance, _INTERACTIVE, share_class="latency")
                yield Task(f"{team}-try-{day}-{number}", team, HIGH, ask, at_s, _run_s(chance, _INTERACTIVE))


def _training(chance: random.Random, devices: int) -> Iterator[Task]:
    """Yield what is started in the evening: gangs, of which a third is elastic."""
    largest = max(2, min(32, devices // 4))
    for night in range(6):
        wanted_s = 0.55 * devices * 12 * HOUR_S
        number = 0
        while wanted_s > 0:
            number += 1
            team = chance.choice(_TEAMS)
            size = min(largest, chance.choice((2, 4, 4, 8, 8, 16, 32)))
            least = max(1, size // 2) if chance.random() < 0.33 else size
            run_s = _run_s(chance, _TRAINING)
            at_s = night * DAY_S + chance.gauss(20.0, 1.5) * HOUR_S
            ask = _ask(chance, _TRAINING)
            yield Task(f"{team}-train-{night}-{number}", team, MIDDLE, ask, at_s, run_s, size, least)
            wanted_s -= size * run_s


def _long(chance: random.Random, devices: int) -> Iterator[Task]:
    """Yield the few that run for days: eight devices of one node, or as many as a quarter of the cluster has."""
    for number in range(max(1, devices // 40)):
        size = max(1, min(8, devices // 4))
        at_s = chance.uniform(0.0, 2.5) * DAY_S
        ask = _ask(chance, _LONG)
        yield Task(f"science-long-{number}", "science", MIDDLE, ask, at_s, _run_s(chance, _LONG), size, size)


def _batch(chance: random.Random, devices: int) -> Iterator[Task]:
    """Yield batch of low priority, in heaps of some dozens."""
    for user, part in _BATCH.items():
        wanted_s = part * 0.62 * devices * WORKDAYS * DAY_S
        heap = 0
        while wanted_s > 0:
            heap += 1
            at_s = chance.uniform(0.0, WORKDAYS * DAY_S)
            kind = chance.choice((_SMALL_BATCH, _WHOLE_BATCH))
            for number in range(max(1, round(chance.expovariate(1 / (devices * part))))):
                ask, run_s = _ask(chance, kind, share_class="batch"), _run_s(chance, kind)
                yield Task(f"{user}-{heap}-{number}", user, LOW, ask, at_s + number, run_s)
                wanted_s -= run_s * ask.milli / 1000


def _ask(chance: random.Random, kind: _Pods, share_class: str = "standard") -> PodAsk:
    milli = chance.choice(kind.milli)
    limit = DEVICE_MILLI if share_class == "batch" else None
    share = ShareAsk(milli, 1, chance.choice(kind.mib), share_class=share_class, limit_milli=limit)
    return PodAsk(max(500, milli * 12), max(2_000, milli * 120), (share,))


def _run_s(chance: random.Random, kind: _Pods) -> float:
    return min(kind.most_s, max(kind.least_s, kind.median_s * math.exp(chance.gauss(0.0, kind.spread))))


def _rounded(chance: random.Random, value: float) -> int:
    """Return one of the two whole numbers beside a value, so that on average it is that."""
    return math.floor(value + chance.random())
