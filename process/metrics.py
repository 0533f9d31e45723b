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
from prometheus_client.samples import Sample

from sharepod.process.metrics_page import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric

    Labels = dict[str, str]
    """A series' labels, by name."""

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

    def family(self, sources: Iterable[tuple[Labels, Source]]) -> Metric:
        """Return the family, with one series for each source."""
        family = (CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily)(self.name, self.doc)
        family.samples = [Sample(self.name, labels, self.value(source)) for labels, source in sources]
        return family


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

    def family(self, sources: Iterable[tuple[Labels, Source]]) -> Metric:
        """Return the family, with one histogram for each source."""
        family = HistogramMetricFamily(self.name, self.doc)
        bucket, count, total = f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum"
        ends = [number(bound_s) for bound_s in (*self.bounds_s, _INFINITY)]
        for labels, source in sources:
            counts, sum_s = self.value(source)
            below = list(accumulate(counts))
            family.samples += [Sample(bucket, {**labels, "le": e}, n) for e, n in zip(ends, below, strict=True)]
            family.samples += [Sample(count, labels, below[-1]), Sample(total, labels, sum_s)]
        return family


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

    def family(self, sources: Iterable[tuple[Labels, Source]]) -> Metric:
        """Return the family, with one series for each source."""
        family = InfoMetricFamily(self.name.removesuffix("_info"), self.doc)
        family.samples = [
            Sample(self.name, {**labels, **dict(zip(self.labels, self.value(source), strict=True))}, 1)
            for labels, source in sources
        ]
        return family


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

    def families(self, snapshot: Snapshot) -> list[Metric]:
        """Return the families of a snapshot, also those without series.

        A gauge has no series for a source that has ended.
        """
        sources = [self._labelled(one) for one in self.sources(snapshot)]
        counted = [*sources, *(self._labelled(one) for one in self.ended(snapshot))]
        return [row.family(sources if row.kind == "gauge" else counted) for row in self.rows]

    def _labelled(self, one: tuple[Sequence[str], Source]) -> tuple[Labels, Source]:
        """Return a source with its labels by name; missing last labels are left out."""
        values, source = one
        return dict(zip(self.labels, values, strict=False)), source


class Histogram:
    """Counts seconds by bounds. One thread counts, and another may read."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """Begin at zero."""
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


def families(tables: Iterable[AnyTable[Snapshot]], snapshot: Snapshot) -> list[Metric]:
    """Return the families of all tables."""
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
