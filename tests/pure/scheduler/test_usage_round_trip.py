"""What an agent tells, message by message, is what the scheduler then knows: in whatever order things change."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.agent.feed import message
from sharepod.agent.reported import Device, DeviceNumbers, HeldShare, Picture, ShareNumbers, difference
from sharepod.agent.share import ShareClass
from sharepod.proto import v1_pb2 as pb
from sharepod.scheduler.usage import NodeUse, UsageBook
from sharepod.scheduler.usage_reader import read_report

NODE = pb.ReportingNode(name="n1", version="0.1.0")
PERCENT = st.integers(0, 3).map(lambda steps: steps * 33_000)
PAUSES = st.sampled_from([(False, False), (True, False), (True, True)])
IDS = [letter * 10 for letter in "abcd"]


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    indices = draw(st.sets(st.integers(0, 3), min_size=1))
    held = draw(st.sets(st.tuples(st.sampled_from(IDS), st.sampled_from(sorted(indices)))))
    return Picture(
        {
            index: Device(
                index, f"GPU-{index}", "H200", 2**37, draw(st.booleans()), "", draw(st.booleans()), -1,
                tuple(sorted(indices - {index})),
            )
            for index in sorted(indices)
        },
        {index: DeviceNumbers(2**30, draw(PERCENT), draw(PERCENT), 0, draw(PERCENT)) for index in indices},
        {
            key: HeldShare(
                "u", "n", "p", "c", draw(st.sampled_from(ShareClass)), draw(PERCENT), 100_000, 0, *draw(PAUSES)
            )
            for key in held
        },
        {key: ShareNumbers(draw(PERCENT), draw(PERCENT)) for key in held},
    )  # fmt: skip


def known(node: NodeUse) -> Picture:
    """Turn what the scheduler knows back into what the agent told."""
    return Picture(
        {
            d.facts.index: Device(
                d.facts.index, d.facts.uuid, d.facts.model, d.facts.memory_total_bytes, d.facts.healthy,
                d.facts.health_reason, d.facts.offered, d.facts.numa_node, d.facts.nvlink_peers,
            )
            for d in node.devices
        },
        {
            d.facts.index: DeviceNumbers(
                d.numbers.memory_used_bytes, d.numbers.used_1s_millipercent, d.numbers.used_1m_millipercent,
                d.numbers.used_15m_millipercent, d.numbers.waited_1m_millipercent,
            )
            for d in node.devices
        },
        {
            (s.terms.id, d.facts.index): HeldShare(
                s.terms.pod_uid, s.terms.namespace, s.terms.pod, s.terms.container, s.terms.share_class,
                s.terms.request_millipercent, s.terms.limit_millipercent, s.terms.memory_limit_bytes, s.terms.paused,
                s.terms.yielding,
            )
            for d in node.devices
            for s in d.shares
        },
        {
            (s.terms.id, d.facts.index): ShareNumbers(s.used_1m_millipercent, s.waited_1m_millipercent)
            for d in node.devices
            for s in d.shares
        },
    )  # fmt: skip


@given(st.lists(pictures(), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_after_each_message_both_sides_have_the_same_picture(shown: list[Picture], data: st.DataObject) -> None:
    book, sent = UsageBook(), None
    for picture in shown:
        told = difference(sent, picture)
        if told is None or told:
            report = read_report(message(NODE, picture, told).SerializeToString())
            assert not report.is_empty
            book.apply("n1", report, 0.0)
        book.validate()
        node = book.node("n1")
        assert node is not None
        assert known(node) == picture
        # A stream that is opened anew begins with everything.
        sent = None if data.draw(st.booleans()) else picture


def test_nothing_new_makes_an_empty_message() -> None:
    picture = Picture({}, {}, {}, {})
    told = difference(picture, picture)
    assert told is not None
    assert not told
    assert message(NODE, picture, told).SerializeToString() == b""
