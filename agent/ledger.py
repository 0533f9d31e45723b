"""Turns counters into rates: device time used over the last second and minute. Pure: `now_ns` is a parameter.

And continues the account of an earlier agent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from sharepod.agent.share import WHOLE_MILLIPERCENT, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING: Final = Usage()
"""The account of earlier agents of a share that had none."""

SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS
FINE_NS: Final = SECOND_NS // 10
"""Two samples closer than this count as one, so that many clients cannot grow an account."""
COARSE_NS: Final = SECOND_NS
"""Spacing of the samples older than two seconds."""


class Account:
    """The samples (now_ns, used_ns) of one share on one device.

    Invariants: times strictly increase; counters never fall (one that falls starts the account anew); at most about
    20 + 60 samples: dense for the last two seconds, one a second back to one before the last minute.
    """

    __slots__ = ("_coarse", "_fine")

    def __init__(self) -> None:
        self._fine: deque[tuple[int, int]] = deque()
        self._coarse: deque[tuple[int, int]] = deque()

    def add(self, now_ns: int, used_ns: int) -> None:
        """Remember that the counter stood at `used_ns` at `now_ns`; a sample too close to the last one is dropped."""
        if self._fine:
            last_ns, last_used_ns = self._fine[-1]
            if used_ns < last_used_ns:
                self._fine.clear()
                self._coarse.clear()
            elif now_ns < last_ns + FINE_NS:
                return
        self._fine.append((now_ns, used_ns))
        while len(self._fine) > 1 and self._fine[0][0] < now_ns - 2 * SECOND_NS:
            old = self._fine.popleft()
            if not self._coarse or old[0] >= self._coarse[-1][0] + COARSE_NS:
                self._coarse.append(old)
        while len(self._coarse) > 1 and self._coarse[1][0] <= now_ns - MINUTE_NS:
            self._coarse.popleft()

    def rate_millipercent(self, now_ns: int, used_ns: int, window_ns: int) -> int:
        """Return the rate from one window before `now_ns` (or from the first sample if that is later), 1/1000 %.

        `used_ns` is the counter at `now_ns`. The window begins at the sample nearest before its start.
        """
        if not self._fine:
            return 0
        start_ns = now_ns - window_ns
        samples = self._coarse if self._coarse and start_ns < self._fine[0][0] else self._fine
        since_ns, before_ns = samples[0]
        for sample in samples:  # a few: the fine ones span two windows of a second, the coarse ones begin a minute ago
            if sample[0] > start_ns:
                break
            since_ns, before_ns = sample
        if now_ns <= since_ns or used_ns < before_ns:
            return 0
        rate = round((used_ns - before_ns) * WHOLE_MILLIPERCENT / (now_ns - since_ns))
        # A share is never charged more than passes; what is above comes from reading the counter after the clock.
        return min(rate, WHOLE_MILLIPERCENT)

    def validate(self) -> None:
        """Assert the invariants (for tests)."""
        samples = [*self._coarse, *self._fine]
        if any(old[0] >= new[0] or old[1] > new[1] for old, new in pairwise(samples)):
            raise AssertionError(f"samples do not rise: {samples}")
        if len(self._fine) > 22 or len(self._coarse) > 62:
            raise AssertionError(f"too many samples: {len(self._fine)} fine, {len(self._coarse)} coarse")


def carried(usages: Sequence[Usage], live_launches: int) -> tuple[Usage, ...]:
    """Return the earlier account less used_ns, which the arbiter continues, and less the launches of live processes.

    The slots count launches per process, not per device, so that the part of the dead is taken pro rata.
    """
    launches = sum(usage.launches for usage in usages)
    gone = max(0, launches - live_launches)
    return tuple(
        replace(
            usage,
            used_ns=0,
            launches=usage.launches * gone // launches if launches else 0,
            passed=usage.passed * gone // launches if launches else 0,
            copies=usage.gone_copies,
        )
        for usage in usages
    )


def total(earlier: Usage, usage: Usage) -> Usage:
    """Add the counters of earlier agents to those of this one; gauges are of now."""
    if earlier is NOTHING:
        return usage
    return replace(
        usage,
        used_ns=earlier.used_ns + usage.used_ns,
        charged_ns=earlier.charged_ns + usage.charged_ns,
        estimated_ns=earlier.estimated_ns + usage.estimated_ns,
        waited_ns=earlier.waited_ns + usage.waited_ns,
        overrun_ns=earlier.overrun_ns + usage.overrun_ns,
        turns=earlier.turns + usage.turns,
        launches=earlier.launches + usage.launches,
        passed=earlier.passed + usage.passed,
        cogrants=earlier.cogrants + usage.cogrants,
        faults=earlier.faults + usage.faults,
        copies=earlier.copies + usage.copies,
        gone_copies=earlier.gone_copies + usage.gone_copies,
    )
