"""Measures how long a scheduling cycle takes in a large cluster, and how soon many gangs are released. Virtual time.

10,000 pods wait for 1,000 full nodes of eight devices. Before each cycle some pods end, and the cycle places others
there. The first cycle takes over all pods, as when the controller starts: it is shown apart. 100 gangs of 64 come to an
empty cluster, and cycles follow each other until all are released: the time of the cycles counts. One thread, no I/O.
"""

import gc
import random
import time
from dataclasses import replace

from bench.bars import figures
from bench.scale import Scale
from bench.table import Line
from sharepod.scheduler.controller.queues import Queues
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.simulation.job_run import Task
from sharepod.scheduler.simulation.timeline import Timeline

NODES = 1_000
DEVICES = 8
WAITING = 10_000
GANGS, SIZE = 100, 64
ROUNDS = 40
ROUND_MS = 200
GANGS_S = 10
SEED = 3


def _nodes(count: int) -> list[NodeSpec]:
    return [NodeSpec(f"node-{number:04d}", 192_000, 2_000_000, DEVICES, "H200", 144_384) for number in range(count)]


def _request(milli: int) -> PodRequest:
    return PodRequest(500 + 10 * milli, 1_000 + 100 * milli, (ShareRequest(milli, 1, 50 * milli),))


def _full(waiting: int, nodes: int) -> Timeline:
    """Return a full cluster in which `waiting` pods wait."""
    chance = random.Random(SEED)
    timeline = Timeline(_nodes(nodes), Queues())
    for number in range(nodes * DEVICES):
        timeline.come(Task(f"r{number}", f"user{number % 40}", 100, _request(1000), 0.0, 1e9))
    while timeline.step():
        timeline.now_s += 1
    for number in range(waiting):
        milli = chance.choice((100, 200, 250, 300, 470, 500, 700, 810, 1000))
        priority = chance.choice((0, 0, 100))
        timeline.come(Task(f"w{number}", f"user{chance.randrange(40)}", priority, _request(milli), timeline.now_s, 1e9))
    return timeline


def rounds(waiting: int, nodes: int, count: int) -> list[float]:
    """Return how long each cycle took in ms: the first one, and those after some pods have ended."""
    timeline, took = _full(waiting, nodes), []
    gc.collect()
    gc.freeze()  # as the scheduler does
    chance = random.Random(SEED)
    running = [name for name, job_run in timeline.job_runs.items() if job_run.pace]
    for _ in range(count):
        began = time.perf_counter()
        timeline.step()
        took.append((time.perf_counter() - began) * 1e3)
        timeline.now_s += 1
        for name in chance.sample(running, nodes * DEVICES // 500):  # a five-hundredth of the devices gets free
            running.remove(name)
            timeline.end(name)
    gc.unfreeze()
    return took


def gangs(count: int, size: int, nodes: int) -> float:
    """Return how long the release of the gangs took, in seconds of cycles."""
    timeline = Timeline(_nodes(nodes), Queues())
    for number in range(count):
        timeline.come(Task(f"g{number}", f"user{number % 10}", 0, _request(1000), 0.0, 1e9, size, size))
    took = 0.0
    for _ in range(10 * count):
        began = time.perf_counter()
        timeline.step()
        took += time.perf_counter() - began
        timeline.now_s += 1
        if all(job_run.started_s is not None for job_run in timeline.job_runs.values()):
            return took
    raise RuntimeError("not all gangs were released into a cluster that has room for them")


def measure(_scale: Scale) -> list[Line]:
    """Measure a cycle and the release of many gangs."""
    first, *took = rounds(WAITING, NODES, 1 + ROUNDS)
    p50, p95 = (figures.percentile([round(value * 1e6) for value in took], percent) / 1e6 for percent in (50, 95))
    gangs_s = gangs(GANGS, SIZE, NODES)
    what = f"a scheduling cycle: {WAITING} pods wait, {NODES} nodes, p50 / p95 of {ROUNDS}"
    line = Line(
        what, f"p95 ≤ {ROUND_MS} ms",
        f"{p50:.0f} / {p95:.0f} ms (the first one {first:.0f})", p95 <= ROUND_MS, detail={"ms": took},
    )  # fmt: skip
    what = f"{GANGS} gangs of {SIZE} are released into {NODES} empty nodes after"
    return [
        line,
        replace(line, what=what, bar=f"≤ {GANGS_S} s", result=f"{gangs_s:.1f} s", met=gangs_s <= GANGS_S, detail={}),
    ]
