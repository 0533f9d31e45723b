"""Reads the device's own log: when each kernel ran, in the form that bench.bars.figures needs. Pure.

Host times are CLOCK_MONOTONIC nanoseconds. Device times are of the device's clock (%globaltimer).
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

from bench.bars.figures import median
from rig.truth import Kernel, Sample

JOINED_GAP_NS = 10_000
"""One owner's kernels with a smaller gap follow each other as fast as the device starts them. The device was not idle
for others to use, so a bill includes the gap."""


DRIFT_WINDOW_NS = 1_000_000_000
"""The drift is measured over windows of this length, or of an eighth of the whole time."""
READING_NS = 10_000
"""The accuracy of reading two clocks one after the other on a busy machine."""
RECORD = struct.Struct("<QQQ")
"""A kernel in a probe's log: when its launch had returned (host time), its begin and end (device time)."""


class Span(NamedTuple):
    """One kernel of one owner, in host time."""

    submitted_ns: int
    """When its launch had returned; 0: unknown."""
    started_ns: int
    ended_ns: int
    work_ns: int
    """How long it takes alone: its work, without the slices of others in between."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One instant, by both clocks."""

    host_ns: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class ClockMap:
    """Maps device time to host time by one instant before and one after, as the clocks drift apart."""

    first: Tick
    last: Tick

    def host_ns(self, device_ns: int) -> int:
        """Return the host time of a device time."""
        device_span = self.last.device_ns - self.first.device_ns
        host_span = self.last.host_ns - self.first.host_ns
        past = device_ns - self.first.device_ns
        return self.first.host_ns + (past * host_span // device_span if device_span > 0 else past)

    @property
    def drift_ppm(self) -> float:
        """How much faster the device's clock runs, in parts per million."""
        host_span = self.last.host_ns - self.first.host_ns
        return ((self.last.device_ns - self.first.device_ns) / host_span - 1) * 1e6 if host_span > 0 else 0.0


def logged(content: bytes, clock: ClockMap, work_ns: int) -> list[Span]:
    """Return the kernels of one program, in host time, from the log that its probe has written."""
    return [
        Span(submitted_ns, clock.host_ns(began), clock.host_ns(ended), work_ns)
        for submitted_ns, began, ended in RECORD.iter_unpack(content)
    ]


def samples(spans: Mapping[str, Sequence[Span]], first_ns: int, step_ns: int, steps: int) -> list[Sample]:
    """Return the work done per owner at `steps` + 1 instants, `step_ns` apart from `first_ns` on.

    A kernel's work counts evenly over the time from its begin to its end.
    """
    done = {owner: _done_at(spans[owner], first_ns, step_ns, steps) for owner in spans}
    return [
        Sample(first_ns + step * step_ns, {owner: done[owner][step] for owner in spans}) for step in range(steps + 1)
    ]


def _done_at(spans: Iterable[Span], first_ns: int, step_ns: int, steps: int) -> list[int]:
    """Return the work of one owner that is done at each instant. `whole`: of kernels ended since the one before it.

    `part`: what kernels that still run have done.
    """
    whole = [0] * (steps + 2)
    part = [0] * (steps + 1)
    for span in spans:
        after = min(max(0, -(-(span.ended_ns - first_ns) // step_ns)), steps + 1)  # first instant at or after its end
        whole[after] += span.work_ns
        before = after - 1  # instants while it runs: usually none, as it is much shorter than a step
        while before >= 0 and (instant_ns := first_ns + before * step_ns) > span.started_ns:
            part[before] += span.work_ns * (instant_ns - span.started_ns) // (span.ended_ns - span.started_ns)
            before -= 1
    done, total = [], 0
    for step in range(steps + 1):
        total += whole[step]
        done.append(total + part[step])
    return done


def kernels(spans: Mapping[str, Sequence[Span]]) -> list[Kernel]:
    """Return all kernels, ordered by begin, in the form of bench.bars.figures."""
    found = [Kernel(owner, s.submitted_ns, s.started_ns, s.ended_ns) for owner in spans for s in spans[owner]]
    return sorted(found, key=lambda kernel: kernel.started_ns)


def occupied_ns(spans: Mapping[str, Sequence[Span]], joined_gap_ns: int = JOINED_GAP_NS) -> dict[str, int]:
    """Return how long each owner had the device: from begin to end of its kernels, with short gaps between them.

    While kernels of several owners overlap (the device slices between them), each owner gets an equal part.
    """
    edges: list[tuple[int, int, str]] = []
    for owner in spans:
        for began, ended in _joined(spans[owner], joined_gap_ns):
            edges += ((began, 1, owner), (ended, -1, owner))
    edges.sort()
    occupied = dict.fromkeys(spans, 0.0)
    active: dict[str, int] = {}
    reached = 0
    for at, change, owner in edges:
        for other in active:
            occupied[other] += (at - reached) / len(active)
        reached = at
        count = active.pop(owner, 0) + change
        if count:
            active[owner] = count
    return {owner: round(ns) for owner, ns in occupied.items()}


def _joined(spans: Sequence[Span], gap_ns: int) -> list[tuple[int, int]]:
    """Return the begin and end of each time in which kernels follow each other with gaps of at most `gap_ns`."""
    found: list[tuple[int, int]] = []
    for began, ended in sorted((span.started_ns, span.ended_ns) for span in spans):
        if found and began - found[-1][1] <= gap_ns:
            found[-1] = (found[-1][0], max(ended, found[-1][1]))
        else:
            found.append((began, ended))
    return found


# ---- what a context misses of the device ----


def absences(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return how long the owner of back-to-back kernels of one length was off the device, each time.

    The second value is how long the owner had worked since the previous absence; 0: not known. Only the ends of kernels
    count, so it does not matter whether a kernel was interrupted or none was begun. A kernel that was not launched
    before its predecessor had ended waited for its host: that is no absence.
    """
    ordered = sorted(spans, key=lambda span: span.ended_ns)
    steps = [
        (after.ended_ns - before.ended_ns, after.submitted_ns < before.ended_ns) for before, after in pairwise(ordered)
    ]
    usual_ns = median([step_ns for step_ns, _ in steps]) if steps else 0
    found, kernels = [], -1  # kernels since the last absence; -1: it is not known when that was
    for step_ns, queued in steps:
        kernels += kernels >= 0
        if step_ns > usual_ns * 5 / 4:
            if queued:
                found.append((round(step_ns - usual_ns), round(kernels * usual_ns) if kernels > 0 else 0))
            kernels = 0 if queued else -1
    return found


def slice_ns(found: Sequence[tuple[int, int]]) -> float:
    """Return the mean time between absences, without those far from the usual. Raises ValueError without any."""
    worked = [worked_ns for _, worked_ns in found if worked_ns]
    usual_ns = median(worked)
    # Only whole kernels are counted, and the one at either end is cut: only the mean of many is finer than a kernel.
    return mean([worked_ns for worked_ns in worked if usual_ns * 3 / 4 <= worked_ns <= usual_ns * 5 / 4])


# ---- events ----


EXACT_MS = 4.0


def resolution_ns(steps_ms: Sequence[float]) -> int:
    """Return the largest number of whole nanoseconds that divides all times between events, at least 1.

    The driver gives them as floats of milliseconds: above EXACT_MS a float is less exact than half a nanosecond.
    """
    return max(1, math.gcd(*(round(step_ms * 1e6) for step_ms in steps_ms if step_ms < EXACT_MS)))


def drift(ticks: Sequence[Tick]) -> tuple[float, float]:
    """Return how much faster the device's clock runs, in parts per million, and how many seconds it keeps that sign.

    0 seconds: the sign changes less than twice. Raises ValueError with fewer than two instants.
    """
    if len(ticks) < 2:
        raise ValueError("the clocks were compared less than twice")
    window_ns = min(DRIFT_WINDOW_NS, (ticks[-1].host_ns - ticks[0].host_ns) // 8)
    slopes = _slopes(ticks, window_ns)
    # Leave out windows with a change of sign, and those where the reading error exceeds the clocks' difference.
    least_ppm = max(median([abs(ppm) for _, ppm in slopes]) / 2, READING_NS / max(1, window_ns) * 1e6)
    clear = [(at_ns, ppm) for at_ns, ppm in slopes if abs(ppm) > least_ppm]
    changes = [after[0] for before, after in pairwise(clear) if before[1] * after[1] < 0]
    if len(changes) < 2:
        return _ppm(ticks[0], ticks[-1]), 0.0
    period_ns = (changes[-1] - changes[0]) / (len(changes) - 1)
    return median([abs(ppm) for _, ppm in _slopes(ticks, period_ns / 4)]), period_ns / 1e9


def _slopes(ticks: Sequence[Tick], window_ns: float) -> list[tuple[int, float]]:
    """Return the drift in ppm from each instant to the first one at least `window_ns` later, with its host time."""
    found, place = [], 0
    for before in ticks:
        while place < len(ticks) and ticks[place].host_ns < before.host_ns + window_ns:
            place += 1
        if place < len(ticks):
            found.append((before.host_ns, _ppm(before, ticks[place])))
    return found


def _ppm(first: Tick, last: Tick) -> float:
    return ClockMap(first, last).drift_ppm
