"""Neighbours that mostly idle: a latency share beside saturating batch, and small shares beside a trainer."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench import figures
from bench.gemini import gemini
from bench.scale import Scale
from bench.table import Line, milli
from rig.loads import Load, Terms
from rig.node import Node

PERIOD_MS = 20
REQUESTS = {"work": "4ms", "unit": "500us", "period": f"{PERIOD_MS}ms"}
BATCH = Load(Terms(60, share_class="batch"), "saturate", {"unit": "1ms", "depth": 8})
TRAINER = Load(Terms(60), "sync", {"unit": "1ms", "burst": 10, "gap": "3ms"})
DUTY = Load(Terms(10), "periodic", {"unit": "1ms", "work": "1ms", "period": "50ms"})


@dataclass(frozen=True, slots=True)
class Service:
    """What one run of the latency share gave."""

    p99_ns: float
    kept: float
    """The part of the time left by the latency share that batch used; 0 without batch."""


def serve(requests: int, *, beside: Mapping[str, Load], hook: bool) -> Service:
    """Run `requests` requests of the latency share beside other loads."""
    latency = Load(Terms(25, share_class="latency"), "periodic", REQUESTS)
    with Node(hook=hook) as node:
        programs = {owner: node.start(owner, load) for owner, load in {**beside, "latency": latency}.items()}
        seconds = requests * PERIOD_MS // 1000
        start_ns = node.sample().now_ns + 200_000_000
        for program in programs.values():
            program.go(start_ns, start_ns + (seconds + 1) * 1_000_000_000)
        samples = node.samples(start_ns + 500_000_000, max(1, seconds - 1))
        latencies = programs["latency"].result().latencies_ns[:requests]
        for program in programs.values():
            program.result()
    left = 1 - figures.utilisation(samples, ["latency"])
    return Service(figures.percentile(latencies, 99), figures.utilisation(samples, beside) / left)


def latency(scale: Scale) -> list[Line]:
    """Measure p99 of a latency share beside batch, against its own solo p99 without the hook, and what batch keeps."""
    solo = figures.median([serve(scale.requests, beside={}, hook=False).p99_ns for _ in range(scale.latency_runs)])
    shared = [serve(scale.requests, beside={"batch": BATCH}, hook=True) for _ in range(scale.latency_runs)]
    p99, kept = figures.median([s.p99_ns for s in shared]), figures.median([s.kept for s in shared])
    bare_p99 = bare_kept = ""
    if scale.baselines:
        bare = serve(scale.requests, beside={"batch": BATCH}, hook=False)
        bare_p99, bare_kept = f"{bare.p99_ns / solo:.2f} × ({milli(bare.p99_ns)})", f"{bare.kept:.3f}"
    detail: dict[str, object] = {
        "solo_p99": milli(solo),
        "p99": [milli(s.p99_ns) for s in shared],
        "kept": [s.kept for s in shared],
    }
    what = f"latency share beside batch, {scale.requests} requests"
    text = f"{p99 / solo:.2f} × ({milli(p99)})"
    return [
        Line(f"p99 ÷ solo p99: {what}", "≤ 1.3 ×", text, p99 <= 1.3 * solo, bare_p99, detail=detail),
        Line("batch keeps, of what is left", "≥ 0.90", f"{kept:.3f}", kept >= 0.9, bare_kept, detail=detail),
    ]


def trainer(scale: Scale) -> list[Line]:
    """Measure what a trainer keeps of its solo throughput beside four shares that work 1 ms every 50 ms."""
    duties = {f"duty{i}": DUTY for i in range(4)}

    def rate(beside: Mapping[str, Load], *, hook: bool) -> float:
        with Node(hook=hook) as node:
            return figures.utilisation(node.run({"trainer": TRAINER, **beside}, scale.short_s), ["trainer"])

    solo = rate({}, hook=False)
    kept = rate(duties, hook=True) / solo
    bare = f"{rate(duties, hook=False) / solo:.3f}" if scale.baselines else ""
    what = "trainer beside four 2 %-duty shares ÷ alone"
    rival = f"{gemini('trainer keeps'):.3f}"
    return [Line(what, "≥ 0.90", f"{kept:.3f}", kept >= 0.9, bare, rival, detail={"solo_busy": solo})]
