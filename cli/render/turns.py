"""Finished turns as values, and the figures computed from them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished turn. All times are CLOCK_MONOTONIC nanoseconds of the agent's host.

    `device`: its UUID; `requested_ns`: when the share began to wait, 0 if it did not; `granted_ns`: from when it might
    launch; `closed_ns`: when it might launch no more; `drained_ns`: when its work had ended; `charged_ns`: the device
    time that was charged for the turn; `reason`: why the turn ended; `cogranted`: another share was granted before
    this one had drained.
    """

    sequence: int
    share: str
    device: str
    requested_ns: int
    granted_ns: int
    closed_ns: int
    drained_ns: int
    charged_ns: int
    reason: str
    cogranted: bool


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time [start_ns, end_ns)."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """The window's length, 0 when it ends before it starts."""
        return max(0, self.end_ns - self.start_ns)

    def overlap_ns(self, start_ns: int, end_ns: int) -> int:
        """How many nanoseconds of [start_ns, end_ns) lie in the window."""
        return max(0, min(self.end_ns, end_ns) - max(self.start_ns, start_ns))


def span(turns: Iterable[Turn]) -> Window:
    """Return the window from the first grant to the last drain; empty at 0 when there are no turns."""
    starts, ends = [], []
    for turn in turns:
        starts.append(turn.granted_ns)
        ends.append(turn.drained_ns)
    return Window(min(starts), max(ends)) if starts else Window(0, 0)


def share_names(turns: Iterable[Turn]) -> list[str]:
    """Return the shares in the order in which they first held a turn."""
    return list(dict.fromkeys(turn.share for turn in turns))


def held_fractions(turns: Sequence[Turn], share: str, window: Window, columns: int) -> list[float]:
    """Return for each of `columns` equal parts of the window in what fraction of it (0–1) `share` held a turn."""
    held = [0.0] * columns
    if window.length_ns == 0:
        return held
    width_ns = window.length_ns / columns
    for turn in turns:
        if turn.share != share or window.overlap_ns(turn.granted_ns, turn.drained_ns) == 0:
            continue
        first = max(0, int((turn.granted_ns - window.start_ns) / width_ns))
        last = min(columns - 1, int((turn.drained_ns - window.start_ns) / width_ns))
        for column in range(first, last + 1):
            start_ns = window.start_ns + column * width_ns
            end_ns = start_ns + width_ns
            held[column] += max(0.0, min(end_ns, turn.drained_ns) - max(start_ns, turn.granted_ns)) / width_ns
    return [min(1.0, fraction) for fraction in held]
