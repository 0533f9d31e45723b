"""Saturated shares: share error, the bill, and the sum of throughputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench import figures
from bench.scale import Scale
from bench.table import Line, milli
from rig.loads import MS, Case, Load, saturating
from rig.node import Node
from rig.truth import Sample


def _tiny(request: float) -> Load:
    # An event per 64 launches: one per launch would make the host the bottleneck, and the case device-bound no more.
    return saturating(request, "5us", depth=15, group=64)


CASES = (
    Case("70/30, 500 µs kernels", {"a": saturating(70, "500us"), "b": saturating(30, "500us")}, MS // 2),
    Case("50/30/20, 5 µs kernels", {"a": _tiny(50), "b": _tiny(30), "c": _tiny(20)}, 5_000),
    Case("60/40, 20 ms kernels", {"a": saturating(60, "20ms", depth=4), "b": saturating(40, "20ms", depth=4)}, 20 * MS),
    Case("70 with 5 µs, 30 with 20 ms kernels", {"a": _tiny(70), "b": saturating(30, "20ms", depth=4)}, 20 * MS),
    Case(
        "70/30, graphs of 20 × 100 µs",
        {"a": saturating(70, "100us", graph=20), "b": saturating(30, "100us", graph=20)},
        2 * MS,
    ),
    Case(
        "8 shares 5–20 %, kernels 5 µs – 20 ms",
        {
            "a": _tiny(20),
            "b": saturating(20, "50us", depth=25, group=4),
            "c": saturating(15, "200us", depth=25),
            "d": saturating(15, "500us"),
            "e": saturating(10, "1ms"),
            "f": saturating(10, "2ms"),
            "g": saturating(5, "5ms", depth=4),
            "h": saturating(5, "20ms", depth=4),
        },
        20 * MS,
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What one case gave."""

    samples: Sequence[Sample]
    used_ns: Mapping[str, int]
    """Device time by the truth at the very end, all drained."""
    charged_ns: Mapping[str, int]
    quantum_ns: float
    """Median length of the turns that their quantum ended; the shortest quantum when none did."""


WARM_LAUNCHES = 3
"""Of every program before the measurement: it is about shares that run, not about how long their kernels turn out to
be."""


def run(case: Case, seconds: int, *, hook: bool = True) -> Run:
    """Run `case` on a node of its own, its programs warm."""
    warm = {owner: replace(load, options={**load.options, "warm": WARM_LAUNCHES}) for owner, load in case.loads.items()}
    with Node(hook=hook) as node:
        samples = node.run(warm, seconds)
        used = node.sample().busy_ns
        if not hook:
            return Run(samples, used, {}, 0)
        charged = {owner: share.devices[0].used_ns for owner, share in node.usage().items()}
        return Run(samples, used, charged, quantum_ns(node))


def quantum_ns(node: Node) -> float:
    """Return the median length of the turns that a quantum ended, or the policy's shortest quantum."""
    ended = [turn.closed_ns - turn.granted_ns for turn in node.turns() if turn.reason == "quantum"]
    return figures.median(ended) if ended else 2.0 * MS


def error_bar_pp(window_s: int, run_: Run, case: Case) -> float:
    """Return the bar of the share error: max(0.5 pp, (quantum + longest unit) / window); 0.1 pp over a minute."""
    if window_s >= 60:
        return 0.1
    return max(0.5, (run_.quantum_ns + case.longest_unit_ns) / (window_s * 1e9) * 100)


def bill_error(run_: Run) -> float:
    """Return the worst relative error of the bill against the truth, in percent."""
    return max(abs(run_.charged_ns[owner] - used) / used * 100 for owner, used in run_.used_ns.items())


def error_lines(case: Case, run_: Run, bare: Run | None) -> list[Line]:
    """Return a line per window that fits into the run."""
    lines = []
    steps = len(run_.samples) - 1
    for window_s in [w for w in (1, 10, 60) if w <= steps]:
        errors = figures.share_errors(run_.samples, case.targets, window_s)
        bar = error_bar_pp(window_s, run_, case)
        no_hook = ""
        if bare is not None and window_s < len(bare.samples):
            no_hook = f"{max(figures.share_errors(bare.samples, case.targets, window_s)):.1f} pp"
        lines.append(
            Line(
                f"share error over {window_s} s: {case.what}",
                f"≤ {bar:.2f} pp",
                f"{max(errors):.2f} pp",
                max(errors) <= bar,
                no_hook,
                detail={
                    "median_pp": figures.median(errors),
                    "windows": len(errors),
                    "quantum": milli(run_.quantum_ns),
                    "device_used": figures.utilisation(run_.samples),
                },
            )
        )
    return lines


def measure(scale: Scale) -> list[Line]:
    """Measure the share error in every case, and the bill along the way."""
    lines, bills = [], []
    for number, case in enumerate(CASES):
        seconds = scale.long_s if number == 0 else scale.short_s
        done = run(case, seconds)
        bare = run(case, min(seconds, 12), hook=False) if scale.baselines else None
        lines += error_lines(case, done, bare)
        bills.append((bill_error(done), case, done))
    for error, case, done in bills:
        lines.append(
            Line(
                f"bill against the truth: {case.what}",
                "≤ 0.5 %",
                f"{error:.2f} %",
                error <= 0.5,
                detail={"used_ns": dict(done.used_ns), "charged_ns": dict(done.charged_ns)},
            )
        )
    return lines


def throughput(scale: Scale) -> list[Line]:
    """Measure what n saturating shares get done together, against one alone without the hook."""
    alone = Case("one alone", {"a": saturating(100, "500us")}, MS // 2)
    solo = figures.utilisation(run(alone, scale.short_s, hook=False).samples)
    lines = []
    for count in (1, 2, 4, 8):
        loads = {f"s{i}": saturating(100 / count, "500us") for i in range(count)}
        case = Case(f"{count} saturating shares", loads, MS // 2)
        ratio = figures.utilisation(run(case, scale.short_s).samples) / solo
        no_hook = ""
        if scale.baselines and count > 1:
            no_hook = f"{figures.utilisation(run(case, scale.short_s, hook=False).samples) / solo:.3f}"
        what = (
            f"throughput of {count} saturating shares ÷ one alone" if count > 1 else "throughput alone, hook ÷ no hook"
        )
        lines.append(Line(what, "≥ 0.99", f"{ratio:.3f}", ratio >= 0.99, no_hook, detail={"solo": solo}))
    return lines
