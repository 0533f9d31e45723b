"""The text of traces: what is read is what is written, what is wrong is told with its line, loops lose nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.traces.format import Event, Item, Repeat, Trace, TraceError, events, fold, parse
from bench.traces.shapes import SHAPES, server, training

HEADER = '{"sharepod_trace": 1, "name": "t", "origin": "synthesised", "sources": {"all": "made up"}}\n'
TABLES = "stream 0 legacy\nkernel 0 5000 gemm 8x8x1\nkernel 1 700 add 1x1x1\ngraph 0 0*3 1\n"


def unfolded(items: tuple[Item, ...]) -> list[Event]:
    found: list[Event] = []
    for item in items:
        found += [item] if isinstance(item, Event) else unfolded(item.body) * item.count
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_traces_that_are_kept_are_what_is_synthesised_unless_they_are_recorded(
    shape: Callable[[], Trace], repo_root: Path
) -> None:
    trace = shape()
    text = (repo_root / "bench" / "traces" / f"{trace.name}.trace").read_text(encoding="utf-8")
    kept = parse(text)
    assert kept.text() == text
    assert kept.origin == "recorded" or text == trace.text()
    assert len(text) < 20_000


def test_a_synthesised_step_is_as_long_as_was_published() -> None:
    trace = training()
    (endless,) = [item for item in trace.threads[0] if isinstance(item, Repeat)]
    (ten,) = [item for item in endless.body if isinstance(item, Repeat)]
    launches = [event for event in unfolded(ten.body) if event.verb == "launch"]
    total_ns = sum(trace.kernels[int(e.arguments[1])].duration_ns * int(e.arguments[2]) for e in launches)
    assert total_ns == pytest.approx(135e6, rel=0.001)
    assert server().graph_ns(0) == pytest.approx(5.1e6, rel=0.01)
    assert len(server().graphs[0]) == 322


def test_a_trace_is_read_as_it_is_written() -> None:
    text = HEADER + TABLES + "thread 0\nlaunch 0 1 3 20\nrepeat 0\n  begin step\n  run 0 0\n  end step\nagain\n"
    trace = parse(text)
    assert trace.text() == text
    assert trace.graphs == ((0, 0, 0, 1),)
    assert trace.graph_ns(0) == 15_700
    assert [event.verb for event in events(trace.threads[0])] == ["launch", "begin", "run", "end"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the header is no JSON"),
        ('{"sharepod_trace": 2}', "line 1: this reads traces of version 1"),
        ('{"sharepod_trace": 1, "name": "t", "origin": "guessed"}', "recorded or synthesised"),
        ('{"sharepod_trace": 1, "name": "t", "origin": "synthesised"}', "says its sources"),
        (
            '{"sharepod_trace": 1, "name": "t", "origin": "recorded", "device": "H100"}',
            "says its driver, command, date",
        ),
        (HEADER + TABLES, "it has no thread"),
        (HEADER + TABLES + "launch 0 0\n", "line 6: `launch` stands before the first thread"),
        (HEADER + TABLES + "thread 0\nlaunch 0 2\n", "line 7: there is no launch argument of number 2"),
        (HEADER + TABLES + "thread 0\nlaunch 1 0\n", "line 7: there is no launch argument of number 1"),
        (HEADER + TABLES + "thread 0\nrun 0 1\n", "line 7: there is no run argument of number 1"),
        (HEADER + TABLES + "thread 0\ncpu soon\n", "line 7: `soon` is not a number"),
        (HEADER + TABLES + "thread 0\ncopy 0 sideways 8\n", "line 7: `sideways` is none of htod, dtoh, dtod, set"),
        (HEADER + TABLES + "thread 0\nsleep 5\n", "line 7: `sleep 5` is nothing that a thread does"),
        (HEADER + TABLES + "thread 0\nrepeat 2\ncpu 5\n", "a loop is not closed"),
        (HEADER + TABLES + "thread 0\nagain\n", "line 7: `again` is nothing that a thread does"),
        (HEADER + TABLES + "thread 0\nrepeat 2\nagain\n", "line 8: a loop has a body"),
        (HEADER + "kernel 1 5 a 1x1x1\n", "line 2: the next number is 0, not 1"),
        (HEADER + "graph 0 0\n", "line 2: there is no kernel argument of number 0"),
        (HEADER + "stream 0 fast\n", "line 2: a stream is not declared like that"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        parse(text)


@given(st.lists(st.sampled_from([Event("cpu", (n,)) for n in range(3)]), max_size=60), st.integers(1, 5))
def test_folding_loses_nothing(items: list[Event], times: int) -> None:
    whole = items * times
    assert unfolded(fold(whole)) == whole


def test_folding_writes_a_period_once() -> None:
    layer = [Event("launch", (0, kernel, 1, 0)) for kernel in range(10)]
    assert fold([Event("cpu", (1,)), *layer * 32]) == (Event("cpu", (1,)), Repeat(32, tuple(layer)))
