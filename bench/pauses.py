"""Pauses: what a share feels when another joins or leaves, and how smooth a limit is."""

import time

from bench import figures
from bench.figures import Kernel
from bench.node import START_DELAY_NS, Load, Node, Terms
from bench.scale import Scale
from bench.shares import MS, quantum_ns, saturating
from bench.table import Line, milli

LOG_KERNELS = 400_000
UNIT_NS = MS // 2
SECOND = 1_000_000_000


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
    cases = {
        "50 alone, an equal joins and leaves": {"a": saturating(50, "500us"), "late": saturating(50, "500us")},
        "50 and 30 at work, 20 joins and leaves": {
            "a": saturating(50, "500us"),
            "b": saturating(30, "500us"),
            "late": saturating(20, "500us"),
        },
    }
    lines = []
    for what, loads in cases.items():
        pause, owner, quantum = joined(loads, "late", scale.alone_s, hook=True)
        bar = max(100 * MS, len(loads) * quantum + UNIT_NS)
        bare = milli(joined(loads, "late", scale.alone_s, hook=False)[0]) if scale.baselines else ""
        detail: dict[str, object] = {"owner": owner, "quantum": milli(quantum)}
        lines.append(
            Line("stall", f"longest stall: {what}", f"≤ {milli(bar)}", milli(pause), pause <= bar, bare, detail=detail)
        )
    return lines


def limits(scale: Scale) -> list[Line]:
    """Measure limits alone on an idle device: the error over 1 s and the longest pause."""
    lines = []
    for limit, unit, unit_ns in ((50, "500us", UNIT_NS), (30, "500us", UNIT_NS), (30, "20ms", 20 * MS)):
        load = Load(Terms(limit, limit), "saturate", {"unit": unit, "depth": 4})
        with Node(log_kernels=LOG_KERNELS) as node:
            samples = node.run({"a": load}, scale.short_s)
            pause = figures.longest_pause_ns(node.kernels(), "a", samples[0].now_ns, samples[-1].now_ns)
            quantum = quantum_ns(node)
        error = max(figures.limit_errors(samples, "a", limit / 100))
        bar = max(100 * MS, unit_ns * (100 - limit) / limit + quantum)
        what = f"limit {limit} % alone, {unit.replace('us', ' µs').replace('ms', ' ms')} kernels"
        used = {"used": figures.utilisation(samples), "quantum": milli(quantum)}
        bare = f"{100 - limit} pp" if scale.baselines else ""
        lines.append(
            Line("limit", f"error over 1 s: {what}", "≤ 1 pp", f"{error:.2f} pp", error <= 1, bare, detail=used)
        )
        lines.append(Line("limit", f"longest pause: {what}", f"≤ {milli(bar)}", milli(pause), pause <= bar))
    return lines
