"""Test that a page of metrics equals prometheus_client's byte for byte, and that each row becomes its family."""

from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from sharepod.process.metrics import Histogram, HistogramRow, InfoRow, Row, Table, manual
from sharepod.process.metrics_page import Page

ENCODERS = (generate_latest, generate_openmetrics)
LABELS = ("share", "gpu", "pod")
Series = tuple[Sequence[str], float]
SERIES = st.lists(st.tuples(st.lists(st.text(max_size=5), min_size=1, max_size=3), st.floats()), max_size=6)


class Fixed:
    def __init__(self, series: Iterable[Series], doc: str = "One.") -> None:
        self._series, self._doc = list(series), doc

    def collect(self) -> list[Metric]:
        families = [
            make(name, self._doc, None, LABELS)
            for make, name in ((CounterMetricFamily, "b_total"), (GaugeMetricFamily, "a"), (GaugeMetricFamily, "empty"))
        ]
        histogram = HistogramMetricFamily("h", self._doc, labels=LABELS)
        info = InfoMetricFamily("i", self._doc, labels=LABELS)
        for labels, value in self._series:
            for family in families[:2]:
                family.add_metric(labels, value)
            histogram.add_metric(labels, [("0.5", value), ("+Inf", value)], value)
            info.add_metric(labels, {"name": labels[0]})
        return [*families, histogram, info]


@settings(deadline=None)
@given(st.lists(SERIES, min_size=1, max_size=3), st.text(max_size=10))
def test_a_page_is_what_the_library_writes_whatever_comes_and_goes(scrapes: list[list[Series]], doc: str) -> None:
    for encode in ENCODERS:
        page = Page(encode)
        for series in scrapes:
            collector = Fixed(series, doc)
            assert page.text(collector) == encode(collector)


def test_a_histogram_counts_each_by_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((0.5, 2.0))
    for seconds in (0.25, 0.5, 1.0, 4.0):
        histogram.observe(seconds)
    assert histogram.seconds == ([2, 1, 1], 5.75)


def test_a_table_makes_the_families_that_its_rows_name() -> None:
    table: Table[Sequence[int], int] = Table(
        "Some",
        {"x": ("one", "two"), "pod": ()},
        (
            Row("a_seconds_total", "A.", lambda n: n / 2),
            Row("b_ratio", "B.", float),
            HistogramRow("c_seconds", "C.", (0.5, 1.0), lambda n: ((n, 0, 1), 2.5)),
            InfoRow("d_info", "D.", ("name",), lambda n: (f"name-{n}",)),
        ),
        lambda snapshot: [(("one", "p"), snapshot[0]), (("two",), snapshot[1])],
    )
    counter, gauge, histogram, info = table.families([3, 4])
    assert [family.type for family in (counter, gauge, histogram, info)] == ["counter", "gauge", "histogram", "info"]
    assert [(s.name, s.labels, s.value) for s in counter.samples] == [
        ("a_seconds_total", {"x": "one", "pod": "p"}, 1.5), ("a_seconds_total", {"x": "two"}, 2.0),
    ]  # fmt: skip
    assert [(s.labels["le"], s.value) for s in histogram.samples[:3]] == [("0.5", 3), ("1.0", 3), ("+Inf", 4)]
    assert [(s.name, s.value) for s in histogram.samples[3:5]] == [("c_seconds_count", 4), ("c_seconds_sum", 2.5)]
    assert info.samples[1].labels == {"x": "two", "name": "name-4"}
    text = manual("M", ["Intro."], [table])
    assert "Labels: `x` (one, two), `pod`." in text
    assert "| `a_seconds_total` | counter | A. |" in text
    assert "| `d_info` | info | D. Labels beside: `name`. |" in text
