"""Neighbours that mostly idle: a latency share beside saturating batch, and small shares beside a trainer."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from bench import figures
from bench.gpu.host import Host
from bench.gpu.node import START_DELAY_NS, Node
from bench.table import Line, milli
from rig.loads import MS, Load, Terms

PERIOD_NS = 20 * MS
REQUESTS = {"work": "4ms", "unit": "500us", "period": "20ms"}
BATCH = Load(Terms(60, share_class="batch"), "saturate", {"unit": "1ms", "depth": 8})
TRAINER = Load(Terms(60), "sync", {"unit": "1ms", "burst": 10, "gap": "3ms"})
DUTY = Load(Terms(10), "periodic", {"unit": "1ms", "work": "1ms", "period": "50ms"})


@dataclass(frozen=True, slots=True)
class Service:
    """What one run of the latency share gave."""

    p99_ns: float
    kept: float
    """The part of the time left by the latency share that the others used."""


def _serve(host: Host, beside: Mapping[str, Load], *, hook: bool) -> Service:
    requests = host.scale.requests
    latency = Load(Terms(25, share_class="latency"), "periodic", {**REQUESTS, "count": requests})
    length_ns = (requests + 2) * PERIOD_NS
    steps = max(1, (length_ns - 2 * host.scale.settle_ns) // host.scale.step_ns)
    with Node(host, hook=hook) as node:
        programs = node.start({**beside, "latency": latency}, length_ns / 1e9)
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        for program in programs.values():
            program.go(begin_ns, begin_ns + length_ns)
        run = node.collect(begin_ns, steps)
    left = 1 - figures.utilisation(run.samples, ["latency"])
    latencies = run.results["latency"].latencies_ns
    return Service(figures.percentile(latencies, 99), figures.utilisation(run.samples, beside) / left)


def latency(host: Host) -> list[Line]:
    """Measure p99 of a latency share beside batch, against its own solo p99 without the hook, and what batch keeps."""
    solo = _serve(host, {}, hook=False).p99_ns
    shared = [_serve(host, {"batch": BATCH}, hook=True) for _ in range(host.scale.latency_runs)]
    bare = _serve(host, {"batch": BATCH}, hook=False)
    p99, kept = figures.median([s.p99_ns for s in shared]), figures.median([s.kept for s in shared])
    detail = {"solo_p99": milli(solo), "p99": [milli(s.p99_ns) for s in shared], "kept": [s.kept for s in shared]}
    what = f"p99 ÷ solo p99: latency share beside batch, {host.scale.requests} requests"
    text, without = (f"{ns / solo:.2f} × ({milli(ns)})" for ns in (p99, bare.p99_ns))
    return [
        Line(what, "≤ 1.3 ×", text, p99 <= 1.3 * solo, without, detail=detail),
        Line("batch keeps, of what is left", "≥ 0.90", f"{kept:.3f}", kept >= 0.9, f"{bare.kept:.3f}", detail=detail),
    ]


def duty(host: Host) -> list[Line]:
    """Measure what a trainer keeps of its solo throughput beside four shares that work 1 ms every 50 ms."""
    duties = {f"duty{i}": DUTY for i in range(4)}

    def rate(beside: Mapping[str, Load], *, hook: bool) -> float:
        with Node(host, hook=hook) as node:
            samples = node.run({"trainer": TRAINER, **beside}, host.scale.short_steps).samples
            return figures.utilisation(samples, ["trainer"])

    solo = rate({}, hook=False)
    kept, bare = rate(duties, hook=True) / solo, rate(duties, hook=False) / solo
    what = "trainer beside four 2 %-duty shares ÷ alone"
    return [Line(what, "≥ 0.90", f"{kept:.3f}", kept >= 0.9, f"{bare:.3f}", detail={"solo_busy": solo})]
