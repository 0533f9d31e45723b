"""Tables of metrics: a row becomes one of prometheus_client's families, and one line of the manual. Pure.

When a collector is scraped, it takes a snapshot and hands it to its tables. A new metric is one row of a table. Its
name decides its type: a counter's name ends in `_total`; a metric that is no counter, histogram or info is a gauge.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

from sharepod.process.metrics_page import Family, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric

    from sharepod.process.metrics_page import Key, Values

    Labels = dict[str, str]
    """A sample's labels, by name."""

Snapshot = TypeVar("Snapshot")
Source = TypeVar("Source")
_INFINITY: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Row(Generic[Source]):
    """A counter or a gauge."""

    name: str
    doc: str
    value: Callable[[Source], float]

    @property
    def kind(self) -> str:
        """Return the Prometheus type."""
        return "counter" if self.name.endswith("_total") else "gauge"

    def empty(self) -> Metric:
        """Return prometheus_client's family for the row, without samples."""
        return (CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily)(self.name, self.doc)

    def series(self, sources: Iterable[tuple[Key, Source]]) -> list[tuple[Key, Values]]:
        """Return the sample of each source. A key has the values of the table's labels."""
        return [(key, (self.value(source),)) for key, source in sources]

    def samples(self, labels: Sequence[str], key: Key) -> list[tuple[str, Labels]]:
        """Return the name and the labels of a source's sample.

        `labels` are the names of the table's labels, `key` their values, of which the last may be missing.
        """
        return [(self.name, dict(zip(labels, key, strict=False)))]


@dataclass(frozen=True, slots=True)
class HistogramRow(Generic[Source]):
    """A histogram of times."""

    name: str
    doc: str
    bounds_s: Sequence[float]
    value: Callable[[Source], tuple[Sequence[int], float]]
    """Return the counts, by the first bound that each value did not exceed (the last: above all), and the sum."""

    @property
    def kind(self) -> str:
        """Return the Prometheus type."""
        return "histogram"

    def empty(self) -> Metric:
        """Return prometheus_client's family for the row, without samples."""
        return HistogramMetricFamily(self.name, self.doc)

    def series(self, sources: Iterable[tuple[Key, Source]]) -> list[tuple[Key, Values]]:
        """Return the samples of each source, by the values of the table's labels.

        They are, for each bound, the count of values up to it; then the count and the sum of all.
        """
        found: list[tuple[Key, Values]] = []
        for key, source in sources:
            counts, sum_s = self.value(source)
            below = list(accumulate(counts))
            found.append((key, [*below, below[-1], sum_s]))
        return found

    def samples(self, labels: Sequence[str], key: Key) -> list[tuple[str, Labels]]:
        """Return the names and the labels of a source's samples, in the order of `series`.

        `labels` are the names of the table's labels, `key` their values, of which the last may be missing.
        """
        own = dict(zip(labels, key, strict=False))
        ends = [number(bound_s) for bound_s in (*self.bounds_s, _INFINITY)]
        buckets = [(f"{self.name}_bucket", {**own, "le": end}) for end in ends]
        return [*buckets, (f"{self.name}_count", own), (f"{self.name}_sum", own)]


@dataclass(frozen=True, slots=True)
class InfoRow(Generic[Source]):
    """A series that is always 1. Its labels need not be repeated on other series. Its name ends in `_info`."""

    name: str
    text: str
    labels: tuple[str, ...]
    """Its own labels, besides those of its table."""
    value: Callable[[Source], Sequence[str]]
    """Return their values."""

    @property
    def kind(self) -> str:
        """Return the Prometheus type."""
        return "info"

    @property
    def doc(self) -> str:
        """Return its description, with the names of its labels."""
        return f"{self.text} Labels beside: {', '.join(f'`{label}`' for label in self.labels)}."

    def empty(self) -> Metric:
        """Return prometheus_client's family for the row, without samples."""
        return InfoMetricFamily(self.name.removesuffix("_info"), self.doc)

    def series(self, sources: Iterable[tuple[Key, Source]]) -> list[tuple[Key, Values]]:
        """Return the sample of each source. Its key ends in the values of the row's own labels."""
        found: list[tuple[Key, Values]] = []
        for key, source in sources:
            own = self.value(source)
            if len(own) != len(self.labels):
                raise ValueError(f"{self.name}: {len(own)} values for {len(self.labels)} labels")
            found.append(((*key, *own), (1,)))
        return found

    def samples(self, labels: Sequence[str], key: Key) -> list[tuple[str, Labels]]:
        """Return the name and the labels of a source's sample.

        `labels` are the names of the table's labels; `key` has their values, then those of the row's own labels.
        """
        first = len(key) - len(self.labels)
        table = dict(zip(labels, key[:first], strict=False))
        return [(self.name, {**table, **dict(zip(self.labels, key[first:], strict=True))})]


@dataclass(frozen=True, slots=True)
class Table(Generic[Snapshot, Source]):
    """Metrics that have the same labels and are read from the same sources."""

    title: str
    labels: Mapping[str, Sequence[str]]
    """By name: the possible values of a label; none: it can have any value."""
    rows: Sequence[Row[Source] | HistogramRow[Source] | InfoRow[Source]]
    sources: Callable[[Snapshot], Iterable[tuple[Sequence[str], Source]]]
    """Return the sources in a snapshot, each with its labels' values. The last labels may be missing."""
    ended: Callable[[Snapshot], Iterable[tuple[Sequence[str], Source]]] = lambda _: ()
    """Return sources that no longer exist. Their counters are still reported, their gauges are not."""

    def families(self, snapshot: Snapshot) -> list[Family]:
        """Return a family for each row, with the series of a snapshot, if it has some.

        A gauge has no series for a source that has ended.
        """
        names = tuple(self.labels)
        sources = [(tuple(values), source) for values, source in self.sources(snapshot)]
        counted = [*sources, *((tuple(values), source) for values, source in self.ended(snapshot))]
        return [Family(row, names, row.series(sources if row.kind == "gauge" else counted)) for row in self.rows]


class Histogram:
    """Counts seconds by bounds. One thread counts, and another may read."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """Begin at zero. `bounds_s`: the upper bounds in seconds, rising."""
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    @property
    def seconds(self) -> tuple[list[int], float]:
        """Return the counts, by the first bound that each value did not exceed (the last: above all), and the sum."""
        return list(self._counts), self._sum_s


AnyTable = Table[Snapshot, Any]
"""A table of sources of any type: only the table itself knows the type."""


def families(tables: Iterable[AnyTable[Snapshot]], snapshot: Snapshot) -> list[Family]:
    """Return the families of all tables, with the series of a snapshot."""
    return [family for table in tables for family in table.families(snapshot)]


def manual(title: str, introduction: Sequence[str], tables: Iterable[AnyTable[Any]]) -> str:
    """Return a page of Markdown that lists all metrics."""
    lines = [f"# {title}", "", *introduction]
    for table in tables:
        lines += ["", f"## {table.title}", ""]
        if table.labels:
            lines += [f"Labels: {', '.join(map(_label, table.labels.items()))}.", ""]
        lines += ["| name | type | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{row.name}` | {row.kind} | {row.doc} |" for row in table.rows]
    return "\n".join(lines) + "\n"


def _label(item: tuple[str, Sequence[str]]) -> str:
    """Return a label for the manual: its name and, if they are given, its possible values."""
    name, values = item
    return f"`{name}`" + (f" ({', '.join(values)})" if values else "")
