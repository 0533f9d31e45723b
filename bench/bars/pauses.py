"""Measures pauses: of a share when another joins or leaves, and under a limit."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from bench.bars import figures
from bench.bars.bar import LIMIT_ERROR, LIMIT_PAUSE, STALL
from bench.bars.rig import START_DELAY_NS, Rig, run
from bench.table import Line, milli
from rig.loads import MS, SECOND, Load, Terms, saturating
from rig.programs import ProgramFailed

UNIT_NS = MS // 2
LATE = "late"


def bursts(request: float, limit: float = 100) -> Load:
    """Return the load with known figures under Gemini's policy: 10 ms of work, then 3 ms without."""
    return Load(Terms(request, limit), "sync", {"unit": "1ms", "burst": 10, "gap": "3ms"})


def _limited(percent: float, unit: str) -> Load:
    return Load(Terms(percent, percent), "saturate", {"unit": unit, "depth": 4})


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement. `figure` names its known figure under Gemini's policy."""

    what: str
    loads: Mapping[str, Load]
    unit_ns: int = UNIT_NS
    figure: str = ""


EQUAL = Case("an equal joins and leaves, saturated", {"a": saturating(50), LATE: saturating(50)})
THREE = Case(
    "20 joins 50 and 30, and leaves, saturated", {"a": saturating(50), "b": saturating(30), LATE: saturating(20)}
)
JOINS = (
    Case("an equal joins and leaves, 10 ms bursts", {"a": bursts(50), LATE: bursts(50)}, 10 * MS, "stall, ms"),
    EQUAL,
    THREE,
)
LIMIT = Case("500 µs kernels", {"a": _limited(30, "500us")})
LIMITS = (
    Case("10 ms bursts", {"a": bursts(50, 50)}, 10 * MS, "limit, ms"),
    Case("500 µs kernels", {"a": _limited(50, "500us")}),
    LIMIT,
    Case("20 ms kernels", {"a": _limited(30, "20ms")}, 20 * MS),
)


def joined(rig: Rig, loads: Mapping[str, Load], *, hook: bool) -> tuple[float, str, float]:
    """Let the late share join and leave again; return the longest pause, the share that had it, and the quantum.

    The others first run alone. The late share joins after that time and leaves after as long. The pauses are those of
    any share while it had work, the late one's first wait included. The late one is a new share in a new process,
    registered and started while the others run.
    """
    alone_ns = rig.scale.alone_ns
    seconds = 3 * alone_ns / 1e9
    with rig.node(hook=hook, log=True) as node:
        stayers = node.start({owner: load for owner, load in loads.items() if owner != LATE}, seconds)
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        join_ns = begin_ns + alone_ns
        leave_ns, end_ns = join_ns + alone_ns, join_ns + 2 * alone_ns
        for program in stayers.values():
            program.go(begin_ns, end_ns)
        time.sleep(max(0, (begin_ns + alone_ns // 8 - time.monotonic_ns()) / 1e9))  # the others are already working
        late = node.start({LATE: loads[LATE]}, seconds)[LATE]
        if time.monotonic_ns() > join_ns and alone_ns >= SECOND:
            raise ProgramFailed(f"the late program was not ready after {alone_ns * 7 // 8 / 1e9:.1f} s")
        late.go(join_ns, leave_ns)
        done = node.collect(begin_ns, 1)
    margin_ns = min(alone_ns // 10, 100 * MS)  # at the end, when programs stop, a pause is no stall
    pauses: dict[str, float] = {LATE: figures.longest_pause_ns(done.kernels, LATE, join_ns, leave_ns - margin_ns)}
    for owner in stayers:
        first_ns = min(kernel.started_ns for kernel in done.kernels if kernel.owner == owner)
        pauses[owner] = figures.longest_pause_ns(done.kernels, owner, first_ns, end_ns - margin_ns)
    worst = max(pauses, key=lambda owner: pauses[owner])
    return pauses[worst], worst, done.quantum_ns


def stall(rig: Rig, case: Case, gemini: str = "") -> Line:
    """Measure the longest stall when a share joins and leaves."""
    pause, owner, quantum = joined(rig, case.loads, hook=True)
    bare = joined(rig, case.loads, hook=False)[0] if rig.scale.baselines else None
    bound = max(STALL.bound, len(case.loads) * quantum + case.unit_ns)
    detail = {"owner": owner, "quantum": milli(quantum)}
    return STALL.line(case.what, pause, bound=bound, no_hook=bare, gemini=gemini, detail=detail)


def limit(rig: Rig, case: Case, gemini: str = "") -> list[Line]:
    """Measure a limit alone on an idle device: the error per step and the longest pause."""
    percent = case.loads["a"].terms.limit
    done = run(rig, case.loads, rig.scale.short_steps, log=True)
    error = max(figures.limit_errors(done.samples, "a", percent / 100))
    pause = figures.longest_pause_ns(done.kernels, "a", done.samples[0].now_ns, done.samples[-1].now_ns)
    bound = max(LIMIT_PAUSE.bound, case.unit_ns * (100 - percent) / percent + done.quantum_ns)
    what = f"limit {percent:.0f} % alone, {case.what}"
    detail = {"used": figures.utilisation(done.samples), "quantum": milli(done.quantum_ns)}
    return [
        LIMIT_ERROR.line(f"{rig.scale.step_ns / SECOND:g} s: {what}", error, detail=detail),
        LIMIT_PAUSE.line(what, pause, bound=bound, gemini=gemini),
    ]
