"""What the device's own log says: when each kernel ran, as the figures of bench.bars.figures need it. Pure.

Host times are CLOCK_MONOTONIC nanoseconds, device times are of the device's clock (%globaltimer).
"""

import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rig.truth import Kernel, Sample

JOINED_GAP_NS = 10_000
"""Kernels of one owner closer than this follow each other as fast as the device starts them: it was not idle for others
to use, so a bill counts the gap."""


RECORD = struct.Struct("<QQQ")
"""A kernel in a probe's log: when its launch had returned (host time), its begin and end (device time)."""


class Span(NamedTuple):
    """One kernel of one owner, in host time."""

    submitted_ns: int
    """When its launch had returned; 0 when unknown."""
    started_ns: int
    ended_ns: int
    work_ns: int
    """How long it takes alone: its work, whatever was sliced in between."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One instant on both clocks."""

    host_ns: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class ClockMap:
    """Device time as host time, from one instant before and one after what is mapped: the clocks drift apart."""

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
        """How much faster the device's clock goes, in parts per million."""
        host_span = self.last.host_ns - self.first.host_ns
        return ((self.last.device_ns - self.first.device_ns) / host_span - 1) * 1e6 if host_span > 0 else 0.0


def logged(content: bytes, clock: ClockMap, work_ns: int) -> list[Span]:
    """Return the kernels of one program from the log that its probe has written, in host time."""
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
    whole = [0] * (steps + 2)
    part = [0] * (steps + 1)
    for span in spans:
        after = min(max(0, -(-(span.ended_ns - first_ns) // step_ns)), steps + 1)  # first instant at or after its end
        whole[after] += span.work_ns
        before = after - 1  # instants in which it runs: usually none, for it is much shorter than a step
        while before >= 0 and (instant_ns := first_ns + before * step_ns) > span.started_ns:
            part[before] += span.work_ns * (instant_ns - span.started_ns) // (span.ended_ns - span.started_ns)
            before -= 1
    done, total = [], 0
    for step in range(steps + 1):
        total += whole[step]
        done.append(total + part[step])
    return done


def kernels(spans: Mapping[str, Sequence[Span]]) -> list[Kernel]:
    """Return all kernels, by begin, as bench.bars.figures takes them."""
    found = [Kernel(owner, s.submitted_ns, s.started_ns, s.ended_ns) for owner in spans for s in spans[owner]]
    return sorted(found, key=lambda kernel: kernel.started_ns)


def occupied_ns(spans: Mapping[str, Sequence[Span]], joined_gap_ns: int = JOINED_GAP_NS) -> dict[str, int]:
    """Return how long each owner had the device: from begin to end of its kernels, short gaps between them included.

    Where kernels of several owners stand side by side (the device slices between them), each gets an equal part.
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
    found: list[tuple[int, int]] = []
    for began, ended in sorted((span.started_ns, span.ended_ns) for span in spans):
        if found and began - found[-1][1] <= gap_ns:
            found[-1] = (found[-1][0], max(ended, found[-1][1]))
        else:
            found.append((began, ended))
    return found


# ---- time slices ----


def running(began_ns: int, ended_ns: int, gaps: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return when a kernel was on the device, given its begin, its end and the gaps in its progress."""
    found, reached = [], began_ns
    for left, back in sorted(gaps):
        found.append((reached, left))
        reached = back
    found.append((reached, ended_ns))
    return found


@dataclass(frozen=True, slots=True)
class Slicing:
    """How the device slices between two contexts that both always have work."""

    slices_ns: list[int]
    switches_ns: list[int]
    """From the last progress of one to the first of the other."""
    lost: float
    """The part of the time in which both wanted to run and neither did."""


def slicing(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> Slicing:
    """Return the slices and switches of two contexts while both had work.

    Raises ValueError when they never overlapped.
    """
    begin = max(one[0][0], other[0][0])
    end = min(one[-1][1], other[-1][1])
    turns = sorted(
        [(*span, 0) for span in one if span[1] > begin and span[0] < end]
        + [(*span, 1) for span in other if span[1] > begin and span[0] < end]
    )
    if end <= begin or len(turns) < 2:
        raise ValueError("the two contexts were never on the device together: nothing to learn of its slices")
    # The first and the last slice are cut by where the measurement begins and ends.
    lengths = [left - came for came, left, _ in turns[1:-1]]
    switches = [max(0, after[0] - before[1]) for before, after in itertools.pairwise(turns) if before[2] != after[2]]
    used = sum(min(left, end) - max(came, begin) for came, left, _ in turns)
    return Slicing(lengths, switches, max(0.0, 1 - used / (end - begin)))


@dataclass(frozen=True, slots=True)
class Visit:
    """A short piece of work of another context inside a gap of one that always has work."""

    preempted_ns: int
    """From the last progress of the one that was put off to the visitor's begin."""
    back_ns: int
    """From the visitor's end, which leaves it without work, to the other's next progress."""


def visits(gaps: Iterable[tuple[int, int]], kernels: Iterable[tuple[int, int]]) -> list[Visit]:
    """Return the visits of kernels (begin, end), in device time like the gaps, one or more kernels to a gap."""
    ordered = sorted(kernels)
    found, place = [], 0
    for left, back in sorted(gaps):
        while place < len(ordered) and ordered[place][0] < left:
            place += 1
        inside = place
        while inside < len(ordered) and ordered[inside][1] <= back:
            inside += 1
        if inside > place:
            began, ended = ordered[place][0], ordered[inside - 1][1]
            found.append(Visit(began - left, back - ended))
        place = inside
    return found
