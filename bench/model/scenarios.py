"""The scenarios in which Gemini's behaviour is known, each with the figure that decides it.

Bursts of 10 ms with gaps of 3 ms (device-busy 77 % alone) unless the scenario says otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bench.model.gemini import Constants, Gemini
from bench.model.node import Node
from bench.model.program import MS, Load, Program, S
from bench.model.timeline import Timeline, percent_between, percentile, worst_window

SOLO_BUSY = 10 / 13
GEMINI = Constants()


class Run(Protocol):
    """What both models leave behind."""

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """Who used the device when."""

    @property
    def loads(self) -> Mapping[str, Load]:
        """The programs, with their finished bursts."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison.

    Attributes:
        name: what happens.
        figure: what `measure` returns, with its unit.
        programs: who runs.
        until_ns: how long.
        measure: the figure of one run.
        known: what Gemini is known to reach; None where no figure is known, only the behaviour.
        tolerance: of the model against `known`, relative.
        smaller_wins: the better direction.
        constants: Gemini's settings.
    """

    name: str
    figure: str
    programs: list[Program]
    until_ns: int
    measure: Callable[[Run], float]
    known: float | None = None
    tolerance: float = 0.05
    smaller_wins: bool = True
    constants: Constants = GEMINI

    def ours(self) -> float:
        """Return the figure of our policy."""
        return self.measure(Node(self.programs).run(self.until_ns))

    def gemini(self) -> float:
        """Return the figure of Gemini's."""
        return self.measure(Gemini(self.programs, self.constants).run(self.until_ns))


def bursts(name: str, request: float, limit: float = 100, *, start_ns: int = 0) -> Program:
    """Return the program that most scenarios use."""
    return Program(name, request, limit, work_ns=10 * MS, gap_ns=3 * MS, start_ns=start_ns)


def busy_percent(name: str, start_ns: int, end_ns: int) -> Callable[[Run], float]:
    """Measure the part of the time in which a program's work ran."""
    return lambda run: 100 * run.timelines[name].busy_between(start_ns, end_ns) / (end_ns - start_ns)


def error_from(name: str, percent: float, start_ns: int, end_ns: int) -> Callable[[Run], float]:
    """Measure how far a program's part of what everyone got is from `percent`."""
    return lambda run: abs(
        percent_between(run.timelines[name], list(run.timelines.values()), start_ns, end_ns) - percent
    )


def unevenness(name: str, start_ns: int, end_ns: int) -> Callable[[Run], float]:
    """Measure how far any window of 1 s is from the average."""

    def measure(run: Run) -> float:
        line = run.timelines[name]
        return worst_window(line, S, start_ns, end_ns, busy_percent(name, start_ns, end_ns)(run))

    return measure


def longest_pause(name: str, start_ns: int, end_ns: int) -> Callable[[Run], float]:
    """Measure the longest time in which none of a program's work ran, in ms."""
    return lambda run: run.timelines[name].longest_pause_ns(start_ns, end_ns) / MS


def latency(name: str, percent: float) -> Callable[[Run], float]:
    """Measure a percentile of the time from a burst's arrival to its end, in ms."""
    return lambda run: percentile([end - begin for begin, end in run.loads[name].bursts], percent) / MS


def join(window_ms: int, known: float) -> Scenario:
    """A second program joins one that has been alone."""
    return Scenario(
        f"late joiner, window {window_ms} ms",
        "stall of the first, ms",
        [bursts("first", 50), bursts("joiner", 50, start_ns=30 * S)],
        60 * S,
        longest_pause("first", 30 * S, 60 * S),
        known,
        0.07,
        constants=Constants(window_ns=window_ms * MS),
    )


def limit(window_ms: int, known: float) -> Scenario:
    """A limit of 50 % on an idle device."""
    return Scenario(
        f"limit 50 alone, window {window_ms} ms",
        "longest pause, ms",
        [bursts("only", 50, 50)],
        60 * S,
        longest_pause("only", 20 * S, 60 * S),
        known,
        0.07,
        constants=Constants(window_ns=window_ms * MS),
    )


def duty_pair(min_quota_ms: int, known: float) -> Scenario:
    """Two programs that need 10 % each."""
    return Scenario(
        f"two of 10 % duty, min quota {min_quota_ms} ms",
        "each gets, % of the device",
        [Program(name, 50, work_ns=5 * MS, gap_ns=45 * MS) for name in ("one", "other")],
        40 * S,
        busy_percent("one", 10 * S, 40 * S),
        known,
        smaller_wins=False,
        constants=Constants(min_quota_ns=min_quota_ms * MS),
    )


_TRAINER = Program("trainer", 70, work_ns=200 * MS, gap_ns=3 * MS)
_INFERENCE = Program("inference", 30, work_ns=5 * MS, gap_ns=45 * MS)
_UNHOOKED = Program("trainer", 70, unit_ns=5 * MS, synchronises=False)

SCENARIOS = [
    Scenario(
        "requests 20 and 60, saturated",
        "error of the 20's part of what both get (25 %), pp",
        [bursts("a", 20), bursts("b", 60)],
        60 * S,
        error_from("a", 25, 20 * S, 60 * S),
        15,
    ),
    Scenario(
        "requests 80 and 80",
        "error of one's part of what both get (50 %) over 1 s, pp",
        [bursts("a", 80), bursts("b", 80)],
        60 * S,
        unevenness("a", 20 * S, 60 * S),
    ),
    Scenario(
        "30/60, 40/60 and 30/50",
        "unevenness of the first over 1 s, pp",
        [bursts("a", 30, 60), bursts("b", 40, 60), bursts("c", 30, 50)],
        60 * S,
        unevenness("a", 20 * S, 60 * S),
    ),
    join(10_000, 4600),
    Scenario(
        "late joiner, 70 s after",
        "longest stall of the first, ms",
        [bursts("first", 50), bursts("joiner", 50, start_ns=30 * S)],
        120 * S,
        longest_pause("first", 100 * S, 120 * S),
        4550,
    ),
    join(2000, 549),
    join(1000, 432),
    join(500, 302),
    limit(10_000, 5000),
    limit(2000, 1015),
    limit(1000, 509),
    limit(500, 256),
    duty_pair(100, 5),
    duty_pair(20, 10),
    Scenario(
        "four of 2 % duty beside a trainer",
        "the trainer keeps, % of its solo throughput",
        [bursts("trainer", 50)] + [Program(f"duty{i}", 12.5, work_ns=1 * MS, period_ns=50 * MS) for i in range(4)],
        40 * S,
        lambda run: busy_percent("trainer", 10 * S, 40 * S)(run) / SOLO_BUSY,
        100 * 0.38 / 0.77,
        smaller_wins=False,
    ),
    Scenario(
        "inference 5/50 ms beside 200 ms bursts",
        "p50 of the inference, ms",
        [_INFERENCE, _TRAINER],
        60 * S,
        latency("inference", 50),
        175,
    ),
    Scenario(
        "inference beside unhooked synchronises",
        "longest request, ms",
        [_INFERENCE, _UNHOOKED],
        60 * S,
        latency("inference", 100),
        10_000,
    ),
]
