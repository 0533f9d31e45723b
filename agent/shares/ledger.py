"""Turns counters into rates over the last second, minute and quarter of an hour, of device time used and time waited.

It also continues the account of an earlier agent. Pure: `now_ns` is a parameter.
"""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, replace
from itertools import pairwise
from operator import sub
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import COUNTERS, WHOLE_MILLIPERCENT, Copies, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOTHING: Final = Usage()
"""The account of earlier agents for a share that is new."""

SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS
QUARTER_NS: Final = 15 * MINUTE_NS
FINE_NS: Final = SECOND_NS // 10
"""A sample sooner than this after the last one is dropped, so that many clients cannot grow an account."""
_FINE_SPAN_NS: Final = 2 * SECOND_NS
"""Older samples are coarse."""
COARSE_NS: Final = SECOND_NS
"""Spacing of the coarse samples, which go back to one before the last minute."""
OLD_NS: Final = 15 * SECOND_NS
"""Spacing of the old samples, which go back to one before the last quarter of an hour."""
Sample = tuple[int, int, int]
_NEVER: Final[Sample] = (2**63, 0, 0)
"""So late that no time has passed since: rates from it are 0."""


class Account:
    """The samples (now_ns, used_ns, waited_ns) of one share on one device.

    Invariants: times strictly increase; counters never fall (one that falls starts the account anew); at most about
    20 fine, 60 coarse and 60 old samples.
    """

    __slots__ = ("_coarse", "_fine", "_old")

    def __init__(self) -> None:
        self._fine: deque[Sample] = deque()
        self._coarse: deque[Sample] = deque()
        self._old: deque[Sample] = deque()

    def add(self, now_ns: int, used_ns: int, waited_ns: int = 0) -> None:
        """Remember how the counters stood at `now_ns`, unless the last sample is less than FINE_NS old.

        Samples that grow old pass from fine to coarse to old. Coarse and old keep only one in COARSE_NS or OLD_NS, and
        one from before their window: a rate over the whole window begins there.
        """
        if self._fine:
            last_ns, last_used_ns, last_waited_ns = self._fine[-1]
            if used_ns < last_used_ns or waited_ns < last_waited_ns:  # a counter fell: older samples mean nothing
                self._fine.clear()
                self._coarse.clear()
                self._old.clear()
            elif now_ns < last_ns + FINE_NS:
                return
        self._fine.append((now_ns, used_ns, waited_ns))
        while len(self._fine) > 1 and self._fine[0][0] < now_ns - _FINE_SPAN_NS:
            sample = self._fine.popleft()
            if not self._coarse or sample[0] >= self._coarse[-1][0] + COARSE_NS:
                self._coarse.append(sample)
        while len(self._coarse) > 1 and self._coarse[1][0] <= now_ns - MINUTE_NS:
            sample = self._coarse.popleft()
            if not self._old or sample[0] >= self._old[-1][0] + OLD_NS:
                self._old.append(sample)
        while len(self._old) > 1 and self._old[1][0] <= now_ns - QUARTER_NS:
            self._old.popleft()

    def rate_millipercent(self, now_ns: int, used_ns: int, window_ns: int) -> int:
        """Return the rate of the time used over the window that ends at `now_ns`, in 1/1000 %.

        `used_ns` is the counter at `now_ns`. The window begins with the last sample before its start, or with the first
        sample if there is none.
        """
        since_ns, before_ns, _ = self._since(now_ns - window_ns)
        return _rate(now_ns - since_ns, used_ns - before_ns)

    def waited_millipercent(self, now_ns: int, waited_ns: int, window_ns: int) -> int:
        """Return the rate of the time waited, as `rate_millipercent` does; `waited_ns` is that counter at `now_ns`."""
        since_ns, _, before_ns = self._since(now_ns - window_ns)
        return _rate(now_ns - since_ns, waited_ns - before_ns)

    def _since(self, start_ns: int) -> Sample:
        """Return the last sample at or before `start_ns`, else the first one; _NEVER if there is no sample."""
        if not self._fine:
            return _NEVER
        samples = self._fine
        if self._coarse and start_ns < self._fine[0][0]:
            samples = self._old if self._old and start_ns < self._coarse[0][0] else self._coarse
        found = samples[0]
        for sample in samples:  # there are only a few: see the invariants
            if sample[0] > start_ns:
                break
            found = sample
        return found

    def validate(self) -> None:
        """Assert the invariants (for tests)."""
        samples = [*self._old, *self._coarse, *self._fine]
        if any(old[0] >= new[0] or old[1] > new[1] or old[2] > new[2] for old, new in pairwise(samples)):
            raise AssertionError(f"samples do not rise: {samples}")
        sizes = (len(self._fine), len(self._coarse), len(self._old))
        if any(size > most for size, most in zip(sizes, (22, 62, 62), strict=True)):
            raise AssertionError(f"too many samples: {sizes} fine, coarse and old ones")


class DeviceAccount:
    """Device time used by all shares of one device, including shares that have ended since."""

    __slots__ = ("_account", "_seen", "_used_ns")

    def __init__(self) -> None:
        self._account = Account()
        self._seen: dict[str, int] | None = None
        """By share: its counter at the last `add`; None before the first."""
        self._used_ns = 0

    def add(self, now_ns: int, used_ns: Mapping[str, int]) -> None:
        """Add what each share has used since the last call; `used_ns`: its counter. The first call adds nothing."""
        if self._seen is not None:
            seen = self._seen
            self._used_ns += sum(max(0, used - seen.get(share, 0)) for share, used in used_ns.items())
        self._seen = dict(used_ns)
        self._account.add(now_ns, self._used_ns)

    def rate_millipercent(self, now_ns: int, window_ns: int) -> int:
        """Return the rate of all shares together over a window, as of the last call of `add`."""
        return self._account.rate_millipercent(now_ns, self._used_ns, window_ns)


def _rate(passed_ns: int, counted_ns: int) -> int:
    """Return `counted_ns` as 1/1000 % of the time passed; 0 if no time has passed."""
    if passed_ns <= 0 or counted_ns <= 0:
        return 0
    # A share never uses more than the time that passes. A higher rate comes from reading the counter after the clock.
    return min(round(counted_ns * WHOLE_MILLIPERCENT / passed_ns), WHOLE_MILLIPERCENT)


def carried(usages: Sequence[Usage], live_launches: int, now: Sequence[Usage]) -> tuple[Usage, ...]:
    """Return what this agent has to add to its own account of a share on each device: what ended processes counted.

    `usages`: the account in the checkpoint. `now`: what the slots of living processes report, which this agent counts
    itself. used_ns is 0, because the arbiter continues it. `passed` of the sum never falls, but launches that passed
    after the checkpoint may be missing.

    `live_launches`: the launches of all processes that lived at the checkpoint, of all devices together. What ended
    processes launched is all launches less these; or less those in `now`, if they are fewer, because a process has
    ended since. It is divided among the devices in proportion to their launches.
    """
    launches = sum(usage.launches for usage in usages)
    gone = max(0, launches - min(live_launches, sum(usage.launches for usage in now)))
    return tuple(_earlier(usage, report, gone, max(launches, 1)) for usage, report in zip(usages, now, strict=True))


def _earlier(usage: Usage, report: Usage, gone: int, launches: int) -> Usage:
    """Return the earlier account of one device.

    `report`: what the slots report of it now. `gone` of the share's `launches` were made by processes that have ended.
    """
    missing = map(sub, astuple(usage.copies), astuple(report.copies))
    copies = Copies(*map(max, astuple(usage.gone_copies), missing))
    return replace(
        usage,
        used_ns=0,
        launches=usage.launches * gone // launches,
        passed=max(0, usage.passed - report.passed),
        host_to_device_bytes=copies.to_device_bytes,
        device_to_host_bytes=copies.to_host_bytes,
        host_to_device_copies=copies.to_device_count,
        device_to_host_copies=copies.to_host_count,
        gone_copies=copies,
    )


def total(earlier: Usage, usage: Usage) -> Usage:
    """Return the account with the counters of earlier agents (`carried`) added; all other numbers are as in `usage`."""
    if earlier is NOTHING:
        return usage
    counters = {name: getattr(earlier, name) + getattr(usage, name) for name in COUNTERS}
    return replace(usage, **counters, gone_copies=earlier.gone_copies + usage.gone_copies)
