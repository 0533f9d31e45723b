"""Test that the scheduler knows exactly what an agent has told message by message, in whatever order things change."""

from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.agent.api.snapshot import Snapshot, message
from sharepod.proto import v1_pb2 as pb
from sharepod.scheduler.feed.usage_reader import read_report
from sharepod.scheduler.state.usage import NodeUse, UsageBook

NODE = pb.ReportingNode(name="n1", version="0.1.0")
PERCENT = st.integers(0, 3).map(lambda steps: steps * 33_000)
PAUSES = st.sampled_from([(False, False), (True, False), (True, True)])
IDS = [letter * 10 for letter in "abcd"]


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    indices = sorted(draw(st.sets(st.integers(0, 3), min_size=1)))
    held = sorted(draw(st.sets(st.tuples(st.sampled_from(indices), st.sampled_from(IDS)))))
    snapshot = Snapshot()
    for index in indices:
        snapshot.devices.add(
            index=index, uuid=f"GPU-{index}", model="H200", memory_total_bytes=2**37, healthy=draw(st.booleans()),
            offered=draw(st.booleans()), numa_node=-1, nvlink_peers=[peer for peer in indices if peer != index],
        )  # fmt: skip
        snapshot.device_numbers.add(
            device_index=index, memory_used_bytes=2**30, used_1s_millipercent=draw(PERCENT),
            used_1m_millipercent=draw(PERCENT), waited_1m_millipercent=draw(PERCENT),
        )  # fmt: skip
    for index, share in held:
        paused, yielding = draw(PAUSES)
        snapshot.shares.add(
            id=share, device_index=index, pod_uid="u", namespace="n", pod="p", container="c",
            share_class=draw(st.sampled_from(pb.ShareClass.values()[1:])), request_millipercent=draw(PERCENT),
            limit_millipercent=100_000, paused=paused, yielding=yielding,
        )  # fmt: skip
        snapshot.share_numbers.add(
            share_id=share, device_index=index, used_1m_millipercent=draw(PERCENT),
            waited_1m_millipercent=draw(PERCENT),
        )  # fmt: skip
    return snapshot


def known(node: NodeUse) -> Snapshot:
    """Turn the scheduler's knowledge of a node back into the agent's snapshot."""
    snapshot = Snapshot()
    for device in sorted(node.devices, key=lambda device: device.facts.index):
        index = device.facts.index
        snapshot.devices.add(**asdict(device.facts))
        snapshot.device_numbers.add(device_index=index, **asdict(device.numbers))
        for share in sorted(device.shares, key=lambda share: share.terms.id):
            share_class = pb.ShareClass.Value(f"SHARE_CLASS_{share.terms.share_class.name}")
            snapshot.shares.add(**asdict(share.terms) | {"device_index": index, "share_class": share_class})
            snapshot.share_numbers.add(
                share_id=share.terms.id, device_index=index, used_1m_millipercent=share.used_1m_millipercent,
                waited_1m_millipercent=share.waited_1m_millipercent,
            )  # fmt: skip
    return snapshot


@given(st.lists(snapshots(), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_after_each_message_both_sides_have_the_same_picture(shown: list[Snapshot], data: st.DataObject) -> None:
    book, sent = UsageBook(), None
    for snapshot in shown:
        told = message(NODE, sent, snapshot)
        if told.ListFields():
            report = read_report(told.SerializeToString())
            assert not report.is_empty
            book.apply("n1", report, 0.0)
        book.validate()
        node = book.node("n1")
        assert node is not None
        assert known(node) == snapshot
        # A new stream begins with a whole report.
        sent = None if data.draw(st.booleans()) else snapshot
