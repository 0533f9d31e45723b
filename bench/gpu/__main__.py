"""`python3 -m bench.gpu`: the bars of the design on this machine's GPU, in under 8 minutes, without a network.

It needs an NVIDIA driver, gcc and python3 (3.11 or later) with its standard library; frameworks are run if they are
there. It builds the hook, the arbiter and its own probes from this checkout, runs every row in its own time box, prints
the table, and writes it, with everything behind it, to bench/results/<machine>.json and .md after each row: a run that
is cut off loses nothing. A row that fails is reported and the rest goes on.

The device's settings are never touched, and only plain allocations are made. Exit status 1: a bar that may not be
missed is missed, or a row has failed. 2: nothing can be measured here.

    python3 -m bench.gpu                        # everything
    python3 -m bench.gpu --only latency         # one row, as often as you like: --only latency --only duty
    python3 -m bench.gpu --only calibration     # what a simulated GPU has to be set to, to be like this one: a profile
    python3 -m bench.gpu --only frameworks      # all rows of PyTorch, JAX, CuPy and Triton
    python3 -m bench.gpu --results /tmp/out     # write there
    python3 -m bench.gpu --simulated            # all of it on the simulated GPU, in seconds; its figures mean nothing
"""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bench import peer, table
from bench.bars import costs, memory, neighbours, pauses, shares
from bench.bars.rig import Rig
from bench.entry import Parser, duration, run
from bench.gpu import census, contexts, frameworks, hardware, smi
from bench.gpu.build import ROOT, build
from bench.gpu.host import Host, Unusable
from bench.gpu.node import HardwareRig
from bench.gpu.report import FAILED, MEASURED, SKIPPED, Report, Row
from bench.scale import DRY, HARDWARE
from bench.table import Line
from rig.loads import Case
from rig.programs import ProgramFailed

NOT_DONE = {
    "time slice set to 8:1 by the driver's own control, preemption latency": "it needs handles sniffed from ioctl, on "
    "which nothing here depends yet",
    "slices under other compute policies": "changing the policy is changing the device's settings",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: its title, its time box, and the function that measures it."""

    title: str
    box_s: float
    measure: Callable[[Host], list[Line]]
    of_peers: bool = False
    """Whether it is also measured under each peer, in a time box of its own."""


def _bar(title: str, box_s: float, measure: Callable[[Rig], list[Line]], *, of_peers: bool = True) -> Entry:
    """Return a row that exists for the simulated GPU as well."""
    return Entry(title, box_s, lambda host: measure(HardwareRig(host)), of_peers)


def _share(case: Case) -> Entry:
    return _bar(f"share error: {case.what}", 60, functools.partial(shares.share, case=case))


def _stall(rig: Rig) -> list[Line]:
    return [pauses.stall(rig, pauses.THREE)]


def _framework(key: str, box_s: float) -> Entry:
    case = frameworks.CASES[key]
    return Entry(case.what, box_s, functools.partial(frameworks.compare, case=case))


CALIBRATION: dict[str, Entry] = {
    "slices": Entry("time slices and switches of the hardware", 30, contexts.slices),
    "visits": Entry("after a context has run empty", 20, contexts.visits),
    "commands": Entry("what disturbs without a multiprocessor", 20, contexts.commands),
    "streams": Entry("streams of one context", 10, contexts.streams),
    "start": Entry("how soon a launch begins", 10, contexts.latency),
    "events": Entry("events", 15, contexts.events),
    "calls": Entry("host time of driver calls", 30, hardware.calls),
    "clock": Entry("drift of the clocks", 15, contexts.clock),
    "signals": Entry("how soon the host knows", 15, hardware.signals),
    "capture": Entry("captures beside launches", 40, hardware.capture),
    "census": Entry("launches counted three ways", 90, census.census),
}
"""Rows about the hardware and its driver. They come first, because all other rows are judged by them."""

FRAMEWORKS: dict[str, Entry] = {
    "torch-training": _framework("torch-training", 60),
    "torch-graph": _framework("torch-graph", 35),
    "torch-expandable": _framework("torch-expandable", 35),
    "memory-20gib": Entry("PyTorch in a share of 20 GiB that wants all", 40, frameworks.capped),
    "torch-inference": _framework("torch-inference", 60),
    "one-share": Entry("two processes of one share", 40, frameworks.one_share),
    "torch-compile": _framework("torch-compile", 100),
    "triton": _framework("triton", 40),
    "jax": _framework("jax", 60),
    "cupy": _framework("cupy", 50),
}
"""Rows that need packages. `--only frameworks` runs these alone, and all of them fit into the time."""

ROWS: dict[str, Entry] = {
    **CALIBRATION,
    "share-500us": _share(shares.KERNELS),
    "share-20us": _share(shares.SMALL),
    "share-graph": _share(shares.GRAPHS),
    "latency": _bar("latency share beside batch", 80, neighbours.latency),
    "throughput": _bar("sum of throughputs", 110, shares.throughput),
    "stall": _bar("stall when a share joins", 45, _stall),
    "limit": _bar("limit alone", 25, functools.partial(pauses.limit, case=pauses.LIMIT)),
    "launch-cost": _bar("added cost per launch", 50, costs.launch),
    "hand-off": _bar("hand-off", 45, costs.hand_off),
    "duty": _bar("small shares beside a trainer", 40, neighbours.duty),
    "memory": _bar("memory cap", 30, memory.caps, of_peers=False),
    "smi": Entry("nvidia-smi inside a share", 25, smi.inside),
    "budget": Entry("throughput against work in flight", 20, hardware.budget),
    **FRAMEWORKS,
}
"""In the order of their importance: if the time runs out, the last rows are left out."""

GROUPS = {"calibration": CALIBRATION, "frameworks": FRAMEWORKS}
LEAST_S = 8.0
"""A row is not begun with less time than this."""


class TimeUp(Exception):
    """A row's time box is over."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise TimeUp


def _row(host: Host, key: str, ends: float, peers: Sequence[peer.Peer]) -> Row:
    """Measure one row, also under each peer. Any failure becomes its result."""
    entry = ROWS[key]
    row = _boxed(host, key, ends)
    for host.peer in peers if entry.of_peers and row.lines else ():
        under = _boxed(host, key, ends)
        lines = table.beside(row.lines, host.peer.name, under.lines, f"{under.state}: {under.reason}")
        row = dataclasses.replace(row, seconds=row.seconds + under.seconds, lines=lines)
    host.peer = None
    return row


def _boxed(host: Host, key: str, ends: float) -> Row:
    """Measure a row within its time box, and before the time `ends`. A failure or a lack of time is a result, too."""
    entry, left_s = ROWS[key], ends - time.monotonic()
    if left_s < LEAST_S:
        return Row(key, entry.title, SKIPPED, reason="no time left")
    box_s = min(entry.box_s, left_s)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, box_s)
    try:
        lines = entry.measure(host)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeUp:
        reason = f"not done within {box_s:.0f} s"
    except (ProgramFailed, OSError, ValueError, ArithmeticError, LookupError, RuntimeError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    except subprocess.SubprocessError as error:
        reason = str(error)
    else:
        return Row(key, entry.title, MEASURED, time.monotonic() - began, lines=lines)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    host.end_strays()
    return Row(key, entry.title, FAILED, time.monotonic() - began, reason=reason)


def _about(host: Host) -> dict[str, object]:
    """Return the facts about the run that stand above the table."""
    mps = "a daemon runs: contexts of several processes may share one, and these figures are of that"
    return {
        "device": dataclasses.asdict(host.device),
        "simulated": host.simulated,
        "MPS": mps if _mps_runs() else "none",
        "clock resolution": f"{host.clock_resolution_ns} ns",
        "kernel lengths alone": {f"{unit} ns": f"{ns} ns" for unit, ns in host.units_ns.items()},
        "not done": NOT_DONE,
        "scale": dataclasses.asdict(host.scale),
    }


def _mps_runs() -> bool:
    """Tell whether an MPS daemon runs on this machine."""
    for entry in Path("/proc").glob("[0-9]*/comm"):
        try:
            if entry.read_text(encoding="utf-8").startswith("nvidia-cuda-mps"):
                return True
        except OSError:
            continue
    return False


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def _measure(host: Host, rows: list[str], ends: float, results: Path, peers: Sequence[peer.Peer]) -> Report:
    """Measure these rows and save the report after each. In the end calibrate the device once more."""
    report = Report(host.machine, _about(host))
    for key in rows:
        _say(f"{key} ...", end=" ")
        row = _row(host, key, ends, peers)
        report.rows.append(row)
        report.profile = host.rounded_profile
        report.save(results)
        missed = any(line.met is False for line in row.lines)
        word = f"{row.state}: {row.reason}" if row.state != MEASURED else "MISSED" if missed else "ok"
        _say(f"{word} ({row.seconds:.0f} s)")
    if "clock" in rows and "event_drift_period_s" not in host.profile:
        contexts.drifted(host)  # by the clocks of the whole run
        report.profile = host.rounded_profile
    if not host.simulated and ends - time.monotonic() > LEAST_S:
        try:
            host.calibrate()
        except ProgramFailed as error:
            _say(f"the device could not be calibrated again: {error}")
        report.about = {**report.about, "device speed, change over the run": _percent(host)}
    return report


def _percent(host: Host) -> str:
    change = host.speed_change_percent
    return "not measured" if change is None else f"{change:+.2f} %"


def _parser() -> Parser:
    parser = Parser(prog="python3 -m bench.gpu", description=__doc__)
    choices = [*ROWS, *GROUPS]
    parser.add_argument("--only", action="append", metavar="ROW", choices=choices, help=f"one of {', '.join(choices)}")
    parser.add_argument("--minutes", type=duration, default=7.5, help="the whole run, building included (default 7.5)")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="where the files go")
    parser.add_argument("--simulated", action="store_true", help="a dry run on the simulated GPU, after `make build`")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    peer.add_flags(parser)
    return parser


def _chosen(only: list[str] | None) -> list[str]:
    """Return the rows to run. A group stands for its rows."""
    return [row for name in only or ROWS for row in GROUPS.get(name, (name,))]


def main() -> int:
    """Run the rows that were asked for. Return the exit code."""
    parser = _parser()
    options = parser.parse_args()
    peers = peer.read_flags(parser, options)
    ends = time.monotonic() + options.minutes * 60
    signal.signal(signal.SIGALRM, _ring)
    try:
        options.results.mkdir(parents=True, exist_ok=True)
        _say("building ...", end=" ")
        built = build()
        _say("ok")
        with Host(built, DRY if options.simulated else HARDWARE, options.simulated, options.results) as host:
            _say(f"{host.device.name}, driver for CUDA {host.device.cuda_version / 1000:.1f}, {os.cpu_count()} cores")
            report = _measure(host, _chosen(options.only), ends, options.results, peers)
    except (Unusable, ProgramFailed, OSError) as error:
        _say(f"nothing can be measured here: {error}")
        return 2
    written = report.save(options.results)
    print(report.as_json() if options.output == "json" else report.markdown())
    _say("written: " + ", ".join(map(str, written)))
    for line in report.missed:
        _say(f"missed: {line.what}: {line.result}, the bar is {line.bar}")
    if options.simulated:
        return 1 if report.failed else 0
    return 1 if report.failed or report.missed else 0


if __name__ == "__main__":
    run(main)
