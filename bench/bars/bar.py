"""The bars that the simulated and the real GPU share: each has a row, a bound and a format of its figure.

A bound is an upper one unless `least` is set. If the bound depends on the run (a quantum, a bare chain), the row has
its smallest value, and the measurement gives the value of its run. bench/scale.py has the length of each measurement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.table import Line
from rig.loads import MS


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        figure: what is measured, in words; the case follows it in a line.
        bound: in the figure's own unit (ns for times).
        unit: the written unit.
        digits: of the figure, after the point.
        per: how much of the figure's own unit is one written unit.
        bound_digits: of the bound; None: as few as it needs.
        least: the bound is a lower one.
        signed: the figure is written with its sign, and its absolute value is judged.
        excusable: it may be missed with a stated reason (only the hand-off and hardware).
        profiles: other bounds, by the profile of the simulated device.
    """

    figure: str
    bound: float
    unit: str
    digits: int
    per: float = 1.0
    bound_digits: int | None = None
    least: bool = False
    signed: bool = False
    excusable: bool = False
    profiles: Mapping[str, float] = field(default_factory=dict)

    def under(self, profile: str) -> float:
        """Return the bound under a profile of the simulated device. An empty `profile`: the bound on a real one."""
        return self.profiles.get(profile, self.bound)

    def text(self, value: float) -> str:
        """Write a figure with its unit."""
        return self._with_unit(f"{value / self.per:{'+' if self.signed else ''}.{self.digits}f}")

    def met(self, value: float, bound: float | None = None) -> bool:
        """Tell whether a figure is within the bound, or within the bound of its run."""
        limit = self.bound if bound is None else bound
        return value >= limit if self.least else (abs(value) if self.signed else value) <= limit

    def line(
        self,
        case: str,
        value: float,
        *,
        bound: float | None = None,
        judged: bool = True,
        note: str = "",
        no_hook: float | str | None = None,
        gemini: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> Line:
        """Return the table's line for one case. `note` follows the figure. If it is not `judged` it is only shown."""
        limit = self.bound if bound is None else bound
        shown = f"{limit / self.per:g}" if self.bound_digits is None else f"{limit / self.per:.{self.bound_digits}f}"
        return Line(
            self.figure.format(case),
            f"{'≥' if self.least else '≤'} {self._with_unit(shown)}" if judged else "",
            f"{self.text(value)} {note}".rstrip(),
            self.met(value, limit) if judged else None,
            no_hook if isinstance(no_hook, str) else "" if no_hook is None else self.text(no_hook),
            gemini,
            detail or {},
            self.excusable,
        )

    def _with_unit(self, number: str) -> str:
        return f"{number} {self.unit}".rstrip()


SHARE_ERROR = Bar("share error over {}", 0.5, "pp", 2, bound_digits=2)
"""Or (quantum + longest unit) / window, whichever is more."""
SHARE_ERROR_OF_A_MINUTE = 0.1
BILL = Bar("bill against the truth: {}", 0.5, "%", 2, profiles={"harsh": 1})
BILL_ABOVE = replace(BILL, figure="bill against the truth, {}", signed=True)
OUTSIDE = Bar("kernels outside turns: {}", 0, "", 0)
"""Or as many kernels as were passed deliberately."""
THROUGHPUT = Bar("throughput {}", 0.99, "", 3, least=True, profiles={"typical": 0.985, "harsh": 0.98})
STALL = Bar("longest stall: {}", 100 * MS, "ms", 1, per=MS, bound_digits=1)
"""Or shares × quantum + longest unit."""
LIMIT_ERROR = Bar("error over {}", 1, "pp", 2)
LIMIT_PAUSE = Bar("longest pause: {}", 100 * MS, "ms", 1, per=MS, bound_digits=1)
"""Or unit × (100 − limit) / limit + quantum."""
LATENCY = Bar("p99 ÷ solo p99: {}", 1.3, "×", 2)
KEPT = Bar("{}", 0.90, "", 3, bound_digits=2, least=True)
HOSTILE = Bar("p99 wait beside a hostile tenant ÷ {}", 2, "×", 2)
LAUNCH = Bar("added per launch, gate open: {}", 20, "ns", 1)
END_TO_END = Bar("added end to end, alone: {}", 0.5, "%", 2)
HAND_OFF = Bar("drained → next launch released, p50 (bare chain {})", 1.5, "µs", 1, 1000, 1, excusable=True)
"""The bound is a multiple of the bare chain in the same run."""
IDLE = Bar("device idle at {}", 0, "µs", 1, per=1000)
"""It has no bound: each value is only shown."""
DECISION = Bar("a decision with {}", 5000, "µs", 1, per=1000)
AGENT = Bar("agent with {}", 2, "%", 2)
ALLOCATION = Bar("added per allocation and free beside {} others", 100, "ns", 0)
