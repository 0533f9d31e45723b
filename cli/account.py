"""What each share of the demo asked for and what it got: arithmetic on two readings of device time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """Device time used so far per share, at one instant of CLOCK_MONOTONIC."""

    now_ns: int
    used_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Result:
    """One share in one window; all in percent of the device's time."""

    share: str
    asked: float
    expected: float
    got: float

    @property
    def error(self) -> float:
        """Got less expected, in percentage points."""
        return self.got - self.expected


def results(asked: Mapping[str, float], before: Reading, after: Reading) -> list[Result]:
    """Return what each share got between two readings, in the order of `asked`.

    All of them saturate the device, so each expects its request and its part of what nobody asked for, in proportion to
    the requests.
    """
    elapsed_ns = after.now_ns - before.now_ns
    total = sum(asked.values())
    if elapsed_ns <= 0 or total <= 0:
        raise ValueError("a result needs a window and a request: read later")
    return [
        Result(
            share=share,
            asked=percent,
            expected=100 * percent / total,
            got=100 * (after.used_ns.get(share, 0) - before.used_ns.get(share, 0)) / elapsed_ns,
        )
        for share, percent in asked.items()
    ]
