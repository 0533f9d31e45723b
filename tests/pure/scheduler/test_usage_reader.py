"""Test how agents' messages are read: every value is bounded, whatever the bytes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.agent.shares.share import ShareClass
from sharepod.proto import v1_pb2 as pb
from sharepod.scheduler.errors import UsageRefused
from sharepod.scheduler.feed.usage_reader import MESSAGE_MAX, TEXT_MAX, read_report
from sharepod.scheduler.state.usage import (
    DEVICES_MAX,
    SHARES_MAX,
    DeviceFacts,
    DeviceNumbers,
    NodeFacts,
    Report,
    ShareTerms,
)

SHARE = "abcdefghjk"


def whole() -> pb.ReportUsageRequest:
    return pb.ReportUsageRequest(
        node=pb.ReportingNode(name="n1", version="0.1.0"),
        devices=[
            pb.ReportedDevice(
                index=1, uuid="GPU-1", model="H200", memory_total_bytes=2**37, healthy=False, health_reason="Xid 79",
                offered=True, numa_node=-1, nvlink_peers=[3, 1, 2, 2],
            )
        ],
        device_numbers=[
            pb.DeviceNumbers(
                device_index=1, memory_used_bytes=2**30, used_1s_millipercent=1000, used_1m_millipercent=2500,
                used_15m_millipercent=3000, waited_1m_millipercent=250_000,
            )
        ],
        shares=[
            pb.ReportedShare(
                id=SHARE, device_index=1, pod_uid="u", namespace="n", pod="p", container="c",
                share_class=pb.SHARE_CLASS_BATCH, request_millipercent=0, limit_millipercent=50_000,
                memory_limit_bytes=2**20, paused=True, yielding=True,
            )
        ],
        share_numbers=[
            pb.ShareNumbers(share_id=SHARE, device_index=1, used_1m_millipercent=7, waited_1m_millipercent=8)
        ],
    )  # fmt: skip


def test_every_field_arrives() -> None:
    assert read_report(whole().SerializeToString()) == Report(
        NodeFacts("n1", "0.1.0"),
        (DeviceFacts(1, "GPU-1", "H200", 2**37, False, "Xid 79", True, -1, (2, 3)),),
        ((1, DeviceNumbers(2**30, 1000, 2500, 3000, 250_000)),),
        ((1, ShareTerms(SHARE, "u", "n", "p", "c", ShareClass.BATCH, 0, 50_000, 2**20, paused=True, yielding=True)),),
        ((SHARE, 1, 7, 8),),
    )
    assert read_report(pb.ReportUsageRequest(ended_share_ids=[SHARE]).SerializeToString()).ended_shares == (SHARE,)
    assert read_report(b"").is_empty
    running = whole()
    running.shares[0].paused = False
    [(_, terms)] = read_report(running.SerializeToString()).shares
    assert not terms.yielding, "a running share does not yield, whatever is told"


def change(path: str, value: Any) -> Callable[[pb.ReportUsageRequest], None]:
    name, _, field = path.partition(".")

    def act(message: pb.ReportUsageRequest) -> None:
        part = getattr(message, name)
        setattr(part if name == "node" else part[0], field, value)

    return act


BAD = [
    (change("node.name", ""), "'' is no name of a node"),
    (change("node.name", "a b"), "'a b' is no name of a node"),
    (change("node.name", "n" * 254), "no name of a node"),
    (change("node.version", "1\n2"), "version '1\\\\n2'"),
    (change("devices.uuid", ""), "device 1 has no UUID"),
    (change("devices.uuid", "x" * (TEXT_MAX + 1)), f"has more than {TEXT_MAX} letters"),
    (change("devices.index", DEVICES_MAX), f"device {DEVICES_MAX} is above {DEVICES_MAX - 1}"),
    (change("devices.model", "\x1b[2J"), "unprintable"),
    (change("devices.memory_total_bytes", 2**63), "memory 9223372036854775808 is above"),
    (change("devices.numa_node", -2), "memory node -2"),
    (change("devices.health_reason", "\u202e"), "unprintable"),
    (change("device_numbers.used_1s_millipercent", 100_001), "time used 100001 is above 100000"),
    (change("device_numbers.used_15m_millipercent", 2**32 - 1), "time used"),
    (change("device_numbers.waited_1m_millipercent", 100_000_001), "time waited"),
    (change("device_numbers.memory_used_bytes", 2**60), "memory in use"),
    (change("shares.id", "../../etc"), "no id of a share"),
    (change("shares.id", SHARE + "\n"), "no id of a share"),
    (change("shares.request_millipercent", 999), "with request 999 and limit 50000"),
    (change("shares.request_millipercent", 60_000), "with request 60000 and limit 50000"),
    (change("shares.limit_millipercent", 0), "limit 0"),
    (change("shares.limit_millipercent", 100_001), "limit 100001"),
    (change("shares.share_class", 0), "class 0 is unknown"),
    (change("shares.share_class", 77), "class 77 is unknown"),
    (change("shares.memory_limit_bytes", 2**51), "memory limit"),
    (change("shares.pod", "p" * 254), "has more than 253 letters"),
    (change("shares.namespace", "a\x00b"), "unprintable"),
    (change("share_numbers.used_1m_millipercent", 100_001), "time used or waited 100001"),
    (change("share_numbers.waited_1m_millipercent", 100_001), "time used or waited 100001"),
    (change("share_numbers.share_id", "x"), "no id of a share"),
    (lambda m: m.ended_share_ids.append("x"), "no id of a share"),
    (lambda m: m.devices[0].nvlink_peers.append(DEVICES_MAX), "device 128 is above"),
    (lambda m: m.devices[0].nvlink_peers.extend([2] * (DEVICES_MAX + 1)), "NVLink peers"),
    (lambda m: m.device_numbers.extend([pb.DeviceNumbers()] * (DEVICES_MAX + 1)), "numbers of devices in one message"),
    (lambda m: m.share_numbers.extend([pb.ShareNumbers()] * SHARES_MAX), "numbers of shares in one message"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "text"), BAD)
def test_a_value_that_cannot_be_is_refused_in_one_line(
    spoil: Callable[[pb.ReportUsageRequest], None], text: str
) -> None:
    message = whole()
    spoil(message)
    with pytest.raises(UsageRefused, match=text) as caught:
        read_report(message.SerializeToString())
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(UsageRefused, match="3 bytes that are no ReportUsageRequest"):
        read_report(b"\xff\xff\xff")
    with pytest.raises(UsageRefused, match=f"at most {MESSAGE_MAX}"):
        read_report(bytes(MESSAGE_MAX + 1))
    with pytest.raises(UsageRefused, match="no ReportUsageRequest"):
        read_report(b"\x32\x02\xff\xfe")  # an id that is not UTF-8


@given(st.data())
@settings(deadline=None)
def test_whatever_the_bytes_it_is_a_report_or_refused(data: st.DataObject) -> None:
    good = whole().SerializeToString()
    at = data.draw(st.integers(0, len(good)))
    cut = data.draw(st.integers(0, 8))
    mutated = good[:at] + data.draw(st.binary(max_size=8)) + good[at + cut :]
    try:
        report = read_report(mutated)
    except UsageRefused:
        return
    for _, numbers in report.device_numbers:
        assert numbers.used_1s_millipercent <= 100_000
    for index, _ in report.shares:
        assert 0 <= index < DEVICES_MAX
