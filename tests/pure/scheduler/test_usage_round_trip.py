"""What an agent tells, message by message, is what the scheduler then knows: in whatever order things change."""

from __future__ import annotations

from dataclasses import astuple

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
    """Turn what the scheduler knows back into what the agent told: both name the same things in the same order."""
    held = [(device.facts.index, share) for device in node.devices for share in device.shares]
    return Picture(
        {device.facts.index: Device(*astuple(device.facts)) for device in node.devices},
        {device.facts.index: DeviceNumbers(*astuple(device.numbers)) for device in node.devices},
        {(share.terms.id, index): HeldShare(*astuple(share.terms)[1:]) for index, share in held},
        {
            (share.terms.id, index): ShareNumbers(share.used_1m_millipercent, share.waited_1m_millipercent)
            for index, share in held
        },
    )


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
