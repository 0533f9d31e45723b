"""Computes the figures of the bars from observations. Pure: values in, values out, no clock, no files.

Times are CLOCK_MONOTONIC nanoseconds, percentages are of a device, and "pp" is percentage points.
"""

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rig.truth import Held, Kernel, Sample


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile (0 < percent <= 100) of `values`.

    Raises ValueError when there are none.
    """
    if not values:
        raise ValueError("no values: nothing was measured")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the median; the mean of the middle two when their number is even. Raises ValueError without values."""
    if not values:
        raise ValueError("no values: nothing was measured")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def used_ns(first: Sample, last: Sample, owner: str) -> int:
    """Return the device time of `owner` between two samples."""
    return last.busy_ns.get(owner, 0) - first.busy_ns.get(owner, 0)


def windows(samples: Sequence[Sample], steps: int) -> list[tuple[Sample, Sample]]:
    """Return every window of `steps` sampling steps, sliding by one."""
    return list(zip(samples, samples[steps:], strict=False))


def share_errors(samples: Sequence[Sample], targets: Mapping[str, float], steps: int) -> list[float]:
    """Return, per window of `steps` steps, the largest |part − target| over the owners, in pp.

    `targets` are fractions that sum to 1. A part is of the device time that all owners used: what hand-offs lose
    belongs to another bar (throughput), and would otherwise count twice.
    """
    errors = []
    for first, last in windows(samples, steps):
        total = sum(used_ns(first, last, owner) for owner in targets)
        parts = {owner: used_ns(first, last, owner) / total if total else 0.0 for owner in targets}
        errors.append(max(abs(parts[owner] - target) for owner, target in targets.items()) * 100)
    return errors


def utilisation(samples: Sequence[Sample], owners: Iterable[str] | None = None) -> float:
    """Return the part of the time from first to last sample in which the device worked for `owners` (all: None)."""
    first, last = samples[0], samples[-1]
    chosen = set(last.busy_ns) if owners is None else set(owners)
    return sum(used_ns(first, last, owner) for owner in chosen) / (last.now_ns - first.now_ns)


def limit_errors(samples: Sequence[Sample], owner: str, limit: float) -> list[float]:
    """Return |used − limit| per step in pp of the elapsed time; `limit` is a fraction."""
    return [
        abs(used_ns(first, last, owner) / (last.now_ns - first.now_ns) - limit) * 100
        for first, last in windows(samples, 1)
    ]


def longest_pause_ns(kernels: Iterable[Kernel], owner: str | None, begin_ns: int, end_ns: int) -> int:
    """Return the longest time in [begin_ns, end_ns) without any work of `owner` (None: of any owner) on the device."""
    spans = sorted((k.started_ns, k.ended_ns) for k in kernels if owner is None or k.owner == owner)
    longest, reached = 0, begin_ns
    for started, ended in spans:
        if started >= end_ns:
            break
        longest = max(longest, started - reached)
        reached = max(reached, ended)
    return max(longest, end_ns - reached)


@dataclass(frozen=True, slots=True)
class HandOff:
    """The device passing from one owner to another."""

    released_ns: int
    """From the end of the old owner's work until the new owner's launch reached the driver. Negative: the launch came
    first (the hand-off overlapped the drain)."""
    bubble_ns: int
    """How long the device was idle in between. Negative: the two owners' work overlapped."""


def hand_offs(kernels: Iterable[Kernel]) -> list[HandOff]:
    """Return every change of the device from one owner to another, by the device's own log."""
    found: list[HandOff] = []
    previous: Kernel | None = None
    for kernel in sorted(kernels, key=lambda k: k.started_ns):
        if previous is not None and kernel.owner != previous.owner:
            found.append(HandOff(kernel.submitted_ns - previous.ended_ns, kernel.started_ns - previous.ended_ns))
        previous = kernel
    return found


def outside_turns(kernels: Iterable[Kernel], turns: Iterable[Held], slack_ns: int = 0) -> list[Kernel]:
    """Return the kernels that started outside all turns of their owner, more than `slack_ns` after a turn's end."""
    held: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for turn in turns:
        held[turn.owner, turn.device].append((turn.granted_ns, turn.drained_ns))
    for spans in held.values():
        spans.sort()
    outside = []
    for kernel in kernels:
        spans = held.get((kernel.owner, kernel.device), [])
        place = bisect.bisect_right(spans, (kernel.started_ns, math.inf)) - 1
        if place < 0 or kernel.started_ns > spans[place][1] + slack_ns:
            outside.append(kernel)
    return outside


def lost_wake_ups(kernels: Sequence[Kernel], waits: Iterable[tuple[int, int]], bound_ns: int) -> list[tuple[int, int]]:
    """Return the waits (began, ended) at a closed gate during which the device was idle for longer than `bound_ns`.

    A share that waits while the device idles for longer than any hand-off can take has lost its wake-up.
    """
    return [
        (began, ended)
        for began, ended in waits
        if ended - began > bound_ns and longest_pause_ns(kernels, None, began, ended) > bound_ns
    ]
