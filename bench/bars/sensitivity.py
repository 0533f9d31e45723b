"""Measures the headline figures on other hardware: properties of the simulated device, with two values each."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from bench.bars import figures, neighbours, shares
from bench.bars.bar import BILL, LATENCY, SHARE_ERROR, THROUGHPUT
from bench.bars.rig import run
from bench.bars.simulated import SimulatedRig
from bench.scale import QUICK
from bench.table import Line

AXES: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]] = {
    "slice {slice_us} µs": ({"slice_us": 1024}, {"slice_us": 2048}),
    "drained switch {drain_switch_us} µs": ({"drain_switch_us": 10}, {"drain_switch_us": 100}),
    "event {record_cost_ns} + {record_gap_ns} ns": (
        {"record_cost_ns": 1000, "record_gap_ns": 0},
        {"record_cost_ns": 5000, "record_gap_ns": 2500},
    ),
    "drift {event_drift_ppm} ppm": ({"event_drift_ppm": 0}, {"event_drift_ppm": 50}),
}
"""Published values at both ends. An event costs host time, and leaves a gap on the device."""


def machines() -> Iterator[tuple[str, dict[str, str]]]:
    """Return every combination: its name, and its settings."""
    for chosen in itertools.product(*AXES.values()):
        properties = {name: value for part in chosen for name, value in part.items()}
        what = ", ".join(axis.format_map(properties) for axis in AXES)
        yield what, {f"SIMGPU_{name.upper()}": str(value) for name, value in properties.items()}


def _measure(rig: SimulatedRig, what: str) -> Line:
    case, steps = shares.KERNELS, rig.scale.short_steps
    alone = run(rig, {"a": case.loads["a"]}, rig.scale.bare_steps, hook=False)
    done = run(rig, case.loads, steps)
    solo = neighbours.serve(rig, {}, hook=False).p99_ns
    found = {
        "throughput": THROUGHPUT.text(figures.utilisation(done.samples) / figures.utilisation(alone.samples)),
        "share error over 1 s": SHARE_ERROR.text(max(figures.share_errors(done.samples, case.targets, 1))),
        "bill": BILL.text(shares.bill_error(done)),
        "p99": LATENCY.text(neighbours.serve(rig, {"batch": neighbours.BATCH}, hook=True).p99_ns / solo),
    }
    return Line(f"sensitivity: {what}", "", " · ".join(found.values()), detail=found)


def measure(rig: SimulatedRig) -> list[Line]:
    """Measure 70/30 of 500 µs kernels and a latency share beside batch on every machine of `AXES`.

    A result is the sum of throughputs ÷ one alone, the worst share error over 1 s, the worst bill, and p99 ÷ solo p99.
    """
    return [_measure(dataclasses.replace(rig, scale=QUICK, gpu_settings=made), what) for what, made in machines()]
