"""Measures how contexts, streams and events affect each other on the hardware: most of a simulated GPU's profile.

All figures come from the begins and ends of kernels in the device's own log. So the same code measures a real GPU and a
simulated one. Each row stores what it learns in `host.profile`.
"""

import time
from itertools import pairwise

from bench.bars import figures
from bench.gpu import spans
from bench.gpu.host import Host
from bench.gpu.node import beside
from bench.table import Line, micro
from rig.loads import MS, Load, Terms, saturating
from rig.programs import ProgramFailed

UNIT = "50us"
VISIT_NS = 100_000
SIZES = {"light": 0, "heavy": 1}
COMMANDS = ("a word written", "an event recorded", "an event waited for")
ODD_UNITS = ("7001ns", "11003ns", "13007ns", "17011ns")
"""No two have a common divisor, so a common divisor of their ends is the clock's resolution."""


def _busy(heavy: int) -> Load:
    return saturating(50, UNIT, depth=8, group=8, heavy=heavy)


# ---- slices and switches ----


def slices(host: Host) -> list[Line]:
    """Measure time slices and switches between two contexts that always have work, with light and heavy kernels."""
    lines = []
    for size, heavy in SIZES.items():
        _, found = beside(host, {"one": _busy(heavy), "other": _busy(heavy)})
        missed = [spans.absences(kernels) for kernels in found.values()]
        off_ns = figures.median([off_ns for one in missed for off_ns, _ in one])
        slice_ns = sum(map(spans.slice_ns, missed)) / len(missed)
        switch_ns = max(0.0, (off_ns - slice_ns) / 2)
        lost = switch_ns / (slice_ns + switch_ns)
        text = f"{micro(slice_ns)}, a switch {micro(switch_ns)}, lost {lost * 100:.2f} %"
        what = f"time slice between two busy contexts, {size} kernels"
        lines.append(Line(what, "", text, detail={"slices": sum(map(len, missed))}))
        # Real programs are mostly heavy, and a simulated GPU should not be kinder than the real one.
        host.profile |= {
            "slice_us": slice_ns / 1e3,
            "switch_us": max(switch_ns / 1e3, host.profile.get("switch_us", 0) if heavy else 0),
        }
    return lines


def visits(host: Host) -> list[Line]:
    """Measure when a busy context gets the device back after another ran one kernel on it and ran empty."""
    slice_ns = known(host, "slice_us") * 1e3
    backs_ns = {size: _visit(host, heavy, VISIT_NS) for size, heavy in SIZES.items()}
    # A context that ran empty near the end of its slice can keep only the rest of the slice.
    rest_ns = slice_ns / 16
    kept_ns = backs_ns["light"] - _visit(host, 0, round(slice_ns - rest_ns))
    stay_ns = kept_ns + rest_ns if kept_ns > rest_ns / 2 else 0.0
    host.profile |= {
        "drain_stay_us": stay_ns / 1e3,
        "drain_switch_us": max(0.0, max(backs_ns.values()) - stay_ns) / 1e3,
    }
    return [
        Line(
            f"a busy context is back after another has run empty, {size} kernels",
            "",
            f"{micro(back_ns)}, of which the empty one is left alone for {micro(stay_ns)}",
        )
        for size, back_ns in backs_ns.items()
    ]


def known(host: Host, name: str) -> float:
    """Return what an earlier row has measured. Raises ValueError if it has not."""
    if name not in host.profile:
        raise ValueError(f"{name} is not known: the row that measures it comes first, or has failed")
    return host.profile[name]


def _visit(host: Host, heavy: int, unit_ns: int) -> float:
    """Return how long a busy context waits for each single kernel of another context, which then runs empty."""
    options = {"unit": f"{unit_ns}ns", "gap": _apart(host), "heavy": heavy}
    _, found = beside(host, {"busy": _busy(heavy), "visitor": Load(Terms(50), "sync", options)})
    took_ns = figures.median([span.ended_ns - span.started_ns for span in found["visitor"]])
    off_ns = figures.median([off_ns for off_ns, _ in spans.absences(found["busy"])])
    return off_ns - took_ns - known(host, "switch_us") * 1e3


def _apart(host: Host) -> str:
    """Return a time after which a busy context has had the device to itself."""
    return f"{round(4000 * known(host, 'slice_us'))}ns"


def commands(host: Host) -> list[Line]:
    """Measure what a busy context loses to another's commands that need no multiprocessor."""
    out_and_back_us = sum(known(host, name) for name in ("switch_us", "drain_switch_us", "drain_stay_us"))
    lines = []
    for command, what in enumerate(COMMANDS):
        title = f"lost beside a context without work: {what}"
        other = Load(Terms(50), "commands", {"gap": _apart(host), "command": command})
        try:
            results, found = beside(host, {"busy": _busy(0), "other": other})
        except ProgramFailed as error:
            lines.append(Line(title, "", f"refused: {error}"))
            continue
        missed = [off_ns for off_ns, _ in spans.absences(found["busy"])]
        disturbs = len(missed) > results["other"].launches / 2
        lost_ns = figures.median(missed) if disturbs else 0.0
        intrusion_us = max(0.0, lost_ns / 1e3 - out_and_back_us)
        host.profile["intrusion_us"] = max(intrusion_us, host.profile.get("intrusion_us", 0.0))
        text = f"{micro(lost_ns)} each ({len(missed)} absences, {results['other'].launches} commands)"
        lines.append(Line(title, "", text))
    return lines


def streams(host: Host) -> list[Line]:
    """Measure whether streams of one context share the multiprocessors."""
    told = host.ask("streams", unit="1ms", depth=20, count=5)
    ratio = told["two"]["p10_ns"] / told["one"]["p10_ns"]
    share = ratio > 1.5
    host.profile |= {"streams_share_sms": share, "interference_percent": max(0.0, ratio * 50 - 100) if share else 0}
    return [Line("twice the work on two streams of a context ÷ on one: the time", "", f"{ratio:.3f}")]


# ---- launches and events ----


def latency(host: Host) -> list[Line]:
    """Measure how soon a launch starts on an idle device."""
    options = {"unit": "100us", "gap": "1ms", "count": host.scale.slices_ms // 2}
    _, found = beside(host, {"a": Load(Terms(100), "latency", options)})
    late_ns = figures.median([span.started_ns - span.submitted_ns for span in found["a"]])
    host.profile["latency_ns"] = max(0.0, late_ns)
    return [Line("cuLaunchKernel has returned → the kernel begins, idle device, p50", "", micro(late_ns))]


def events(host: Host) -> list[Line]:
    """Measure the cost of events for the device, and the resolution of their time."""
    options = {"units": ",".join(ODD_UNITS), "work": "20ms", "unit": "500us"}
    results, found = beside(host, {"a": Load(Terms(100), "records", options)})
    kernels = sorted(found["a"], key=lambda span: span.started_ns)[1:]
    third = len(kernels) // 3
    gaps_ns = [
        figures.median([after.started_ns - before.ended_ns for before, after in pairwise(kernels[at : at + third])])
        for at in range(0, 3 * third, third)
    ]
    resolution_ns = spans.resolution_ns(results["a"].other["steps_ms"])
    host.profile |= {"record_gap_ns": max(0.0, gaps_ns[2] - gaps_ns[0]), "event_resolution_ns": resolution_ns}
    shown = ", ".join(f"{gap_ns:.0f}" for gap_ns in gaps_ns)
    return [
        Line("between kernels of a stream: nothing, an event, one that takes the time", "", f"{shown} ns"),
        Line("the unit of times between events", "", f"{resolution_ns} ns"),
    ]


def clock(host: Host) -> list[Line]:
    """Measure the drift of the events' clock from the host's."""
    ends_ns = time.monotonic_ns() + host.scale.drift_ms * MS
    while time.monotonic_ns() < ends_ns:
        host.tick()
        time.sleep(0.03)
    return [drifted(host)]


def drifted(host: Host) -> Line:
    """Return the drift so far, and put it into the profile. The longer the run, the more exact it is."""
    ppm, period_s = spans.drift(host.event_ticks)
    host.profile["event_drift_ppm"] = ppm
    if period_s:
        host.profile["event_drift_period_s"] = period_s
    text = f"{ppm:+.1f} ppm" + (f", its sign changes every {period_s:.1f} s" if period_s else "")
    return Line("clock of events against the host's", "", text)
