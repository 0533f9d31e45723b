"""Tables of metrics: a row becomes one of prometheus_client's families, and one line of the manual. Pure.

When a collector is scraped, it takes a snapshot and hands it to its tables. A table finds the sources in the snapshot,
such as shares; a row has one series for each of them. A new metric is one row. A Row is a counter if its name ends in
`_total`, else a gauge.
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
    """Returns the value of a source."""

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

        `labels` are the names of the table's labels, `key` their values. Values at the end may be missing.
        """
        return [(self.name, dict(zip(labels, key, strict=False)))]


@dataclass(frozen=True, slots=True)
class HistogramRow(Generic[Source]):
    """A histogram of times."""

    name: str
    doc: str
    bounds_s: Sequence[float]
    value: Callable[[Source], tuple[Sequence[int], float]]
    """Returns a source's counts and sum, as `Histogram.seconds` does."""

    @property
    def kind(self) -> str:
        """Return the Prometheus type."""
        return "histogram"

    def empty(self) -> Metric:
        """Return prometheus_client's family for the row, without samples."""
        return HistogramMetricFamily(self.name, self.doc)

    def series(self, sources: Iterable[tuple[Key, Source]]) -> list[tuple[Key, Values]]:
        """Return the samples of each source, by the values of the table's labels.

        They are, for each bound and for infinity, the count of values up to it; then the count and the sum of all.
        """
        found: list[tuple[Key, Values]] = []
        for key, source in sources:
            counts, sum_s = self.value(source)
            up_to = list(accumulate(counts))
            found.append((key, [*up_to, up_to[-1], sum_s]))
        return found

    def samples(self, labels: Sequence[str], key: Key) -> list[tuple[str, Labels]]:
        """Return the names and the labels of a source's samples, in the order of `series`.

        `labels` are the names of the table's labels, `key` their values. Values at the end may be missing.
        """
        common = dict(zip(labels, key, strict=False))
        bounds = [number(bound_s) for bound_s in (*self.bounds_s, _INFINITY)]
        buckets = [(f"{self.name}_bucket", {**common, "le": bound}) for bound in bounds]
        return [*buckets, (f"{self.name}_count", common), (f"{self.name}_sum", common)]


@dataclass(frozen=True, slots=True)
class InfoRow(Generic[Source]):
    """A metric that is always 1 and has many labels, which other metrics need not repeat. Its name ends in `_info`."""

    name: str
    text: str
    labels: tuple[str, ...]
    """The names of its own labels, besides those of its table."""
    value: Callable[[Source], Sequence[str]]
    """Returns the values of its own labels for a source."""

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
        split = len(key) - len(self.labels)
        of_table = dict(zip(labels, key[:split], strict=False))
        return [(self.name, {**of_table, **dict(zip(self.labels, key[split:], strict=True))})]


@dataclass(frozen=True, slots=True)
class Table(Generic[Snapshot, Source]):
    """Metrics that have the same labels and are read from the same sources."""

    title: str
    labels: Mapping[str, Sequence[str]]
    """By name: the possible values of a label; empty: it can have any value."""
    rows: Sequence[Row[Source] | HistogramRow[Source] | InfoRow[Source]]
    sources: Callable[[Snapshot], Iterable[tuple[Sequence[str], Source]]]
    """Returns the sources in a snapshot, each with the values of its labels. Values at the end may be missing."""
    ended: Callable[[Snapshot], Iterable[tuple[Sequence[str], Source]]] = lambda _: ()
    """Returns sources that no longer exist. Their counters are still reported, their gauges are not."""

    def families(self, snapshot: Snapshot) -> list[Family]:
        """Return a family for each row, with the series of a snapshot; it may have none.

        A gauge has no series for a source that has ended.
        """
        names = tuple(self.labels)
        present = [(tuple(values), source) for values, source in self.sources(snapshot)]
        with_ended = [*present, *((tuple(values), source) for values, source in self.ended(snapshot))]
        return [Family(row, names, row.series(present if row.kind == "gauge" else with_ended)) for row in self.rows]


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
        """Return the counts and the sum of all durations.

        Each count is for the durations up to its bound and above the bound before. The last is for those above all.
        """
        return list(self._counts), self._sum_s


AnyTable = Table[Snapshot, Any]
"""A table with sources of any type. Only the table itself knows the type."""


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
    """Return a label for the manual: its name and its possible values, if the table gives them."""
    name, values = item
    return f"`{name}`" + (f" ({', '.join(values)})" if values else "")
