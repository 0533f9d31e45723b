"""Test how turns are shown as traces and pictures."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest

from sharepod.cli.demo.account import Reading, outcome
from sharepod.cli.render.picture import svg, text_rows
from sharepod.cli.render.trace import chrome_trace
from sharepod.cli.render.turns import Turn, Window, held_fractions, share_names, span

MS = 1_000_000
FIRST = Turn(1, "a", "GPU-1", 0, 10 * MS, 18 * MS, 20 * MS, 10 * MS, "quantum", cogranted=False)
SECOND = Turn(2, "b", "GPU-1", 12 * MS, 20 * MS, 25 * MS, 25 * MS, 5 * MS, "idle", cogranted=False)
THIRD = Turn(3, "a", "GPU-1", 19 * MS, 25 * MS, 30 * MS, 30 * MS, 5 * MS, "idle", cogranted=True)
TURNS = [FIRST, SECOND, THIRD]


def test_a_window_spans_from_the_first_grant_to_the_last_drain_and_fractions_of_it_add_up() -> None:
    window = span(TURNS)
    assert window == Window(10 * MS, 30 * MS)
    assert span([]).length_ns == 0
    assert share_names(TURNS) == ["a", "b"]
    a, b = (held_fractions(TURNS, share, window, 4) for share in "ab")
    assert a == pytest.approx([1, 1, 0, 1])
    assert b == pytest.approx([0, 0, 1, 0])
    assert held_fractions(TURNS, "a", Window(18 * MS, 28 * MS), 1) == pytest.approx([0.5])
    assert held_fractions(TURNS, "a", Window(5, 5), 3) == [0, 0, 0]


def test_the_text_picture_has_a_row_per_share_and_shows_even_a_sliver() -> None:
    rows = dict(text_rows([*TURNS, replace(SECOND, granted_ns=26 * MS, drained_ns=26 * MS + 1)], span(TURNS), 4))
    assert rows == {"a": "██ █", "b": "  █▁"}


def test_the_svg_picture_is_well_formed_and_marks_a_late_drain() -> None:
    root = ET.fromstring(svg([replace(turn, share=f"<{turn.share}>") for turn in TURNS], span(TURNS), "a & b"))  # noqa: S314 - our own
    boxes = [node for node in root if node.tag.endswith("rect")][1:]
    assert len(boxes) == 3
    assert [box.get("stroke") for box in boxes] == [None, "red", None]
    widths = [float(box.get("width", "")) for box in boxes]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    lefts = [float(box.get("x", "")) for box in boxes]
    ticks = [float(node.get("x1", "")) for node in root if node.tag.endswith("line")]
    assert (ticks[0], ticks[-1]) == pytest.approx((min(lefts), max(map(sum, zip(lefts, widths, strict=True)))), abs=0.1)
    assert [after - before for before, after in pairwise(ticks)] == pytest.approx(
        [(ticks[-1] - ticks[0]) / 5] * 5, abs=0.1
    )


def test_a_trace_has_every_turn_its_wait_and_its_drain_in_microseconds() -> None:
    trace = json.loads(json.dumps(chrome_trace(TURNS, origin_ns=0)))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    turns = [event for event in slices if event["cat"] == "turn"]
    assert [(event["ts"], event["dur"], event["args"]["reason"]) for event in turns] == [
        (10_000, 10_000, "quantum"), (20_000, 5_000, "idle"), (25_000, 5_000, "idle"),
    ]  # fmt: skip
    assert [(e["ts"], e["dur"]) for e in slices if e["cat"] == "drain"] == [(18_000, 2_000)]
    # The first turn shows no wait: 0 means that the agent does not know when the wait began.
    assert [(e["ts"], e["dur"]) for e in slices if e["cat"] == "wait"] == [(12_000, 8_000), (19_000, 6_000)]
    assert turns[0]["tid"] == turns[2]["tid"] != turns[1]["tid"]


def test_each_device_is_a_process_of_the_trace_and_none_has_none() -> None:
    assert chrome_trace([])["traceEvents"] == []
    trace = chrome_trace([FIRST, replace(SECOND, device="GPU-2")])
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]  # type: ignore[attr-defined]
    assert names == ["device GPU-1", "device GPU-2"]


@pytest.mark.parametrize("device_ns", [1000, 4000])  # a device that is full, and one that a busy host leaves idle
def test_each_share_is_measured_against_its_request_and_its_part_of_the_rest(device_ns: int) -> None:
    before = Reading(1000, {"a": 100, "b": 0})
    after = Reading(1000 + device_ns, {"a": 700, "b": 400})
    found = outcome({"a": 50, "b": 30}, before, after)
    first, second = found.shares
    assert found.used == 100 * 1000 / device_ns
    assert (first.expected, first.got) == (62.5, 60)
    assert first.error == pytest.approx(-2.5)
    assert second.error == pytest.approx(2.5)


def test_nothing_is_measured_without_a_window_or_any_use() -> None:
    reading = Reading(2000, {"a": 700})
    for after in (reading, Reading(3000, {"a": 700})):
        with pytest.raises(ValueError, match="window"):
            outcome({"a": 50}, reading, after)
