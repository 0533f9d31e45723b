"""Measures shares that are mostly idle: a latency share beside saturating batch, and small shares beside a trainer."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.bars import figures
from bench.bars.bar import KEPT, LATENCY
from bench.bars.rig import Rig, run
from bench.table import Line, milli
from rig.loads import MS, Load, Terms

PERIOD_NS = 20 * MS
REQUESTS = {"work": "4ms", "unit": "500us", "period": "20ms"}
BATCH = Load(Terms(60, share_class="batch"), "saturate", {"unit": "1ms", "depth": 8})
TRAINER = Load(Terms(60), "sync", {"unit": "1ms", "burst": 10, "gap": "3ms"})
DUTY = Load(Terms(10), "periodic", {"unit": "1ms", "work": "1ms", "period": "50ms"})


@dataclass(frozen=True, slots=True)
class Service:
    """The result of one run of the latency share."""

    p99_ns: float
    kept: float
    """The part of the time left by the latency share that the others used; 0 if it ran alone."""


def serve(rig: Rig, beside: Mapping[str, Load], *, hook: bool) -> Service:
    """Run the latency share's requests beside other loads."""
    requests = rig.scale.requests
    latency_ = Load(Terms(25, share_class="latency"), "periodic", {**REQUESTS, "count": requests})
    length_ns = (requests + 2) * PERIOD_NS
    steps = max(1, (length_ns - 2 * rig.scale.settle_ns) // rig.scale.step_ns)
    done = run(rig, {**beside, "latency": latency_}, steps, hook=hook, length_ns=length_ns)
    left = 1 - figures.utilisation(done.samples, ["latency"])
    p99_ns = figures.percentile(done.results["latency"].latencies_ns, 99)
    return Service(p99_ns, figures.utilisation(done.samples, beside) / left)


def latency(rig: Rig) -> list[Line]:
    """Measure p99 of a latency share beside batch, against its own solo p99 without the hook, and what batch keeps."""
    scale, beside = rig.scale, {"batch": BATCH}
    solo = figures.median([serve(rig, {}, hook=False).p99_ns for _ in range(scale.solo_runs)])
    shared = [serve(rig, beside, hook=True) for _ in range(scale.latency_runs)]
    bare = serve(rig, beside, hook=False) if scale.baselines else None
    p99 = figures.median([s.p99_ns for s in shared])
    detail = {"solo_p99": milli(solo), "p99": [milli(s.p99_ns) for s in shared], "kept": [s.kept for s in shared]}
    without = f"{LATENCY.text(bare.p99_ns / solo)} ({milli(bare.p99_ns)})" if bare else None
    what = f"latency share beside batch, {scale.requests} requests"
    kept = figures.median([s.kept for s in shared])
    return [
        LATENCY.line(what, p99 / solo, note=f"({milli(p99)})", no_hook=without, detail=detail),
        KEPT.line("batch keeps, of what is left", kept, no_hook=bare.kept if bare else None, detail=detail),
    ]


def duty(rig: Rig, gemini: str = "") -> list[Line]:
    """Measure the part of its solo throughput that a trainer keeps beside four shares that work 1 ms every 50 ms."""
    duties = {f"duty{i}": DUTY for i in range(4)}

    def rate(beside: Mapping[str, Load], *, hook: bool) -> float:
        done = run(rig, {"trainer": TRAINER, **beside}, rig.scale.short_steps, hook=hook)
        return figures.utilisation(done.samples, ["trainer"])

    solo = rate({}, hook=False)
    kept = rate(duties, hook=True) / solo
    bare = rate(duties, hook=False) / solo if rig.scale.baselines else None
    what = "trainer beside four 2 %-duty shares ÷ alone"
    return [KEPT.line(what, kept, no_hook=bare, gemini=gemini, detail={"solo_busy": solo})]
