"""Turns the agents' messages into values, each of them checked and bounded. No other module reads these messages.

A sender that has the token of a node's agent may send anything. A message with an impossible value is refused with one
line, and nothing of it counts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from sharepod.agent.shares.share import LEAST_MILLIPERCENT, SHARE_ID, WHOLE_MILLIPERCENT, ShareClass
from sharepod.proto import v1_pb2 as pb
from sharepod.scheduler.errors import UsageRefused
from sharepod.scheduler.state.usage import (
    DEVICES_MAX,
    SHARES_MAX,
    DeviceFacts,
    DeviceNumbers,
    NodeFacts,
    Report,
    ShareTerms,
)

if TYPE_CHECKING:
    from collections.abc import Sized

Value = TypeVar("Value")

MESSAGE_MAX: Final = 2**20
"""In bytes: enough for SHARES_MAX shares with the names that pods usually have."""
NAME_MAX: Final = 253
"""The longest name of a node, pod, namespace or container, as in Kubernetes."""
TEXT_MAX: Final = 300
"""The longest UUID, model, version or reason."""
WAITED_MAX: Final = 1000 * WHOLE_MILLIPERCENT
"""The most time that is waited on a device in a minute, all shares together: a thousand that wait all the time."""
_MEMORY_MAX: Final = 2**50
_NUMA_MAX: Final = 4096
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
"""As in the agent's setting; a node with a token always has a Kubernetes name."""
_SHARED_MAX: Final = 4096
"""The most values that `_shared` keeps."""
_percent: Final = {millipercent: millipercent for millipercent in range(0, WHOLE_MILLIPERCENT + 1, 1000)}.get
"""`_percent(x, x)` is x; for a whole percentage it is one object that all nodes share, which saves memory."""
_CLASSES: Final = {
    pb.SHARE_CLASS_LATENCY: ShareClass.LATENCY,
    pb.SHARE_CLASS_STANDARD: ShareClass.STANDARD,
    pb.SHARE_CLASS_BATCH: ShareClass.BATCH,
}


def read_report(data: bytes) -> Report:
    """Return what a message, a serialised ReportUsageRequest, says. Raises UsageRefused if any of it is impossible.

    It does not check whether that fits what the node reported before: UsageBook.apply does.
    """
    if len(data) > MESSAGE_MAX:
        raise UsageRefused(f"a message of {len(data)} bytes: at most {MESSAGE_MAX} are taken")
    try:
        message = pb.ReportUsageRequest.FromString(data)
    except DecodeError:
        raise UsageRefused(f"{len(data)} bytes that are no ReportUsageRequest: use the agent of this version") from None
    _check_count("devices", message.devices, DEVICES_MAX)
    _check_count("numbers of devices", message.device_numbers, DEVICES_MAX)
    _check_count("shares", message.shares, SHARES_MAX)
    _check_count("numbers of shares", message.share_numbers, SHARES_MAX)
    _check_count("shares that ended", message.ended_share_ids, SHARES_MAX)
    return Report(
        _node(message.node) if message.HasField("node") else None,
        tuple(map(_device, message.devices)),
        tuple(map(_device_numbers, message.device_numbers)),
        tuple(map(_share, message.shares)),
        tuple(map(_share_numbers, message.share_numbers)),
        tuple(map(_share_id, message.ended_share_ids)),
    )


@lru_cache(_SHARED_MAX)
def _shared(value: Value) -> Value:
    """Return one object for all equal values, to save memory: a cluster has the same model a thousand times."""
    return value


def _node(node: pb.ReportingNode) -> NodeFacts:
    """Return the node that reports. Raises UsageRefused."""
    if not _NODE_NAME.fullmatch(node.name):
        raise UsageRefused(f"{node.name[:NAME_MAX]!r} is no name of a node: give the one that it has in the cluster")
    return NodeFacts(node.name, _text("version", node.version, TEXT_MAX))


def _device(device: pb.ReportedDevice) -> DeviceFacts:
    """Return what seldom changes about a device. Raises UsageRefused."""
    if not device.uuid:
        raise UsageRefused(f"device {device.index} has no UUID: give NVML's")
    if not -1 <= device.numa_node <= _NUMA_MAX:
        raise UsageRefused(f"memory node {device.numa_node} is outside -1 to {_NUMA_MAX}: give -1 when it is not known")
    _check_count("NVLink peers", device.nvlink_peers, DEVICES_MAX)
    return DeviceFacts(
        _device_index(device.index),
        _text("UUID", device.uuid, TEXT_MAX),
        _shared(_text("model", device.model, TEXT_MAX)),
        _at_most("memory", device.memory_total_bytes, _MEMORY_MAX),
        device.healthy,
        _shared(_text("health reason", device.health_reason, TEXT_MAX)),
        device.offered,
        device.numa_node,
        _shared(tuple(sorted({_device_index(peer) for peer in device.nvlink_peers} - {device.index}))),
    )


def _device_numbers(numbers: pb.DeviceNumbers) -> tuple[int, DeviceNumbers]:
    """Return the index of a device, and what is measured on it. Raises UsageRefused."""
    # This runs every second for every node. So all bounds are checked at once, and one by one only for the error.
    memory, second = numbers.memory_used_bytes, numbers.used_1s_millipercent
    minute, quarter, waited = (
        numbers.used_1m_millipercent,
        numbers.used_15m_millipercent,
        numbers.waited_1m_millipercent,
    )
    if memory > _MEMORY_MAX or waited > WAITED_MAX or max(second, minute, quarter) > WHOLE_MILLIPERCENT:
        _at_most("memory in use", memory, _MEMORY_MAX)
        _at_most("time waited", waited, WAITED_MAX)
        _at_most("time used", max(second, minute, quarter), WHOLE_MILLIPERCENT)
    return _device_index(numbers.device_index), DeviceNumbers(
        memory,
        _percent(second, second),
        _percent(minute, minute),
        _percent(quarter, quarter),
        _percent(waited, waited),
    )


def _share(share: pb.ReportedShare) -> tuple[int, ShareTerms]:
    """Return the index of a device, and what a share holds of it. Raises UsageRefused."""
    request, limit = share.request_millipercent, share.limit_millipercent
    least = max(LEAST_MILLIPERCENT, request)
    if 0 < request < LEAST_MILLIPERCENT or not least <= limit <= WHOLE_MILLIPERCENT:
        raise UsageRefused(
            f"share {share.id[:NAME_MAX]!r} with request {request} and limit {limit}: the request is 0 or "
            f"{LEAST_MILLIPERCENT} to {WHOLE_MILLIPERCENT}, the limit from there to {WHOLE_MILLIPERCENT}"
        )
    if share.share_class not in _CLASSES:
        raise UsageRefused(f"class {share.share_class} is unknown here: use latency, standard or batch")
    terms = ShareTerms(
        _share_id(share.id),
        _text("pod UID", share.pod_uid, NAME_MAX),
        _shared(_text("namespace", share.namespace, NAME_MAX)),
        _text("pod", share.pod, NAME_MAX),
        _shared(_text("container", share.container, NAME_MAX)),
        _CLASSES[share.share_class],
        _percent(request, request),
        _percent(limit, limit),
        _at_most("memory limit", share.memory_limit_bytes, _MEMORY_MAX),
        share.paused,
        share.paused and share.yielding,
    )
    return _device_index(share.device_index), terms


def _share_numbers(numbers: pb.ShareNumbers) -> tuple[str, int, int, int]:
    """Return a share's numbers on one device, as in Report.share_numbers. Raises UsageRefused."""
    used, waited = numbers.used_1m_millipercent, numbers.waited_1m_millipercent
    if used > WHOLE_MILLIPERCENT or waited > WHOLE_MILLIPERCENT:
        _at_most("time used or waited", max(used, waited), WHOLE_MILLIPERCENT)
    return (
        _share_id(numbers.share_id),
        _device_index(numbers.device_index),
        _percent(used, used),
        _percent(waited, waited),
    )


def _share_id(text: str) -> str:
    """Return the id of a share. Raises UsageRefused if it cannot be one."""
    if not SHARE_ID.fullmatch(text):
        raise UsageRefused(f"{text[:NAME_MAX]!r} is no id of a share: give the one that its agent drew")
    return text


def _device_index(index: int) -> int:
    """Return the index of a device. Raises UsageRefused if it is too high."""
    if index >= DEVICES_MAX:
        raise UsageRefused(f"device {index} is above {DEVICES_MAX - 1}: number the devices of a node from 0")
    return index


def _text(what: str, text: str, most: int) -> str:
    """Return a text. Raises UsageRefused if it is longer than `most` or unprintable; `what` names it."""
    if len(text) > most or not text.isprintable():
        raise UsageRefused(f"{what} {text[:40]!r} has more than {most} letters, or unprintable ones: mend it")
    return text


def _at_most(what: str, value: int, most: int) -> int:
    """Return a value. Raises UsageRefused if it is above `most`; `what` names it."""
    if value > most:
        raise UsageRefused(f"{what} {value} is above {most}: that is more than there can be")
    return value


def _check_count(what: str, items: Sized, most: int) -> None:
    """Raise UsageRefused for more than `most` items; `what` names them."""
    if len(items) > most:
        raise UsageRefused(f"{len(items)} {what} in one message: at most {most} are taken")
