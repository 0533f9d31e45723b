"""Test the snapshots of the node that the scheduler is told, in virtual time: noise is no change, all else is told."""

from dataclasses import replace

from agent_doubles import H200, H200_B
from hypothesis import given
from hypothesis import strategies as st

from sharepod.agent.api.plugin import Report
from sharepod.agent.api.snapshot import MEMORY_STEP_BYTES, Snapshot, SnapshotBuilder, message, stepped
from sharepod.agent.devices.device import DeviceInfo, DeviceStatus, NodeStatus
from sharepod.agent.shares.ledger import MINUTE_NS, OLD_NS, QUARTER_NS, SECOND_NS, Account, DeviceAccount
from sharepod.agent.shares.share import (
    DeviceTerms,
    DeviceUsage,
    DeviceUuid,
    Share,
    ShareClass,
    ShareId,
    ShareStatus,
    Terms,
    Usage,
)
from sharepod.proto import v1_pb2 as pb

GIB = 2**30
NODE = pb.ReportingNode(name="n1", version="0.1.0")


def held(share: str = "a", device: DeviceInfo = H200, *, used_s: float = 0, **rates: int) -> ShareStatus:
    terms = DeviceTerms(device.uuid, Terms(30_000, 60_000, GIB))
    labels = {"namespace": "team", "pod": f"pod-{share}", "pod_uid": "u", "container": "main", "other": "x"}
    value = Share(ShareId(share), (terms,), ShareClass.LATENCY, "/d", 1, labels=labels)
    usage = DeviceUsage(device.uuid, Usage(used_ns=round(used_s * SECOND_NS)), **rates)
    return ShareStatus(value, (usage,), ())


def status(second: float, *shares: ShareStatus, memory: int = 0, plugin: Report | None = None) -> NodeStatus:
    devices = (DeviceStatus(H200, memory_used_bytes=memory), DeviceStatus(H200_B))
    return NodeStatus(round(second * SECOND_NS), shares, devices, plugin)


def test_numbers_move_by_steps_and_come_to_rest_at_zero() -> None:
    assert stepped(0, 999, 1000) == 0
    assert stepped(0, 1000, 1000) == 1000
    assert stepped(0, 1600, 1000) == 2000
    assert stepped(50_000, 50_999, 1000) == 50_000
    assert stepped(50_000, 49_001, 1000) == 50_000
    assert stepped(50_000, 51_200, 1000) == 51_000
    assert stepped(1000, 0, 1000) == 0
    assert stepped(1000, 1, 1000) == 1000


@given(st.lists(st.integers(0, 100_000), min_size=1))
def test_what_is_told_is_never_off_by_more_than_a_step(values: list[int]) -> None:
    told = 0
    for value in values:
        told = stepped(told, value, 1000)
        assert abs(told - value) < 1000
        assert told % 1000 == 0
        assert 0 <= told <= 100_000


def test_a_picture_has_what_there_is_of_devices_and_shares() -> None:
    plugin = Report(offer=pb.PluginOffer(device_uuids=[H200_B.uuid]))
    builder = SnapshotBuilder()
    share = held(used_1m_millipercent=20_300, waited_1m_millipercent=5000)
    second = held("b", used_1m_millipercent=0, waited_1m_millipercent=97_000)
    snapshot = builder.build(status(1, share, second, memory=3 * GIB, plugin=plugin))
    assert [device.offered for device in snapshot.devices] == [False, True]
    assert snapshot.devices[0].uuid == H200.uuid
    assert snapshot.device_numbers[0].waited_1m_millipercent == 102_000
    assert abs(snapshot.device_numbers[0].memory_used_bytes - 3 * GIB) < H200.memory_total_bytes // 1000
    told = snapshot.shares[0]
    assert (told.pod_uid, told.namespace, told.pod, told.container) == ("u", "team", "pod-a", "main")
    assert (told.request_millipercent, told.limit_millipercent, told.memory_limit_bytes) == (30_000, 60_000, GIB)
    assert snapshot.share_numbers[0].used_1m_millipercent == 20_000


def test_noise_is_no_difference_and_an_idle_node_has_none() -> None:
    builder = SnapshotBuilder()
    before = builder.build(status(1, held(used_1m_millipercent=20_000), memory=3 * GIB))
    after = builder.build(status(2, held(used_1m_millipercent=20_900), memory=3 * GIB + 2**20))
    assert message(NODE, before, after) == Snapshot()
    assert message(NODE, None, after).node == NODE


def test_what_differs_is_told_and_nothing_else() -> None:
    builder = SnapshotBuilder()
    before = builder.build(status(1, held("a"), held("b")))
    told = message(NODE, before, builder.build(status(2, held("a", used_1m_millipercent=50_000), held("c"))))
    assert [share.id for share in told.shares] == ["c"]
    assert (told.ended_share_ids, told.devices) == (["b"], [])
    assert {numbers.share_id for numbers in told.share_numbers} == {"a", "c"}


def test_what_the_driver_and_labels_say_is_made_fit_to_be_told() -> None:
    share = held()
    share = replace(share, share=replace(share.share, labels={"pod": "p" * 400, "namespace": "a\nb"}))
    device = DeviceStatus(replace(H200, name="H200\x00"), health_reason="r" * 1000)
    snapshot = SnapshotBuilder().build(NodeStatus(SECOND_NS, (share,), (device,)))
    assert snapshot.devices[0].model == "H200?"
    assert len(snapshot.devices[0].health_reason) == 253
    told = snapshot.shares[0]
    assert (len(told.pod), told.namespace, told.pod_uid) == (253, "a?b", "")


def test_a_device_that_does_not_tell_its_memory_has_steps_too() -> None:
    unified = DeviceInfo(DeviceUuid("GPU-x"), 0, "GB10", 0)
    device = DeviceStatus(unified, memory_used_bytes=MEMORY_STEP_BYTES * 5 // 2)
    snapshot = SnapshotBuilder().build(NodeStatus(SECOND_NS, (), (device,)))
    assert snapshot.device_numbers[0].memory_used_bytes == 3 * MEMORY_STEP_BYTES


def test_a_device_keeps_what_shares_used_that_have_ended() -> None:
    builder = SnapshotBuilder()
    for second in range(61):  # used half of the time, after five hours of use before this agent
        snapshot = builder.build(status(second, held(used_s=18_000 + second / 2)))
    assert snapshot.device_numbers[0].used_1s_millipercent == 50_000
    for second in range(61, 91):
        snapshot = builder.build(status(second))
    numbers = snapshot.device_numbers[0]
    assert numbers.used_1s_millipercent == 0
    assert abs(numbers.used_1m_millipercent - 25_000) <= 2000
    assert abs(numbers.used_15m_millipercent - 33_000) <= 2000
    assert snapshot.device_numbers[1].used_15m_millipercent == 0


def test_a_share_that_is_new_counts_from_its_first_nanosecond() -> None:
    account = DeviceAccount()
    account.add(0, {})
    account.add(SECOND_NS, {"a": SECOND_NS // 2})
    account.add(2 * SECOND_NS, {"a": SECOND_NS, "b": SECOND_NS // 4})
    assert account.rate_millipercent(2 * SECOND_NS, SECOND_NS) == 75_000
    account.add(3 * SECOND_NS, {"a": 0})  # a counter that falls is ignored
    assert account.rate_millipercent(3 * SECOND_NS, SECOND_NS) == 0


def test_a_quarter_of_an_hour_is_a_window_too_and_so_is_the_time_waited() -> None:
    account = Account()
    used = waited = 0
    for second in range(2400):  # 20 min at 10 %, then 20 min at 70 %; it waits except in the last two minutes
        account.add(second * SECOND_NS, used, waited)
        account.validate()
        used += SECOND_NS * (1 if second < 1200 else 7) // 10
        waited += SECOND_NS * (second < 2280)
    now = 2400 * SECOND_NS
    assert account.rate_millipercent(now, used, QUARTER_NS) == 70_000
    assert account.waited_millipercent(now, waited, MINUTE_NS) == 0
    assert abs(account.waited_millipercent(now, waited, QUARTER_NS) - 86_700) < 2000
    for second in range(2400, 2850):  # half of the window passes
        account.add(second * SECOND_NS, used, waited)
    error = 100_000 * OLD_NS // QUARTER_NS
    assert abs(account.rate_millipercent(2850 * SECOND_NS, used, QUARTER_NS) - 35_000) <= error
