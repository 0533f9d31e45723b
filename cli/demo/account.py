"""Computes what each share of the demo asked for and got, from two readings of device time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """Device time used so far by each share, at one instant of CLOCK_MONOTONIC."""

    now_ns: int
    used_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Result:
    """One share in one window, in percent.

    Attributes:
        share: its name.
        asked: its request, of the device.
        expected: its due part of the time that all shares used together.
        got: its part of that time.
    """

    share: str
    asked: float
    expected: float
    got: float

    @property
    def error(self) -> float:
        """Got less expected, in percentage points."""
        return self.got - self.expected


@dataclass(frozen=True, slots=True)
class Outcome:
    """One window: the shares in it, and how much of the device's time they used together, in percent."""

    shares: tuple[Result, ...]
    used: float


def outcome(asked: Mapping[str, float], before: Reading, after: Reading) -> Outcome:
    """Return what happened between two readings. `asked` has the request of each share, in percent, and their order.

    All shares saturate the device. So each is due its request, and its part of what no share asked for, in proportion
    to the requests. The parts are parts of the used time: if the host is too busy to feed the device, the sharing is
    not at fault. Raises ValueError if no time has passed, nothing was asked for, or nothing was used.
    """
    elapsed_ns = after.now_ns - before.now_ns
    total_asked = sum(asked.values())
    used_ns = {share: after.used_ns.get(share, 0) - before.used_ns.get(share, 0) for share in asked}
    all_ns = sum(used_ns.values())
    if elapsed_ns <= 0 or total_asked <= 0 or all_ns <= 0:
        raise ValueError("a result needs a window, a request and some use: read later")
    shares = (
        Result(share, percent, 100 * percent / total_asked, 100 * used_ns[share] / all_ns)
        for share, percent in asked.items()
    )
    return Outcome(tuple(shares), 100 * all_ns / elapsed_ns)
