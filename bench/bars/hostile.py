"""Measures what a hostile tenant's rings, locks, lies and files cost the share beside it."""

import time

from bench.bars import figures
from bench.bars.bar import HOSTILE
from bench.bars.rig import START_DELAY_NS
from bench.bars.simulated import SimulatedRig
from bench.table import Line, micro
from rig.loads import MS, Load, Terms
from rig.programs import hostile_command

PERIOD_NS, ASK_NS = 5 * MS, MS // 10
"""The neighbour asks for the device once a period, for one kernel of this length."""
ASKS = {"work": "100us", "unit": "100us", "period": "5ms"}


def waits(rig: SimulatedRig, seed: int, *, tame: bool) -> list[float]:
    """Return how long each request of a share waits for the device beside a tenant that floods its own region, in ns.

    A tame tenant floods a file that no process reads.
    """
    requests = rig.scale.requests
    length_ns = (requests + 2) * PERIOD_NS
    with rig.node() as node:
        tenant = node.add("tenant", hostile_command(seed, tame=tame), node.share("tenant", Terms(20)))
        neighbour = node.start({"neighbour": Load(Terms(20), "periodic", {**ASKS, "count": requests})}, length_ns / 1e9)
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        for program in (tenant, neighbour["neighbour"]):
            program.go(begin_ns, begin_ns + length_ns)
        latencies_ns = node.collect(begin_ns, 1).results["neighbour"].latencies_ns
    return [latency_ns - ASK_NS for latency_ns in latencies_ns]


def measure(rig: SimulatedRig) -> list[Line]:
    """Measure a hostile tenant's cost for its neighbour, compared with a tenant that is only as busy."""
    pairs = [
        tuple(figures.percentile(waits(rig, seed, tame=tame), 99) for tame in (False, True))
        for seed in range(1, rig.scale.latency_runs + 1)
    ]
    beside, without = figures.median([pair[0] for pair in pairs]), figures.median([pair[1] for pair in pairs])
    detail = {"beside": [micro(pair[0]) for pair in pairs], "without": [micro(pair[1]) for pair in pairs]}
    ratio = figures.median([beside / without for beside, without in pairs])
    return [HOSTILE.line("one as busy", ratio, note=f"({micro(beside)} ÷ {micro(without)})", detail=detail)]
