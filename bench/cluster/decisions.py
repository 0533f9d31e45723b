"""Measures how long placement decides in a large cluster: 10,000 nodes of eight devices, 100,000 pods on them.

A decision is what a scheduling cycle does for a pod: find the candidates that fit, and the best of them. The snapshot
is asked twice, and the pod then counts as placed. Between decisions pods end, devices are measured again, and the
policy looks at what is scarce. Names play no part. One thread: its processor time is shown beside the elapsed time.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.scale import Scale
from bench.table import Line
from sharepod.scheduler.placement.mix import Mix
from sharepod.scheduler.placement.native import Place, Snapshot, Verdict
from sharepod.scheduler.placement.policy import DEFAULT, Numbers, Outline, Policy
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.placement.tables import NativePolicy

NODES = 10_000
DEVICES = 8
PODS = 100_000
FEWER_PODS = 50_000
MODELS = ("A100", "H100", "H200", "L40S")
BARS_MS = {1_000: 5.0, 10_000: 30.0}
REFRESH_BAR_MS = 2.0
SLOPE = (500, 10_000)
REFRESH = 50
SEED = 5
Requests = Sequence[PodRequest]


def _requests(chance: random.Random) -> list[PodRequest]:
    """Return pods' requests: mostly shares, some whole devices, some several; a third of the shares are latency."""
    requests = []
    for _ in range(2_000):
        kind = chance.random()
        models = frozenset(chance.sample(MODELS, 2)) if chance.random() < 0.1 else frozenset[str]()
        share_class = chance.choice(("latency", "standard", "batch"))
        milli = 10 * chance.choice((5, 10, 15, 20, 25, 30, 35, 40, 47, 50, 60, 70, 81))
        if kind < 0.72:
            shares: tuple[ShareRequest, ...] = (ShareRequest(milli, share_class=share_class, limit_milli=1000),)
        elif kind < 0.82:
            first = ShareRequest(min(milli, 500), share_class="latency", limit_milli=1000)
            shares = (first, ShareRequest(200, share_class="batch", limit_milli=400))
        elif kind < 0.94:
            shares = (ShareRequest(1000),)
        else:
            shares = (ShareRequest(1000, chance.choice((2, 2, 4, 8))),)
        devices = sum(share.milli * share.devices for share in shares) / 1000
        cpu_milli = int(500 * chance.randint(1, 24) * devices)
        requests.append(PodRequest(cpu_milli, int(8_192 * devices), shares, models))
    return requests


@dataclass(slots=True)
class Cluster:
    """The snapshot, and the pods on it."""

    snapshot: Snapshot
    policy: Policy
    requests: Requests
    running: list[tuple[PodRequest, Place]]


def cluster(nodes: int = NODES, pods: int = PODS) -> tuple[Cluster, float]:
    """Return a full cluster, and how many seconds its policy took to make."""
    chance = random.Random(SEED)
    specs = [
        NodeSpec(f"node-{n}", 128_000, 1_048_576, DEVICES, chance.choice(MODELS), chance.choice((49_152, 81_920)))
        for n in range(nodes)
    ]
    snapshot = Snapshot(specs, capacity=nodes + nodes // 10)
    requests = _requests(chance)
    began = time.perf_counter()
    numbers = Numbers.of(DEFAULT, Outline.of(snapshot), Mix.of(requests))
    took = time.perf_counter() - began
    made = Cluster(snapshot, Policy.made_of(numbers, snapshot), requests, [])
    for _ in range(pods):
        request = chance.choice(requests)
        for window in (8, 64, 512):  # the more nodes are asked, the fuller the cluster gets
            ranking = snapshot.rank_array(request, made.policy.native, chance.sample(range(nodes), min(window, nodes)))
            if ranking.best() >= 0:
                break
        if ranking.best() >= 0:
            place = ranking.place(ranking.best())
            snapshot.take(request, place)
            made.running.append((request, place))
    linked = [0xFF & ~(1 << device) for device in range(DEVICES)]  # by device: bits of the others
    numa_nodes = [device // 4 for device in range(DEVICES)]
    for index, spec in enumerate(specs):
        snapshot.set_links(index, linked if spec.model != "L40S" else [0] * DEVICES, numa_nodes)
        for device in range(DEVICES):
            _measure(snapshot, chance, index, device)
    return made, took


def _measure(snapshot: Snapshot, chance: random.Random, index: int, device: int) -> None:
    """Set the measured use of a node's device anew, at random."""
    snapshot.set_use(
        index,
        device,
        busy_milli=chance.randrange(1001),
        waited_milli=chance.randrange(300),
        latency_milli=chance.choice((0, 0, 200, 400)),
        limits_milli=1000 * chance.randrange(6),
    )


def decide(
    snapshot: Snapshot, policy: NativePolicy, request: PodRequest, candidates: NDArray[np.int32]
) -> Place | None:
    """Return the best place among the candidates that fit."""
    fitting = candidates[snapshot.fit_array(request, candidates) == Verdict.FITS]
    ranking = snapshot.rank_array(request, policy, fitting)
    best = ranking.best()
    return ranking.place(best) if best >= 0 else None


@dataclass(slots=True)
class Times:
    """The times of decisions in milliseconds: elapsed, and the processor's."""

    passed_ms: list[float]
    worked_ms: list[float]

    def told(self) -> str:
        """Return p99 and median, and p99 of the processor time."""
        median = statistics.median(self.passed_ms)
        return f"{_p99(self.passed_ms):.2f} ms (median {median:.2f}, p99 of processor time {_p99(self.worked_ms):.2f})"


def decisions(made: Cluster, candidates: int, count: int) -> Times:
    """Decide about `count` pods."""
    chance, snapshot = random.Random(candidates), made.snapshot
    numbers = np.random.default_rng(candidates)
    nodes = len(snapshot.nodes)
    times = Times([], [])
    gc.collect()
    gc.freeze()  # else the collector would scan the running pods again and again
    for number in range(count):
        request = chance.choice(made.requests)
        among = numbers.choice(nodes, candidates, replace=False).astype(np.int32)
        began, worked = time.perf_counter(), time.thread_time()
        place = decide(snapshot, made.policy.native, request, among)
        times.worked_ms.append((time.thread_time() - worked) * 1e3)
        times.passed_ms.append((time.perf_counter() - began) * 1e3)
        if place is not None:
            snapshot.take(request, place)
            made.running.append((request, place))
        snapshot.give_back(*made.running.pop(chance.randrange(len(made.running))))
        _measure(snapshot, chance, chance.randrange(nodes), chance.randrange(DEVICES))
        if number % REFRESH == 0:
            made.policy.refresh()
    gc.unfreeze()
    return times


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _each(count: int, act: Callable[[], object]) -> list[float]:
    """Return how long each of `count` calls took, in ms."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        took.append((time.perf_counter() - began) * 1e3)
    return took


def _described(made: Cluster) -> str:
    full = 1 - sum(made.snapshot.free_milli.values()) / (len(made.snapshot.nodes) * DEVICES * 1000)
    return f"{len(made.snapshot.nodes):,} nodes, {len(made.running):,} pods, {full:.0%} full"


def _judged(made: Cluster, count: int) -> list[Line]:
    """Measure decisions among as many candidates as each bar names."""
    lines = []
    for candidates, bar_ms in BARS_MS.items():
        where = _described(made)
        times = decisions(made, candidates, count)
        met = _p99(times.passed_ms) <= bar_ms
        what = f"a decision among {candidates:,} candidates, p99: {where}"
        lines.append(Line(what, f"≤ {bar_ms:g} ms", times.told(), met))
    return lines


def _slope(made: Cluster, count: int) -> Line:
    """Measure that a decision's time grows no faster than its candidates."""
    few, many = (statistics.median(decisions(made, candidates, count).worked_ms) for candidates in SLOPE)
    most = SLOPE[1] / SLOPE[0]
    return Line(
        f"a decision among {SLOPE[1]:,} candidates ÷ one among {SLOPE[0]:,}, medians of processor time",
        f"≤ {most:g}",
        f"{many / few:.1f} ({many:.2f} / {few:.3f} ms)",
        many / few <= most,
    )


def measure(scale: Scale) -> list[Line]:
    """Decide about pods in a cluster that is nearly full, and in one where nearly every node has room."""
    count = max(200, scale.requests // 3)
    made, numbers_s = cluster()
    lines = [*_judged(made, count), _slope(made, count)]
    refresh = statistics.median(_each(50, made.policy.refresh))
    what, bar = f"a look at what is scarce: {NODES:,} nodes", f"≤ {REFRESH_BAR_MS:g} ms"
    lines.append(Line(what, bar, f"{refresh:.2f} ms", refresh <= REFRESH_BAR_MS))
    set_ms = statistics.median(_each(1000, lambda: made.snapshot.set_left(0, 1, 1, [500] * DEVICES, [500] * DEVICES)))
    lines.append(Line("what is left of a node set anew", "", f"{set_ms * 1e3:.1f} µs", None))
    kinds = len(Mix.of(made.requests).parts)
    lines.append(Line(f"the numbers of a policy, for a mix of {kinds:,} kinds", "", f"{numbers_s:.2f} s", None))
    return lines + _judged(cluster(pods=FEWER_PODS)[0], count)
