"""Saturated shares: share error, the bill, launches outside turns, and the sum of throughputs."""

from bench import figures
from bench.gpu import spans
from bench.gpu.host import Host
from bench.gpu.node import Node, Run
from bench.table import Line, milli
from rig.loads import MS, SECOND, Case, Load, saturating

CLOCK_ERROR_NS = 10_000
"""How far a kernel's host time may be off: the map of the clocks, and what they drift within a run."""


def _tiny(request: float) -> Load:
    # An event per 16 launches: one per launch would make the host the bottleneck.
    return saturating(request, "20us", depth=8, group=16)


KERNELS = Case("70/30, 500 µs kernels", {"a": saturating(70), "b": saturating(30)}, MS // 2)
TINY = Case("50/30/20, 20 µs kernels", {"a": _tiny(50), "b": _tiny(30), "c": _tiny(20)}, 20_000)
GRAPHS = Case(
    "70/30, graphs of 20 × 100 µs",
    {"a": saturating(70, "100us", graph=20), "b": saturating(30, "100us", graph=20)},
    2 * MS,
)


def error_bar_pp(window_ns: int, run: Run, case: Case) -> float:
    """Return the bar of the share error: max(0.5 pp, (quantum + longest unit) / window)."""
    return max(0.5, (run.quantum_ns + case.longest_unit_ns) / window_ns * 100)


def share(host: Host, case: Case) -> list[Line]:
    """Measure the share error over every window, the bill, and launches outside turns."""
    scale = host.scale
    with Node(host) as node:
        run = node.run(case.loads, scale.long_steps)
    with Node(host, hook=False) as node:
        bare = node.run(case.loads, scale.bare_steps)
    lines = []
    for steps in scale.windows:
        errors = figures.share_errors(run.samples, case.targets, steps)
        without = figures.share_errors(bare.samples, case.targets, min(steps, scale.bare_steps))
        bar = error_bar_pp(steps * scale.step_ns, run, case)
        seconds = steps * scale.step_ns / SECOND
        detail = {
            "median_pp": figures.median(errors),
            "windows": len(errors),
            "quantum": milli(run.quantum_ns),
            "device_used": figures.utilisation(run.samples),
            "device_used_without_hook": figures.utilisation(bare.samples),
            "clock_drift_ppm": run.clock.drift_ppm,
        }
        what = f"share error over {seconds:g} s: {case.what}"
        lines.append(
            Line(
                what,
                f"≤ {bar:.2f} pp",
                f"{max(errors):.2f} pp",
                max(errors) <= bar,
                f"{max(without):.1f} pp",
                detail=detail,
            )
        )
    return [*lines, _bill(case, run), _outside(host, case, run)]


def _bill(case: Case, run: Run) -> Line:
    occupied = spans.occupied_ns(run.spans)
    charged = {owner: usage["used_ns"] for owner, usage in run.usage.items()}
    worst = max(abs(charged[owner] - ns) / ns * 100 if ns else 100.0 for owner, ns in occupied.items())
    kernel_ns = {owner: sum(s.ended_ns - s.started_ns for s in run.spans[owner]) for owner in run.spans}
    detail = {
        "charged_ns": charged,
        "occupied_ns": occupied,
        "kernels_alone_ns": kernel_ns,
        "estimated_ns": {owner: usage["estimated_ns"] for owner, usage in run.usage.items()},
    }
    return Line(f"bill against the device's log: {case.what}", "≤ 0.5 %", f"{worst:.2f} %", worst <= 0.5, detail=detail)


def _outside(host: Host, case: Case, run: Run) -> Line:
    outside = figures.outside_turns(run.kernels, run.held(0 if host.simulated else CLOCK_ERROR_NS))
    passed = sum(usage["passed"] for usage in run.usage.values())
    detail = {"kernels": sum(map(len, run.spans.values())), "passed_deliberately": passed, "turns": len(run.turns)}
    met = len(outside) <= passed
    text = f"{len(outside)} ({passed} passed on purpose)" if passed else str(len(outside))
    return Line(f"kernels outside turns: {case.what}", "0", text, met, detail=detail)


def throughput(host: Host) -> list[Line]:
    """Measure what n saturating shares get done together, against one alone without the hook."""
    scale = host.scale

    def busy(count: int, *, hook: bool) -> float:
        loads = {f"s{i}": saturating(100 / count) for i in range(count)}
        with Node(host, hook=hook) as node:
            return figures.utilisation(node.run(loads, scale.short_steps if hook else scale.bare_steps).samples)

    solo = busy(1, hook=False)
    alone = busy(1, hook=True) / solo
    lines = [Line("throughput alone, hook ÷ no hook", "≥ 0.99", f"{alone:.3f}", alone >= 0.99, detail={"solo": solo})]
    for count in scale.counts:
        ratio, bare = busy(count, hook=True) / solo, busy(count, hook=False) / solo
        what = f"throughput of {count} saturating shares ÷ one alone"
        lines.append(Line(what, "≥ 0.99", f"{ratio:.3f}", ratio >= 0.99, f"{bare:.3f}"))
        host.facts[f"aggregate_of_{count}_bare"] = bare
    return lines
