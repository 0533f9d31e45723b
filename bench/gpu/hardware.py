"""Measures the hardware as a program meets it: cost of calls, how soon the host learns of progress, captures.

It needs no privilege, and leaves the device's settings alone. What the simulated GPU needs goes to `host.profile`.
contexts.py has several contexts beside each other.
"""

import time
from collections.abc import Mapping, Sequence

from bench.bars import figures
from bench.bars.rig import START_DELAY_NS
from bench.gpu.host import Host
from bench.gpu.node import Node, beside
from bench.table import Line, micro
from rig.loads import MS, Load, Terms, saturating

BUDGETS = (1, 2, 5, 10, 25, 50)
WAYS = (
    "the host sees the word written behind it",
    "cuEventSynchronize returns, blocking event",
    "cuEventSynchronize returns, spinning",
    "cuStreamSynchronize returns",
)
"""In the order in which the probe tries them."""
COSTS = {
    "launch_cost_ns": "cuLaunchKernel",
    "record_cost_ns": "cuEventRecord",
    "plain_record_cost_ns": "cuEventRecord without timing",
    "write_cost_ns": "cuStreamWriteValue32",
    "query_cost_ns": "cuEventQuery pending",
}
"""Host times of a profile, by their call: the fastest tenth, as the others contain the machine's other work."""


def calls(host: Host) -> list[Line]:
    """Measure the host's time of the calls that the hook makes or meets, and the capacity of the device's queue."""
    with Node(host, hook=False) as node:  # only to measure the memory of a context: nothing else runs now
        before = host.free_bytes()
        load = Load(Terms(100), "cost", {"unit": "20ns", "count": 1})
        program = node.start({"a": load}, 1)["a"]
        taken = before - host.free_bytes()
        program.go(time.monotonic_ns(), time.monotonic_ns() + MS)
        program.result()
    unit = "1us" if host.simulated else "20us"
    found = host.ask("calls", unit=unit, work="20ms", group=host.scale.call_group, bytes=host.scale.copy_bytes)
    host.profile |= {name: found[call]["p10_ns"] for name, call in COSTS.items() if "p10_ns" in found[call]}
    lines = []
    for name, told in found.items():
        if isinstance(told, dict):
            text = f"{told['p50_ns']} ns" if "p50_ns" in told else f"refused: {told['error']}"
            lines.append(Line(f"host time of {name}, p50", "", text, None, detail=told))
    lines.append(Line("launches that fit behind a running kernel", "", str(found["queue_depth"] or "more than 8192")))
    lines.append(Line("copy from pinned host memory", "", f"{found['copy_mb_s']} MB/s"))
    lines.append(Line("device memory of a context", "", f"{taken / 2**20:.0f} MiB"))
    return lines


def signals(host: Host) -> list[Line]:
    """Measure how soon the host learns that a kernel has ended, for each way to learn it."""
    results, found = beside(host, {"a": Load(Terms(100), "signals", {"unit": "200us"})})
    told, kernels = results["a"].other, sorted(found["a"], key=lambda span: span.started_ns)
    late_ns = [learnt_ns - span.ended_ns for learnt_ns, span in zip(told["learnt_ns"], kernels, strict=True)]
    each = len(late_ns) // len(WAYS)
    lines = [_quantiles("cuStreamWriteValue32 on an idle stream → the host sees the word", told["word_ns"])]
    return lines + [
        _quantiles(f"kernel ends → {way}", late_ns[place * each : (place + 1) * each]) for place, way in enumerate(WAYS)
    ]


def _quantiles(what: str, values_ns: Sequence[int]) -> Line:
    p50_ns, p99_ns = (figures.percentile(values_ns, percent) for percent in (50, 99))
    return Line(what, "", f"p50 {micro(p50_ns)}, p99 {micro(p99_ns)}")


def budget(host: Host) -> list[Line]:
    """Measure throughput against the work in flight, when the host learns of ends as the hook does."""
    lines = []
    for launches in BUDGETS:
        _, found = beside(host, {"a": Load(Terms(100), "saturate", {"unit": "20us", "depth": launches, "blocking": 1})})
        kernels = sorted(found["a"], key=lambda span: span.started_ns)
        worked_ns = sum(span.ended_ns - span.started_ns for span in kernels)
        busy = worked_ns / (kernels[-1].ended_ns - kernels[0].started_ns)
        lines.append(Line(f"throughput with {launches} kernels of 20 µs in flight", "", f"{busy:.3f} of the device"))
    return lines


def capture(host: Host) -> list[Line]:
    """Count errors of captures in every mode while another thread launches and another share wants the device."""
    options = {"unit": "200us", "gap": "3ms", "count": host.scale.captures}

    def errors(*, hook: bool) -> tuple[int, Mapping[str, int]]:
        seconds = host.scale.captures * 3 * 0.02
        rival = saturating(50)
        with Node(host, hook=hook) as node:
            programs = node.start({"rival": rival, "a": Load(Terms(50), "capture", options)}, seconds + 10)
            begin_ns = time.monotonic_ns() + START_DELAY_NS
            for program in programs.values():
                program.go(begin_ns, begin_ns + round((seconds + 10) * 1e9))
            result = programs["a"].result()
            programs["rival"].stop()
            programs["rival"].result()
        return int(result.other["captures"]), result.other["errors"]

    captures, hooked = errors(hook=True)
    _, bare = errors(hook=False)
    met = sum(hooked.values()) <= sum(bare.values())
    what = f"errors in {captures} captures, every mode, beside launches and another share"
    detail = {"with": dict(hooked), "without": dict(bare)}
    return [Line(what, "none more", str(sum(hooked.values())), met, str(sum(bare.values())), detail=detail)]
