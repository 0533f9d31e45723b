"""Which program used the device when, and the figures drawn from it. Reads only the intervals it is given."""

from bisect import bisect_right
from collections.abc import Iterator


class Timeline:
    """The busy intervals of one share, disjoint and in order."""

    def __init__(self) -> None:
        self.starts_ns: list[int] = []
        self.ends_ns: list[int] = []
        self._before_ns: list[int] = []  # busy time before each interval
        self.busy_ns = 0

    def add(self, start_ns: int, end_ns: int) -> None:
        """Append an interval. If it touches the last one, they are merged."""
        if end_ns <= start_ns:
            return
        if self.ends_ns and start_ns <= self.ends_ns[-1]:
            assert start_ns == self.ends_ns[-1], "intervals overlap"
            self.ends_ns[-1] = end_ns
        else:
            self._before_ns.append(self.busy_ns)
            self.starts_ns.append(start_ns)
            self.ends_ns.append(end_ns)
        self.busy_ns += end_ns - start_ns

    def busy_until(self, now_ns: int) -> int:
        """Return the busy time before `now_ns`."""
        index = bisect_right(self.starts_ns, now_ns) - 1
        if index < 0:
            return 0
        return self._before_ns[index] + min(now_ns, self.ends_ns[index]) - self.starts_ns[index]

    def busy_between(self, start_ns: int, end_ns: int) -> int:
        """Return the busy time within [start, end)."""
        return self.busy_until(end_ns) - self.busy_until(start_ns)

    def pauses(self, start_ns: int, end_ns: int) -> Iterator[int]:
        """Yield the lengths of the times without work in [start, end], also of those that its ends cut."""
        idle_from_ns = start_ns
        for busy_from_ns, busy_to_ns in zip(self.starts_ns, self.ends_ns, strict=True):
            if busy_to_ns <= start_ns:
                continue
            if busy_from_ns >= end_ns:
                break
            yield max(busy_from_ns - idle_from_ns, 0)
            idle_from_ns = busy_to_ns
        yield max(end_ns - idle_from_ns, 0)

    def longest_pause_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the longest time without work in [start, end]."""
        return max(self.pauses(start_ns, end_ns))

    def edges(self, start_ns: int, end_ns: int) -> list[int]:
        """Return every start and end of an interval in [start, end]."""
        return [t for t in (*self.starts_ns, *self.ends_ns) if start_ns <= t <= end_ns]


def percent_between(one: Timeline, everyone: list[Timeline], start_ns: int, end_ns: int) -> float:
    """Return one share's part of the device time that all got in [start, end), in percent."""
    total_ns = sum(t.busy_between(start_ns, end_ns) for t in everyone)
    return 100 * one.busy_between(start_ns, end_ns) / total_ns if total_ns else 0.0


def worst_window(one: Timeline, window_ns: int, start_ns: int, end_ns: int, percent: float) -> float:
    """Return the largest |busy / window - percent| over every window in [start, end], in percentage points.

    Busy time in a sliding window is piecewise linear in the window's position. So its extremes lie where an end of the
    window meets an edge.
    """
    edges = one.edges(start_ns, end_ns)
    begins = {t for edge in edges for t in (edge, edge - window_ns)} | {start_ns, end_ns - window_ns}
    inside = [t for t in begins if start_ns <= t <= end_ns - window_ns]
    return max(abs(100 * one.busy_between(t, t + window_ns) / window_ns - percent) for t in inside)


def percentile(values: list[int], percent: float) -> int:
    """Return the nearest-rank percentile."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]
