"""Makes the messages of synthetic agents: nodes of eight devices with ten shares, and their changes. Seeded."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from sharepod.agent.shares.share import ID_LENGTH, ID_LETTERS
from sharepod.proto import v1_pb2 as pb

DEVICES = 8
SHARES = 10
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Agent:
    """One node: its name, its first message, and the changes that it sends in turn."""

    name: str
    complete: bytes
    changes: tuple[bytes, ...]


def agents(count: int, *, devices: int, shares: int) -> Iterator[Agent]:
    """Make `count` nodes; each change of a node is about `devices` devices and `shares` shares."""
    draw = random.Random(count)
    for number in range(count):
        name = f"node-{number}"
        first, ids = _complete(name, draw)
        changes = tuple(_change(ids, draw, devices, shares).SerializeToString() for _ in range(4))
        yield Agent(name, first.SerializeToString(), changes)


def _complete(name: str, draw: random.Random) -> tuple[pb.ReportUsageRequest, list[tuple[str, int]]]:
    """Return a node's first message, which tells all of it, and its shares: the id and the device of each."""
    message = pb.ReportUsageRequest(node=pb.ReportingNode(name=name, version="0.1.0"))
    for index in range(DEVICES):
        message.devices.add(
            index=index,
            uuid=f"GPU-{draw.getrandbits(128):032x}",
            model="NVIDIA H200",
            memory_total_bytes=141 * GIB,
            healthy=True,
            offered=True,
            numa_node=index // 4,
            nvlink_peers=[peer for peer in range(DEVICES) if peer != index],
        )
        message.device_numbers.append(_device(index, draw))
    ids = [("".join(draw.choices(ID_LETTERS, k=ID_LENGTH)), number % DEVICES) for number in range(SHARES)]
    for share, index in ids:
        message.shares.add(
            id=share,
            device_index=index,
            pod_uid=f"{draw.getrandbits(128):032x}",
            namespace="default",
            pod=f"trainer-{draw.getrandbits(40):010x}",
            container="main",
            share_class=pb.SHARE_CLASS_STANDARD,
            request_millipercent=30_000,
            limit_millipercent=60_000,
            memory_limit_bytes=20 * GIB,
        )
        message.share_numbers.append(_share(share, index, draw))
    return message, ids


def _change(ids: list[tuple[str, int]], draw: random.Random, devices: int, shares: int) -> pb.ReportUsageRequest:
    """Return a later message: new numbers of so many devices and shares."""
    return pb.ReportUsageRequest(
        device_numbers=[_device(index, draw) for index in draw.sample(range(DEVICES), devices)],
        share_numbers=[_share(share, index, draw) for share, index in draw.sample(ids, shares)],
    )


def _device(index: int, draw: random.Random) -> pb.DeviceNumbers:
    return pb.DeviceNumbers(
        device_index=index,
        memory_used_bytes=draw.randrange(141) * GIB,
        used_1s_millipercent=draw.randrange(100) * 1000,
        used_1m_millipercent=draw.randrange(100) * 1000,
        used_15m_millipercent=draw.randrange(100) * 1000,
        waited_1m_millipercent=draw.randrange(100) * 1000,
    )


def _share(share: str, index: int, draw: random.Random) -> pb.ShareNumbers:
    return pb.ShareNumbers(
        share_id=share,
        device_index=index,
        used_1m_millipercent=draw.randrange(100) * 1000,
        waited_1m_millipercent=draw.randrange(100) * 1000,
    )
