"""Pauses: what a share feels when another joins or leaves, and how smooth a limit is."""

import time
from collections.abc import Mapping

from bench import figures
from bench.gpu.host import Host
from bench.gpu.node import START_DELAY_NS, Node
from bench.table import Line, milli
from rig.loads import MS, SECOND, Load, Terms, saturating
from rig.programs import ProgramFailed

UNIT_NS = MS // 2
LATE = "late"
LOADS = {"a": saturating(50), "b": saturating(30), LATE: saturating(20)}


def _joined(host: Host, loads: Mapping[str, Load], *, hook: bool) -> tuple[float, str, float]:
    """Let the late one join after a while alone and leave after as long; return the longest pause, whose, the quantum.

    The late one is a new share in a new process, registered and started while the others run.
    """
    alone_ns = host.scale.alone_ns
    seconds = 3 * alone_ns / 1e9
    with Node(host, hook=hook) as node:
        stayers = node.start({owner: load for owner, load in loads.items() if owner != LATE}, seconds)
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        join_ns = begin_ns + alone_ns
        leave_ns, end_ns = join_ns + alone_ns, join_ns + 2 * alone_ns
        for program in stayers.values():
            program.go(begin_ns, end_ns)
        time.sleep(max(0, (begin_ns + alone_ns // 8 - time.monotonic_ns()) / 1e9))  # the others are at work
        late = node.start({LATE: loads[LATE]}, seconds)[LATE]
        if time.monotonic_ns() > join_ns and not host.simulated:
            raise ProgramFailed(f"the late program was not ready after {alone_ns * 7 // 8 / 1e9:.1f} s")
        late.go(join_ns, leave_ns)
        run = node.collect(begin_ns, 1)
    kernels = run.kernels
    margin_ns = min(alone_ns // 10, 100 * MS)
    pauses: dict[str, float] = {LATE: figures.longest_pause_ns(kernels, LATE, join_ns, leave_ns - margin_ns)}
    for owner in stayers:
        first_ns = min(kernel.started_ns for kernel in kernels if kernel.owner == owner)
        pauses[owner] = figures.longest_pause_ns(kernels, owner, first_ns, end_ns - margin_ns)
    worst = max(pauses, key=lambda owner: pauses[owner])
    return pauses[worst], worst, run.quantum_ns


def joining(host: Host) -> list[Line]:
    """Measure the longest stall when a share joins and leaves."""
    pause, owner, quantum = _joined(host, LOADS, hook=True)
    bare, _, _ = _joined(host, LOADS, hook=False)
    bar = max(100 * MS, len(LOADS) * quantum + UNIT_NS)
    detail = {"whose": owner, "quantum": milli(quantum)}
    what = "longest stall: 20 joins 50 and 30, and leaves, saturated"
    return [Line(what, f"≤ {milli(bar)}", milli(pause), pause <= bar, milli(bare), detail=detail)]


def limit(host: Host) -> list[Line]:
    """Measure a limit alone on an idle device: the error per step and the longest pause."""
    percent = 30.0
    load = Load(Terms(percent, percent), "saturate", {"unit": "500us", "depth": 4})
    with Node(host) as node:
        run = node.run({"a": load}, host.scale.short_steps)
    error = max(figures.limit_errors(run.samples, "a", percent / 100))
    pause = figures.longest_pause_ns(run.kernels, "a", run.samples[0].now_ns, run.samples[-1].now_ns)
    bar = max(100 * MS, UNIT_NS * (100 - percent) / percent + run.quantum_ns)
    used = {"used": figures.utilisation(run.samples), "quantum": milli(run.quantum_ns)}
    what = f"limit {percent:.0f} % alone, 500 µs kernels"
    return [
        Line(
            f"error over {host.scale.step_ns / SECOND:g} s: {what}",
            "≤ 1 pp",
            f"{error:.2f} pp",
            error <= 1,
            detail=used,
        ),
        Line(f"longest pause: {what}", f"≤ {milli(bar)}", milli(pause), pause <= bar),
    ]
