"""The settings of the simulated GPU beside what was measured: what to change for it to be like this one. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

Facts = Mapping[str, Any]


def _rounded(ns: float, per: int) -> str:
    return f"{ns / per:.0f}" if ns / per >= 10 else f"{ns / per:.1f}"


def _fact(name: str, per: int) -> Callable[[Facts], str]:
    return lambda facts: _rounded(float(facts[name]), per)


def _call(name: str) -> Callable[[Facts], str]:
    return lambda facts: _rounded(float(facts["calls"][name]["p50_ns"]), 1)


def _latency(facts: Facts) -> str:
    signals = facts["signals"]
    return _rounded(max(0.0, signals["call_to_start"]["p50_ns"] - signals["launch_call"]["p50_ns"]), 1)


ROWS: tuple[tuple[str, str, str, Callable[[Facts], str]], ...] = (
    ("SIMGPU_SLICE_US", "2000", "slice of two busy contexts", _fact("slice_ns", 1000)),
    ("SIMGPU_SWITCH_US", "180", "switch between two busy contexts", _fact("switch_ns", 1000)),
    ("SIMGPU_DRAIN_SWITCH_US", "10", "back after a context has run empty", _fact("drain_switch_ns", 1000)),
    ("SIMGPU_LATENCY_NS", "3000", "launch called → kernel begins, less the call", _latency),
    ("SIMGPU_LAUNCH_COST_NS", "2500", "host time of cuLaunchKernel", _call("cuLaunchKernel")),
    ("SIMGPU_RECORD_COST_NS", "1000", "host time of cuEventRecord", _call("cuEventRecord")),
    ("SIMGPU_WRITE_COST_NS", "1000", "host time of cuStreamWriteValue32", _call("cuStreamWriteValue32")),
    ("SIMGPU_QUERY_COST_NS", "300", "host time of cuEventQuery, pending", _call("cuEventQuery pending")),
    ("SIMGPU_PCIE_MB_S", "25000", "copy from pinned host memory", lambda facts: str(facts["calls"]["copy_mb_s"])),
    ("SIMGPU_CONTEXT_MIB", "0", "free memory before and after a context", _fact("context_bytes", 1 << 20)),
    (
        "pieces of work in a stream",
        "1024",
        "launches behind a kernel",
        lambda facts: str(facts["calls"]["queue_depth"]),
    ),
    ("preempting a busy context, µs", "—", "its last progress → a visitor's begin", _fact("preempt_ns", 1000)),
    ("clock resolution, ns", "1", "%globaltimer", _fact("device_clock_resolution_ns", 1)),
)


def calibration(facts: Facts) -> list[dict[str, str]]:
    """Return the settings, what they are now, and what was measured; what no row has measured is left open."""
    found = []
    for name, now, how, read in ROWS:
        try:
            measured = read(facts)
        except (KeyError, TypeError):
            measured = "not measured"
        found.append({"setting of simgpu": name, "now": now, "measured": measured, "how": how})
    return found
