"""Measure every bar that needs no real GPU, on the simulated one, and print the table: what `python -m bench` does.

Progress goes to stderr, the table to stdout, everything to bench/results/<machine>.json. Exit 1 when a bar is missed
(the hand-off may be, with a measured reason).
"""

import argparse
import dataclasses
import functools
import importlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import peer, table
from bench.bars import arbiter, costs, hostile, memory, neighbours, pauses, replay, sensitivity, shares, streams
from bench.bars.gemini import gemini
from bench.bars.simulated import SimulatedRig
from bench.entry import Parser
from bench.scale import BESIDE, FULL, QUICK, Scale
from bench.table import Line
from rig.programs import machine

PROFILES = ("typical", "ideal", "harsh")
"""Profiles of the simulated device. The first one is judged."""
NO_LAUNCH_COST = {"SIMGPU_LAUNCH_COST_NS": "0"}


def _modelled(figure: str) -> str:
    """Return a pause under Gemini's policy, as text; empty: none is known."""
    return f"{gemini(figure):.0f} ms" if figure else ""


def _stall(rig: SimulatedRig) -> list[Line]:
    return [pauses.stall(rig, case, _modelled(case.figure)) for case in pauses.JOINS]


def _limit(rig: SimulatedRig) -> list[Line]:
    return [line for case in pauses.LIMITS for line in pauses.limit(rig, case, _modelled(case.figure))]


def _duty(rig: SimulatedRig) -> list[Line]:
    return neighbours.duty(rig, f"{gemini('trainer keeps'):.3f}")


def _launch_cost(rig: SimulatedRig) -> list[Line]:
    return costs.launch(dataclasses.replace(rig, gpu_settings=NO_LAUNCH_COST))


def _memory(rig: SimulatedRig) -> list[Line]:
    return [*memory.caps(rig), *memory.beside_many(rig)]


def _of_scale(measure: Callable[[Scale], list[Line]]) -> Callable[[SimulatedRig], list[Line]]:
    """Return a row that makes its own nodes."""
    return lambda rig: measure(rig.scale)


def _of_cluster(module: str, measure: str = "measure") -> Callable[[SimulatedRig], list[Line]]:
    """Return a row of bench/cluster. It is imported when it runs: a cluster's libraries take a second to import."""

    def row(rig: SimulatedRig) -> list[Line]:
        lines: list[Line] = getattr(importlib.import_module(f"bench.cluster.{module}"), measure)(rig.scale)
        return lines

    return row


ROWS: dict[str, Callable[[SimulatedRig], list[Line]]] = {
    "machine": _of_scale(arbiter.machine),
    "share": shares.measure,
    "streams": streams.measure,
    "stall": _stall,
    "limit": _limit,
    "launch-cost": _launch_cost,
    "hand-off": costs.hand_off,
    "throughput": shares.throughput,
    "latency": neighbours.latency,
    "duty": _duty,
    "hostile": hostile.measure,
    "chosen": _of_cluster("chosen"),
    "yields": _of_cluster("yielding"),
    "arbiter": _of_scale(arbiter.arbiter),
    "memory": _memory,
    "density": _of_cluster("density", "density"),
    "scale": _of_cluster("decisions"),
    "rounds": _of_cluster("rounds"),
    "feed": _of_cluster("feed", "feed"),
    "traces": replay.traces,
    "sensitivity": sensitivity.measure,
}
OF_PROFILES = ("share", "streams", "stall", "limit", "hand-off", "throughput", "latency", "duty", "traces")
"""Rows that depend on how kind the device is."""
OF_PEERS = ("share", "stall", "limit", "launch-cost", "hand-off", "throughput", "latency", "duty")
"""Rows that are also measured under a peer: programs on a node, judged by the device."""


def _beside(row: str, measured: list[Line], places: Mapping[str, SimulatedRig]) -> list[Line]:
    """Return a row's lines with a column for each other rig that it can be measured on."""
    for name, place in places.items():
        if row in (OF_PEERS if place.peer else OF_PROFILES):
            measured = table.beside(measured, name, *peer.attempt(functools.partial(ROWS[row], place)))
    return measured


def _profile(text: str) -> str:
    if text not in PROFILES and not Path(text).is_file():
        raise argparse.ArgumentTypeError(
            f"{text!r} is no profile: give {', '.join(PROFILES)} or the path of a JSON file"
        )
    return str(Path(text).resolve()) if text not in PROFILES else text


def main() -> int:
    """Run the rows that were asked for. Return the exit code."""
    parser = Parser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs: about three minutes, coarser figures")
    parser.add_argument("--only", action="append", metavar="ROW", choices=[*ROWS], help=f"one of {', '.join(ROWS)}")
    parser.add_argument("--no-baselines", action="store_true", help="leave out the runs without the hook")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    profile = (
        f"a device to measure on: {', '.join(PROFILES)} or a JSON file; the first is judged, others stand beside it, "
        "measured in shorter runs (default: typical, with ideal and harsh beside it; with --quick or --only typical)"
    )
    parser.add_argument("--profile", action="append", metavar="PROFILE", type=_profile, help=profile)
    peer.add_flags(parser)
    options = parser.parse_args()
    peers = peer.read_flags(parser, options)
    scale = QUICK if options.quick else FULL
    if options.no_baselines:
        scale = dataclasses.replace(scale, baselines=False)
    judged, *others = options.profile or (PROFILES[:1] if options.quick or options.only else PROFILES)
    rig, lines = SimulatedRig(scale, profile=judged), list[Line]()
    places = {
        name: SimulatedRig(dataclasses.replace(QUICK if options.quick else BESIDE, baselines=False), profile=name)
        for name in others
    }
    places |= {
        other.name: dataclasses.replace(rig, scale=dataclasses.replace(scale, baselines=False), peer=other)
        for other in peers
    }
    for row in options.only or ROWS:
        began = time.monotonic()
        print(f"{row} ...", end=" ", file=sys.stderr, flush=True)
        measured = _beside(row, [dataclasses.replace(line, row=row) for line in ROWS[row](rig)], places)
        verdict = "MISSED" if table.missed(measured) else "ok"
        print(f"{verdict} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
        lines += measured
    document = table.as_json(lines, machine("sim"), {"profile": judged, **dataclasses.asdict(scale)})
    print(document if options.output == "json" else table.markdown(lines))
    if not options.only and not options.quick:
        print(f"written: {table.save(document, machine('sim'))}", file=sys.stderr)
    for line in table.missed(lines):
        print(f"missed: {line.what}: {line.result}, the bar is {line.bar}", file=sys.stderr)
    return 1 if table.missed(lines) else 0
