"""Pauses: what a share feels when another joins or leaves, and how smooth a limit is."""

import time

from bench import figures
from bench.gemini import gemini
from bench.scale import Scale
from bench.shares import quantum_ns
from bench.table import Line, milli
from rig.loads import MS, Load, Terms, saturating
from rig.node import START_DELAY_NS, Node
from rig.truth import Kernel

LOG_KERNELS = 400_000
UNIT_NS = MS // 2
SECOND = 1_000_000_000


def bursts(request: float, limit: float = 100) -> Load:
    """Return the load whose figures are known under Gemini's policy: 10 ms of work, then 3 ms without."""
    return Load(Terms(request, limit), "sync", {"unit": "1ms", "burst": 10, "gap": "3ms"})


def joined(loads: dict[str, Load], joiner: str, alone_s: int, *, hook: bool) -> tuple[float, str, float]:
    """Run all `loads` but `joiner`, let it join after `alone_s` seconds and leave `alone_s` seconds later.

    Returns the longest pause of any share while it had work (the joiner's first wait included), whose it was, and the
    quantum. The joiner is a new share in a new process, registered and started while the others run.
    """
    with Node(hook=hook, log_kernels=LOG_KERNELS) as node:
        stayers = {owner: node.start(owner, load) for owner, load in loads.items() if owner != joiner}
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        join_ns, leave_ns = begin_ns + alone_s * SECOND, begin_ns + 2 * alone_s * SECOND
        end_ns = leave_ns + alone_s * SECOND
        for program in stayers.values():
            program.go(begin_ns, end_ns)
        time.sleep(max(0, (join_ns - SECOND // 2 - time.monotonic_ns()) / 1e9))
        late = node.start(joiner, loads[joiner])
        late.go(join_ns, leave_ns)
        for program in (*stayers.values(), late):
            program.result()
        kernels = node.kernels()
        pauses = {
            owner: figures.longest_pause_ns(kernels, owner, _first_start_ns(kernels, owner), end_ns - SECOND // 10)
            for owner in stayers
        }
        pauses[joiner] = figures.longest_pause_ns(kernels, joiner, join_ns, leave_ns - SECOND // 10)
        worst = max(pauses, key=lambda owner: pauses[owner])
        return pauses[worst], worst, quantum_ns(node) if hook else 0


def _first_start_ns(kernels: list[Kernel], owner: str) -> int:
    return min(kernel.started_ns for kernel in kernels if kernel.owner == owner)


def joining(scale: Scale) -> list[Line]:
    """Measure the longest stall when a share joins and leaves."""
    equal = {"a": saturating(50, "500us"), "late": saturating(50, "500us")}
    three = {"a": saturating(50, "500us"), "b": saturating(30, "500us"), "late": saturating(20, "500us")}
    cases = (
        ("an equal joins and leaves, 10 ms bursts", {"a": bursts(50), "late": bursts(50)}, 10 * MS, "stall, ms"),
        ("an equal joins and leaves, saturated", equal, UNIT_NS, ""),
        ("20 joins 50 and 30, and leaves, saturated", three, UNIT_NS, ""),
    )
    lines = []
    for what, loads, unit_ns, figure in cases:
        pause, owner, quantum = joined(loads, "late", scale.alone_s, hook=True)
        bar = max(100 * MS, len(loads) * quantum + unit_ns)
        bare = milli(joined(loads, "late", scale.alone_s, hook=False)[0]) if scale.baselines else ""
        rival = f"{gemini(figure):.0f} ms" if figure else ""
        detail: dict[str, object] = {"owner": owner, "quantum": milli(quantum)}
        lines.append(
            Line(
                f"longest stall: {what}",
                f"≤ {milli(bar)}",
                milli(pause),
                pause <= bar,
                bare,
                rival,
                detail=detail,
            )
        )
    return lines


def limits(scale: Scale) -> list[Line]:
    """Measure limits alone on an idle device: the error over 1 s and the longest pause."""
    cases = (
        ("10 ms bursts", bursts(50, 50), 10 * MS, "limit, ms"),
        ("500 µs kernels", Load(Terms(50, 50), "saturate", {"unit": "500us", "depth": 4}), UNIT_NS, ""),
        ("500 µs kernels", Load(Terms(30, 30), "saturate", {"unit": "500us", "depth": 4}), UNIT_NS, ""),
        ("20 ms kernels", Load(Terms(30, 30), "saturate", {"unit": "20ms", "depth": 4}), 20 * MS, ""),
    )
    lines = []
    for work, load, unit_ns, figure in cases:
        limit = load.terms.limit
        with Node(log_kernels=LOG_KERNELS) as node:
            samples = node.run({"a": load}, scale.short_s)
            pause = figures.longest_pause_ns(node.kernels(), "a", samples[0].now_ns, samples[-1].now_ns)
            quantum = quantum_ns(node)
        error = max(figures.limit_errors(samples, "a", limit / 100))
        bar = max(100 * MS, unit_ns * (100 - limit) / limit + quantum)
        what = f"limit {limit:.0f} % alone, {work}"
        used = {"used": figures.utilisation(samples), "quantum": milli(quantum)}
        rival = f"{gemini(figure):.0f} ms" if figure else ""
        lines += [
            Line(f"error over 1 s: {what}", "≤ 1 pp", f"{error:.2f} pp", error <= 1, detail=used),
            Line(f"longest pause: {what}", f"≤ {milli(bar)}", milli(pause), pause <= bar, gemini=rival),
        ]
    return lines
