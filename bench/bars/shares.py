"""Measures saturated shares: share error, bill, launches outside turns, and the sum of throughputs."""

from bench.bars import figures
from bench.bars.bar import BILL, OUTSIDE, SHARE_ERROR, SHARE_ERROR_OF_A_MINUTE, THROUGHPUT
from bench.bars.rig import Rig, Run, run
from bench.table import Line, milli
from rig.loads import MS, SECOND, Case, Load, saturating

WARM_LAUNCHES = 3
"""Launches of every program before the measurement: it is about running shares, not about learning how long their
kernels take."""


def _load(request: float, unit: str = "500us", **options: object) -> Load:
    return saturating(request, unit, warm=WARM_LAUNCHES, **options)


def _tiny(request: float) -> Load:
    # An event per 64 launches: with one per launch the host would be the bottleneck, and the case not device-bound.
    return _load(request, "5us", depth=15, group=64)


def _small(request: float) -> Load:
    return _load(request, "20us", depth=8, group=16)


KERNELS = Case("70/30, 500 µs kernels", {"a": _load(70), "b": _load(30)}, MS // 2)
TINY = Case("50/30/20, 5 µs kernels", {"a": _tiny(50), "b": _tiny(30), "c": _tiny(20)}, 5_000)
SMALL = Case("50/30/20, 20 µs kernels", {"a": _small(50), "b": _small(30), "c": _small(20)}, 20_000)
LONG = Case("60/40, 20 ms kernels", {"a": _load(60, "20ms", depth=4), "b": _load(40, "20ms", depth=4)}, 20 * MS)
UNEQUAL = Case("70 with 5 µs, 30 with 20 ms kernels", {"a": _tiny(70), "b": _load(30, "20ms", depth=4)}, 20 * MS)
VARIED = Case(
    "70/30, one function that takes 20 µs or 1 ms",
    {"a": _load(70, "20us", other="1ms"), "b": _load(30, "20us", other="1ms")},
    MS,
)
GRAPHS = Case(
    "70/30, graphs of 20 × 100 µs", {"a": _load(70, "100us", graph=20), "b": _load(30, "100us", graph=20)}, 2 * MS
)
EIGHT = Case(
    "8 shares 5–20 %, kernels 5 µs – 20 ms",
    {
        "a": _tiny(20),
        "b": _load(20, "50us", depth=25, group=4),
        "c": _load(15, "200us", depth=25),
        "d": _load(15),
        "e": _load(10, "1ms"),
        "f": _load(10, "2ms"),
        "g": _load(5, "5ms", depth=4),
        "h": _load(5, "20ms", depth=4),
    },
    20 * MS,
)
CASES = (KERNELS, TINY, LONG, UNEQUAL, VARIED, GRAPHS, EIGHT)
"""The cases of the simulated GPU. A host cannot keep a real one filled with kernels of 5 µs: SMALL is for that."""


def error_bar_pp(window_ns: int, run_: Run, case: Case) -> float:
    """Return the bar of the share error: max(0.5 pp, (quantum + longest unit) / window); 0.1 pp over a minute."""
    if window_ns >= 60 * SECOND:
        return SHARE_ERROR_OF_A_MINUTE
    return max(SHARE_ERROR.bound, (run_.quantum_ns + case.longest_unit_ns) / window_ns * 100)


def bill_error(run_: Run) -> float:
    """Return the worst relative error of the bill against the truth, in percent."""
    return max(map(abs, run_.bill_errors.values()))


def share(rig: Rig, case: Case) -> list[Line]:
    """Measure one case: the share error over every window, the bill, and on a real GPU launches outside turns."""
    scale = rig.scale
    steps = scale.minute_steps if case is KERNELS else scale.share_steps
    done = run(rig, case.loads, steps, log=rig.real)
    bare = run(rig, case.loads, min(steps, scale.bare_steps), hook=False) if scale.baselines else None
    lines = _errors(rig, case, done, bare)
    if not done.accounts:  # a peer keeps no accounts
        return lines
    lines.append(
        BILL.line(case.what, bill_error(done), bound=BILL.under(rig.profile), detail={**done.bill, **done.detail})
    )
    return [*lines, _outside(case, done)] if rig.real else lines


def _errors(rig: Rig, case: Case, done: Run, bare: Run | None) -> list[Line]:
    """Return a line for the share error over each window that fits into the run. `bare`: the run without the hook."""
    lines = []
    for window in [steps for steps in rig.scale.windows if steps < len(done.samples)]:
        window_ns = window * rig.scale.step_ns
        errors = figures.share_errors(done.samples, case.targets, window)
        detail = {
            "median_pp": figures.median(errors),
            "windows": len(errors),
            "quantum": milli(done.quantum_ns),
            "device_used": figures.utilisation(done.samples),
        }
        without = ""
        if bare is not None:
            detail["device_used_without_hook"] = figures.utilisation(bare.samples)
            steps = min(window, len(bare.samples) - 1)
            without = f"{max(figures.share_errors(bare.samples, case.targets, steps)):.1f} pp"
        title = f"{window_ns / SECOND:g} s: {case.what}"
        bound = error_bar_pp(window_ns, done, case)
        lines.append(SHARE_ERROR.line(title, max(errors), bound=bound, no_hook=without, detail=detail))
    return lines


def _outside(case: Case, run_: Run) -> Line:
    """Return the line about kernels that started outside their share's turns."""
    outside = len(figures.outside_turns(run_.kernels, run_.held))
    passed = sum(account.passed for account in run_.accounts.values())
    note = f"({passed} passed on purpose)" if passed else ""
    detail = {"kernels": len(run_.kernels), "turns": len(run_.held)}
    return OUTSIDE.line(case.what, outside, bound=passed, note=note, detail=detail)


def measure(rig: Rig) -> list[Line]:
    """Measure every case of the simulated GPU, the bills last."""
    lines = [line for case in CASES for line in share(rig, case)]
    return sorted(lines, key=lambda line: line.what.startswith("bill"))


def throughput(rig: Rig) -> list[Line]:
    """Measure what n saturating shares do together, relative to one alone without the hook."""
    scale = rig.scale

    def busy(count: int, *, hook: bool) -> float:
        loads = {f"s{i}": _load(100 / count) for i in range(count)}
        steps = scale.short_steps if hook else scale.bare_steps
        return figures.utilisation(run(rig, loads, steps, hook=hook).samples)

    solo = busy(1, hook=False)
    bound = THROUGHPUT.under(rig.profile)
    alone = busy(1, hook=True) / solo
    lines = [THROUGHPUT.line("alone, hook ÷ no hook", alone, bound=bound, detail={"solo": solo})]
    for count in scale.counts:
        ratio, bare = busy(count, hook=True) / solo, None
        if scale.baselines:
            bare = busy(count, hook=False) / solo
        what = f"of {count} saturating shares ÷ one alone"
        lines.append(THROUGHPUT.line(what, ratio, bound=bound, no_hook=bare))
    return lines
