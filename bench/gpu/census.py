"""Checks whether a launch bypasses the hook, by three counts of one program: the census's, CUPTI's and the hook's."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu import frameworks
from bench.gpu.host import Host
from bench.gpu.node import Node
from bench.table import Line
from rig.loads import Terms
from rig.programs import ProgramFailed
from sharepod.driver.coverage import plain_name, read_functions

PROGRAM_TIMEOUT_S = 100.0
COUNTED_S = 0.6
"""The time from a program's last launch until the hook's count has been read."""


def _hooked(action: str) -> set[str]:
    return {plain_name(function.name) for function in read_functions() if function.action == action}


def hooked_launches() -> set[str]:
    """Return the driver functions that the hook counts as launches, without their variants."""
    return _hooked("LAUNCH")


def hooked_copies() -> set[str]:
    """Return the functions that it counts when they copy between device memory, without their variants."""
    return _hooked("COPY")


def read_counts(path: Path) -> Counter[str]:
    """Return the calls per driver function from a file of the census, variants together."""
    counts: Counter[str] = Counter()
    for name, calls in json.loads(path.read_text(encoding="utf-8")):
        counts[plain_name(name)] += calls
    return counts


def find_cupti() -> Path | None:
    """Return a libcupti. PyTorch's own comes first, as two of them do not work in one process."""
    roots = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
    patterns = ["nvidia/cu1*/lib/libcupti.so.*", "nvidia/cuda_cupti/lib/libcupti.so.*", "torch/lib/libcupti*.so*"]
    found = [path for root in roots for pattern in patterns for path in sorted(root.glob(pattern))]
    for toolkit in sorted(Path("/usr/local").glob("cuda*"), reverse=True):
        found += [*toolkit.glob("extras/CUPTI/lib64/libcupti.so.1*"), *toolkit.glob("lib*/libcupti.so.1*")]
    return found[0].resolve() if found else None


@dataclass(frozen=True, slots=True)
class Counts:
    """One program, counted three ways."""

    calls: Counter[str]
    captured: int
    """Launches into captures. They run no work by themselves."""
    hook: int
    cupti: Mapping[str, Any]

    @property
    def census(self) -> int:
        """Calls that launch, by the hook's own table, without captured ones."""
        return sum(self.calls[name] for name in hooked_launches()) - self.captured

    @property
    def copies(self) -> int:
        """Calls that launch if both sides are device memory, which their names do not tell."""
        return sum(self.calls[name] for name in hooked_copies())

    @property
    def escapes(self) -> dict[str, int]:
        """Calls that may use the device past the hook: of the class escape, and of functions without a class."""
        known = {plain_name(function.name) for function in read_functions() if function.kind != "escape"}
        return {name: n for name, n in self.calls.items() if n and name not in known}


def _count(host: Host, command: Sequence[str], name: str, *, cupti: Path | None) -> tuple[Counts, dict[str, Any]]:
    """Run a program with the census in front of the hook and with CUPTI. Return the counts and the program's output."""
    if host.built.census is None:
        raise ProgramFailed("the census is written for x86-64")
    with Node(host) as node:
        environment = {**node.share(name, Terms(100)), **frameworks.DETERMINED}
        calls, report = host.directory / f"{name}.calls", host.directory / f"{name}.cupti"
        environment |= {"LD_PRELOAD": f"{host.built.census}:{environment['LD_PRELOAD']}", "CENSUS_OUTPUT": str(calls)}
        environment |= {"CUPTI_REPORT": str(report), "CENSUS_LIBRARY": str(host.built.census)}
        if cupti is not None:
            environment |= {"CUDA_INJECTION64_PATH": str(host.built.cupti), "CUPTI_LIBRARY": str(cupti)}
        done = subprocess.run(
            list(command), env=environment, capture_output=True, text=True, check=False, timeout=PROGRAM_TIMEOUT_S
        )
        if done.returncode:
            raise ProgramFailed(f"{name}: exit {done.returncode}: {done.stderr.strip()[-600:]}")
        time.sleep(COUNTED_S if not host.simulated else 0.2)
        launches = node.usage()[name]["launches"]
    printed: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    told: dict[str, Any] = {"fault": "no libcupti was found" if cupti is None else "it left no report"}
    if report.exists():
        told = json.loads(report.read_text(encoding="utf-8"))
    return Counts(read_counts(calls), int(printed.get("captured", 0)), launches, told), printed


def _line(what: str, counts: Counts, truth: int | None, truth_name: str) -> Line:
    """Return the line that compares a program's counts. `truth`: the launches by another source; None: it failed."""
    shown = f"hook {counts.hook}, census {counts.census}"
    most = counts.census + counts.copies
    if truth is not None:
        # A call may have no work (a memset of no bytes), so fewer may reach the device than were called, but never
        # more. The census must not have missed any either: work that reached the device was launched.
        shown += f", {truth_name} {truth}"
        most = max(most, truth)
    else:
        shown += f", {truth_name}: {counts.cupti['fault']}"
    met = counts.census <= counts.hook <= most and (truth is None or truth <= counts.hook)
    detail = {
        "calls": dict(counts.calls.most_common()),
        "captured": counts.captured,
        "escapes": counts.escapes,
        "cupti": dict(counts.cupti),
    }
    return Line(f"launches counted: {what}", "the same", shown, met, detail=detail)


def census(host: Host) -> list[Line]:
    """Count the launches of a driver-API program and of PyTorch, three ways each."""
    cupti = None if host.simulated else find_cupti()
    command = host.probe("mix", unit="100us", count=host.scale.mix_rounds, log=4096)
    counts, printed = _count(host, command, "probe", cupti=cupti)
    own = int(printed["launches"])
    truth, name = (own, "the program itself") if counts.cupti.get("fault") else (counts.cupti["launches"], "CUPTI")
    lines = [_line("a driver-API program", counts, truth, name)]
    if not counts.cupti.get("fault"):
        stamped, traced = int(printed["stamped_ns"]), int(counts.cupti["kernel_ns"])
        text = f"{(stamped / traced - 1) * 100:+.2f} %" if traced else "CUPTI saw none"
        detail = {"stamped_ns": stamped, "cupti_ns": traced, "kernels": counts.cupti["kernels"]}
        lines.append(Line("kernel time by their own stamps, against CUPTI", "", text, None, detail=detail))
    if host.simulated:
        return [*lines, Line("launches counted: PyTorch", "the same", "not here: its runtime needs NVIDIA's driver")]
    if frameworks.missing(["torch"]):
        return [*lines, Line("launches counted: PyTorch", "the same", "not here: this python3 has no torch")]
    counts, printed = _count(host, frameworks.command("counted"), "torch", cupti=cupti)
    if "not_here" in printed:
        return [*lines, Line("launches counted: PyTorch", "the same", f"not here: {printed['not_here']}")]
    reached = None if counts.cupti.get("fault") else int(counts.cupti["launches"])
    return [*lines, _line("PyTorch, training steps and a graph", counts, reached, "CUPTI")]
