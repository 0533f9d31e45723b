"""Test that a page of metrics equals prometheus_client's byte for byte, and that each row becomes its family."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from sharepod.process.metrics import Histogram, HistogramRow, InfoRow, Row, Table, manual
from sharepod.process.metrics_page import Family, Library, Page

ENCODERS = (generate_latest, generate_openmetrics)
Series = tuple[Sequence[str], float]
VALUES = st.floats().map(lambda value: value + 0.0)
"""Any but -0.0: a series that goes from 0.0 to -0.0 keeps its text."""
SERIES = st.lists(st.tuples(st.lists(st.text(max_size=5), min_size=1, max_size=3), VALUES), max_size=6)


class Fixed:
    def __init__(self, series: Iterable[Series], doc: str) -> None:
        self._table: Table[Iterable[Series], float] = Table(
            "Some",
            dict.fromkeys(("share", "gpu", "pod"), ()),
            (
                Row("b_total", doc, float),
                Row("a", doc, float),
                HistogramRow("h", doc, (0.5,), lambda value: ((2, 3), value)),
                InfoRow("i_info", doc, ("name",), lambda value: (str(value),)),
            ),
            lambda snapshot: snapshot,
        )
        self._empty = Table("None", {}, (Row("empty", doc, float),), lambda _: ())
        self._series = list(series)

    def collect(self) -> list[Family]:
        return [*self._table.families(self._series), *self._empty.families(self._series)]


@settings(deadline=None)
@given(st.lists(SERIES, min_size=1, max_size=3), st.text(max_size=10))
def test_a_page_is_what_the_library_writes_whatever_comes_and_goes(scrapes: list[list[Series]], doc: str) -> None:
    for encode in ENCODERS:
        page = Page(encode)
        for series in scrapes:
            collector = Fixed(series, doc)
            assert page.text(collector) == encode(Library([family.metric() for family in collector.collect()]))


def test_several_scrapes_at_a_time_are_each_whole() -> None:
    page = Page(generate_latest)

    def scrape(number: int) -> bool:
        collector = Fixed([((f"share-{one}",), float(number)) for one in range(number % 7)], "One.")
        return page.text(collector) == generate_latest(Library([family.metric() for family in collector.collect()]))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(scrape, range(200)))


def test_a_page_keeps_no_series_that_is_gone() -> None:
    page = Page(generate_latest)
    for number in range(9):
        page.text(Fixed([((f"share-{number}",), 1.0), ((f"share-{number + 1}",), 1.0)], ""))
    assert b"share-0" not in page.text(Fixed([(("share-9",), 1.0)], ""))
    assert {len(written.series) for written in page._written.values()} == {0, 1}


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
    counter, gauge, histogram, info = (family.metric() for family in table.families([3, 4]))
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
