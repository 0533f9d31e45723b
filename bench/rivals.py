"""The cases in which Gemini's behaviour is known: ours measured on the simulated device, Gemini's from its model.

Bursts of 10 ms with gaps of 3 ms unless the case says otherwise, as in the model (`bench.model.scenarios`).
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench import figures
from bench.model.scenarios import SCENARIOS
from bench.scale import Scale
from bench.table import Line
from rig.node import Load, Node, Terms
from rig.programs import Result
from rig.truth import Sample

BURSTS = {"unit": "1ms", "burst": 10, "gap": "3ms"}


@functools.cache
def gemini(scenario: str) -> float:
    """Return the figure of Gemini's model for a scenario of bench.model. Raises KeyError for an unknown one."""
    for known in SCENARIOS:
        if known.name == scenario:
            return known.gemini()
    raise KeyError(scenario)


def bursts(request: float, limit: float = 100) -> Load:
    """Return the load of most scenarios."""
    return Load(Terms(request, limit), "sync", BURSTS)


Measure = Callable[[list[Sample], Mapping[str, Result]], float]


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario of the model, and how it is measured here."""

    scenario: str
    figure: str
    unit: str
    loads: Mapping[str, Load]
    measure: Measure
    smaller_wins: bool = True


def _part_error(owner: str, percent: float) -> Measure:
    def measure(samples: list[Sample], results: Mapping[str, Result]) -> float:
        own = figures.used_ns(samples[0], samples[-1], owner)
        total = sum(figures.used_ns(samples[0], samples[-1], other) for other in results)
        return abs(100 * own / total - percent)

    return measure


def _unevenness(owner: str) -> Measure:
    def measure(samples: list[Sample], results: Mapping[str, Result]) -> float:
        average = figures.utilisation(samples, [owner])
        return max(figures.limit_errors(samples, owner, average))

    return measure


def _busy(owner: str) -> Measure:
    return lambda samples, results: 100 * figures.utilisation(samples, [owner])


def _latency(percent: float) -> Measure:
    return lambda samples, results: figures.percentile(results["inference"].latencies_ns, percent) / 1e6


INFERENCE = Load(Terms(30), "periodic", {"work": "5ms", "unit": "1ms", "period": "50ms"})
DUTY = Load(Terms(50), "periodic", {"work": "5ms", "unit": "1ms", "period": "50ms"})

CASES = (
    Case(
        "requests 20 and 60, saturated",
        "error of the 20's part of what both get",
        "pp",
        {"a": bursts(20), "b": bursts(60)},
        _part_error("a", 25),
    ),
    Case(
        "requests 80 and 80",
        "unevenness of one over 1 s",
        "pp",
        {"a": bursts(80), "b": bursts(80)},
        _unevenness("a"),
    ),
    Case(
        "30/60, 40/60 and 30/50",
        "unevenness of the first over 1 s",
        "pp",
        {"a": bursts(30, 60), "b": bursts(40, 60), "c": bursts(30, 50)},
        _unevenness("a"),
    ),
    Case(
        "two of 10 % duty, min quota 100 ms",
        "each gets, of the device",
        "%",
        {"one": DUTY, "other": DUTY},
        _busy("one"),
        smaller_wins=False,
    ),
    Case(
        "inference 5/50 ms beside 200 ms bursts",
        "p50 of the inference",
        "ms",
        {"inference": INFERENCE, "trainer": Load(Terms(70), "sync", {"unit": "1ms", "burst": 200, "gap": "3ms"})},
        _latency(50),
    ),
    Case(
        "inference beside unhooked synchronises",
        "longest request",
        "ms",
        {"inference": INFERENCE, "trainer": Load(Terms(70), "saturate", {"unit": "5ms", "depth": 4})},
        _latency(100),
    ),
)


def _run(case: Case, seconds: int, *, hook: bool) -> float:
    with Node(hook=hook, agent_settings={"overcommit": "true"}) as node:
        programs = {owner: node.start(owner, load) for owner, load in case.loads.items()}
        start_ns = node.sample().now_ns + 200_000_000
        for program in programs.values():
            program.go(start_ns, start_ns + (seconds + 1) * 1_000_000_000)
        samples = node.samples(start_ns + 500_000_000, seconds)
        return case.measure(samples, {owner: program.result() for owner, program in programs.items()})


def rivals(scale: Scale) -> list[Line]:
    """Measure every case; ours must be better than Gemini's (where both can get all they ask for, as good)."""
    lines = []
    for case in CASES:
        ours, theirs = _run(case, scale.short_s, hook=True), gemini(case.scenario)
        # 2 %: where both get all they ask for, the starts of programs decide the last digit.
        better = ours < theirs if case.smaller_wins else ours >= 0.98 * theirs
        bare = f"{_run(case, scale.short_s, hook=False):.2f} {case.unit}" if scale.baselines else ""
        sign = "<" if case.smaller_wins else "≥"
        lines.append(
            Line(
                "rivals",
                f"{case.figure}: {case.scenario}",
                f"{sign} Gemini's",
                f"{ours:.2f} {case.unit}",
                better,
                bare,
                f"{theirs:.1f} {case.unit}",
            )
        )
    return lines
