"""Test the book of what nodes use, in virtual time: whole reports and changes go in, values come out."""

from dataclasses import replace

import pytest

from sharepod.agent.shares.share import ShareClass
from sharepod.scheduler.errors import UsageRefused
from sharepod.scheduler.state.usage import (
    DEVICES_MAX,
    FORGOTTEN_S,
    SHARES_MAX,
    SILENT_S,
    Changes,
    DeviceFacts,
    DeviceNumbers,
    NodeFacts,
    Report,
    ShareTerms,
    UsageBook,
)

NODE = NodeFacts("n1", "0.1.0")
NUMBERS = DeviceNumbers(2**30, 50_000, 40_000, 30_000, 120_000)


def facts(index: int, uuid: str = "") -> DeviceFacts:
    return DeviceFacts(index, uuid or f"GPU-{index}", "H200", 2**37, True, "", True, -1, ())


def terms(share: str, request: int = 30_000) -> ShareTerms:
    return ShareTerms(
        share, f"uid-{share}", "team", share, "main", ShareClass.STANDARD, request, 100_000, 0, paused=False
    )


WHOLE = Report(
    NODE,
    devices=(facts(0), facts(1)),
    device_numbers=((1, NUMBERS),),
    shares=((0, terms("a")), (1, terms("a")), (1, terms("b"))),
    share_numbers=(("b", 1, 20_000, 10_000),),
)


@pytest.fixture
def book() -> UsageBook:
    made = UsageBook()
    made.apply("n1", WHOLE, 100.0)
    made.take_changes()
    return made


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (replace(WHOLE, node=replace(NODE, name="n2")), "the report is of node n2, the stream of n1"),
        (Report(device_numbers=((7, NUMBERS),)), "numbers or shares of device 7, which the node does not have"),
        (Report(shares=((2, terms("c")),)), "numbers or shares of device 2"),
        (Report(share_numbers=(("c", 0, 1, 1),)), "numbers of share c, which is not on device 0"),
        (Report(share_numbers=(("b", 0, 1, 1),)), "numbers of share b, which is not on device 0"),
        (Report(devices=(facts(2, "GPU-0"),)), "two devices of a node with one UUID"),
        (Report(devices=tuple(map(facts, range(DEVICES_MAX + 1)))), f"more than {DEVICES_MAX} devices"),
        (Report(shares=tuple((0, terms(str(n))) for n in range(SHARES_MAX))), f"more than {SHARES_MAX} shares"),
        (replace(WHOLE, ended_shares=("a",)), "a complete report has shares that ended"),
        (replace(WHOLE, device_numbers=((5, NUMBERS),)), "device 5"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(book: UsageBook, report: Report, text: str) -> None:
    before = book.node("n1")
    with pytest.raises(UsageRefused, match=text):
        book.apply("n1", report, 105.0)
    assert book.node("n1") is before
    assert book.silent_s("n1", 105.0) == 5.0
    assert book.take_changes() == Changes(frozenset(), frozenset())


def test_what_has_changed_is_told_once_and_facts_apart_from_numbers(book: UsageBook) -> None:
    book.apply("n2", replace(WHOLE, node=replace(NODE, name="n2")), 100.0)
    book.apply("n1", Report(share_numbers=(("a", 0, 1000, 0),)), 101.0)
    assert book.take_changes() == Changes(frozenset({"n2"}), frozenset({"n1"}))
    book.apply("n1", Report(), 102.0)
    assert book.take_changes() == Changes(frozenset(), frozenset())
    book.apply("n1", Report(device_numbers=((0, NUMBERS),)), 103.0)
    book.apply("n1", Report(ended_shares=("b",)), 104.0)
    assert book.take_changes() == Changes(frozenset({"n1"}), frozenset())


def test_a_node_that_falls_silent_ages_and_is_forgotten_after_an_hour(book: UsageBook) -> None:
    book.age(5.0)  # a clock that goes back must not age a node
    assert (book.silent_s("n1", 5.0), book.is_fresh("n1", 5.0)) == (0.0, True)
    book.age(100 + SILENT_S)
    assert book.is_fresh("n1", 100 + SILENT_S)
    assert not book.take_changes().facts
    book.age(101 + SILENT_S)
    book.age(102 + SILENT_S)
    assert not book.is_fresh("n1", 101 + SILENT_S)
    assert book.node("n1") is not None  # its last report is still known
    assert book.take_changes().facts == {"n1"}
    assert book.silent_s("n1", 150.0) == 50.0
    book.apply("n1", Report(), 200.0)  # an empty message is enough to make it fresh
    assert book.is_fresh("n1", 200.0)
    assert book.take_changes().facts == {"n1"}
    book.age(201 + FORGOTTEN_S)
    assert (book.node("n1"), book.silent_s("n1", 9999.0), len(book)) == (None, None, 0)
    assert book.take_changes().facts == {"n1"}
    with pytest.raises(UsageRefused, match="begin with a complete message"):
        book.apply("n1", Report(), 9999.0)
    assert book.names() == ()


def test_a_node_that_leaves_the_cluster_can_be_forgotten_at_once(book: UsageBook) -> None:
    book.forget("n1")
    book.forget("n1")
    assert book.names() == ()
    assert book.take_changes().facts == {"n1"}
