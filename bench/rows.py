"""Measure every bar that needs no real GPU, on the simulated one, and print the table: what `python -m bench` does.

Progress goes to stderr, the table to stdout, everything to bench/results/<machine>.json. Exit 1 when a bar is missed
(the hand-off may be, with a measured reason).
"""

import dataclasses
import sys
import time
from collections.abc import Callable

from bench import (
    chosen,
    costs,
    decisions,
    density,
    feed,
    memory,
    neighbours,
    pauses,
    replay,
    rounds,
    shares,
    streams,
    table,
    yielding,
)
from bench.entry import Parser
from bench.scale import FULL, QUICK, Scale
from bench.table import Line
from rig.programs import machine

ROWS: dict[str, Callable[[Scale], list[Line]]] = {
    "machine": costs.machine,
    "share": shares.measure,
    "streams": streams.measure,
    "stall": pauses.joining,
    "limit": pauses.limits,
    "launch-cost": costs.launch_cost,
    "hand-off": costs.hand_off,
    "throughput": shares.throughput,
    "latency": neighbours.latency,
    "duty": neighbours.trainer,
    "chosen": chosen.measure,
    "yields": yielding.measure,
    "arbiter": costs.arbiter,
    "memory": memory.caps,
    "density": density.density,
    "scale": decisions.measure,
    "rounds": rounds.measure,
    "feed": feed.feed,
    "traces": replay.traces,
}


def main() -> int:
    """Run what was asked for; return the exit code."""
    parser = Parser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs: about three minutes, coarser figures")
    parser.add_argument("--only", action="append", metavar="ROW", choices=[*ROWS], help=f"one of {', '.join(ROWS)}")
    parser.add_argument("--no-baselines", action="store_true", help="leave out the runs without the hook")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    if options.no_baselines:
        scale = dataclasses.replace(scale, baselines=False)
    lines: list[Line] = []
    for row in options.only or ROWS:
        began = time.monotonic()
        print(f"{row} ...", end=" ", file=sys.stderr, flush=True)
        measured = [dataclasses.replace(line, row=row) for line in ROWS[row](scale)]
        verdict = "MISSED" if table.missed(measured) else "ok"
        print(f"{verdict} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
        lines += measured
    document = table.as_json(lines, machine("sim"), dataclasses.asdict(scale))
    print(document if options.output == "json" else table.markdown(lines))
    if not options.only and not options.quick:
        print(f"written: {table.save(document, machine('sim'))}", file=sys.stderr)
    for line in table.missed(lines):
        print(f"missed: {line.what}: {line.result}, the bar is {line.bar}", file=sys.stderr)
    return 1 if table.missed(lines) else 0
