"""Snapshots of the node for the scheduler: its devices and shares, and the difference between two snapshots. Pure.

Snapshots and differences have the type of the message that is sent; a snapshot is a complete message without the node's
name. A number changes only when it has moved by a whole step. So noise is no change, and an idle node has nothing to
send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from sharepod.agent.shares.ledger import MINUTE_NS, QUARTER_NS, SECOND_NS, DeviceAccount
from sharepod.agent.shares.share import WHOLE_MILLIPERCENT
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

    from sharepod.agent.devices.device import DeviceStatus, NodeStatus
    from sharepod.agent.shares.share import DeviceUsage, DeviceUuid, Share

STEP_MILLIPERCENT: Final = 1000
MEMORY_STEPS: Final = 1000
"""A step of memory is the device's memory divided by this."""
MEMORY_STEP_BYTES: Final = 2**26
"""The step of memory on a device that does not report its size, bytes."""
WAITED_MAX: Final = 1000 * WHOLE_MILLIPERCENT
TEXT_MAX: Final = 253
"""The longest text that is sent, characters."""

Snapshot = pb.ReportUsageRequest
Part = TypeVar("Part", bound="Message")


def message(node: pb.ReportingNode, before: Snapshot | None, after: Snapshot) -> Snapshot:
    """Return the difference from `before` to `after`; if `before` is None, the whole snapshot with the node's name.

    It is also the whole snapshot if a device is no longer there: a difference cannot say that.
    """
    indices = {device.index for device in after.devices}
    if before is None or any(device.index not in indices for device in before.devices):
        everything = Snapshot(node=node)
        everything.MergeFrom(after)
        return everything
    # A share that is released and registered again with its id may be on another device: send its end, then all of it.
    places = {(share.id, share.device_index) for share in after.shares}
    ended = {share.id for share in before.shares if (share.id, share.device_index) not in places}
    return Snapshot(
        devices=_new(before.devices, after.devices),
        device_numbers=_new(before.device_numbers, after.device_numbers),
        shares=_new((share for share in before.shares if share.id not in ended), after.shares),
        share_numbers=_new((one for one in before.share_numbers if one.share_id not in ended), after.share_numbers),
        ended_share_ids=sorted(ended),
    )


def _new(before: Iterable[Part], after: Iterable[Part]) -> list[Part]:
    """Return the parts of `after` that are not in `before` with the same content: they are new or have changed."""
    known = {part.SerializeToString() for part in before}
    return [part for part in after if part.SerializeToString() not in known]


class SnapshotBuilder:
    """Makes the snapshots of one node, one after the other."""

    def __init__(self) -> None:
        self._accounts: dict[DeviceUuid, DeviceAccount] = {}
        self._devices: dict[int, pb.DeviceNumbers] = {}
        """The numbers that were last sent, by index of the device."""
        self._shares: dict[tuple[str, int], pb.ShareNumbers] = {}
        """The numbers that were last sent, by id of the share and index of the device."""

    def build(self, status: NodeStatus) -> Snapshot:
        """Return the snapshot of `status`. Called about every second, with a later status each time."""
        # A plugin that does not report its resources offers none.
        offered = frozenset(status.plugin.offer.device_uuids) if status.plugin else frozenset()
        indices = {device.info.uuid: device.info.index for device in status.devices}
        used_ns: dict[DeviceUuid, dict[str, int]] = {uuid: {} for uuid in indices}
        waited: dict[DeviceUuid, int] = dict.fromkeys(indices, 0)
        shares: list[pb.ReportedShare] = []
        share_numbers: dict[tuple[str, int], pb.ShareNumbers] = {}
        for held in status.shares:
            for place, usage in enumerate(held.usages):
                index = indices[usage.device]
                shares.append(_share(held.share, place, index))
                share_numbers[held.share.id, index] = self._share_numbers(held.share.id, index, usage)
                used_ns[usage.device][held.share.id] = usage.usage.used_ns
                waited[usage.device] += usage.waited_1m_millipercent
        device_numbers: dict[int, pb.DeviceNumbers] = {}
        for device in status.devices:
            uuid = device.info.uuid
            self._accounts.setdefault(uuid, DeviceAccount()).add(status.now_ns, used_ns[uuid])
            device_numbers[device.info.index] = self._device_numbers(device, status.now_ns, waited[uuid])
        self._devices, self._shares = device_numbers, share_numbers
        return Snapshot(
            devices=[_device(device, offered=device.info.uuid in offered) for device in status.devices],
            device_numbers=device_numbers.values(),
            shares=shares,
            share_numbers=share_numbers.values(),
        )

    def _share_numbers(self, share: str, index: int, usage: DeviceUsage) -> pb.ShareNumbers:
        """Return the numbers of a share on a device; each that has moved by less than a step stays as last sent."""
        last = self._shares.get((share, index), pb.ShareNumbers())
        return pb.ShareNumbers(
            share_id=share,
            device_index=index,
            used_1m_millipercent=stepped(last.used_1m_millipercent, usage.used_1m_millipercent, STEP_MILLIPERCENT),
            waited_1m_millipercent=stepped(
                last.waited_1m_millipercent, usage.waited_1m_millipercent, STEP_MILLIPERCENT
            ),
        )

    def _device_numbers(self, device: DeviceStatus, now_ns: int, waited: int) -> pb.DeviceNumbers:
        """Return the numbers of a device; each that has moved by less than a step stays as last sent.

        `waited`: the sum of what its shares waited over the last minute, millipercent.
        """
        last = self._devices.get(device.info.index, pb.DeviceNumbers())
        account = self._accounts[device.info.uuid]
        memory_step = device.info.memory_total_bytes // MEMORY_STEPS or MEMORY_STEP_BYTES

        def rate(before: int, window_ns: int) -> int:
            """Return the rate over a window, in steps; `before`: as last sent."""
            return stepped(before, account.rate_millipercent(now_ns, window_ns), STEP_MILLIPERCENT)

        return pb.DeviceNumbers(
            device_index=device.info.index,
            memory_used_bytes=stepped(last.memory_used_bytes, device.memory_used_bytes, memory_step),
            used_1s_millipercent=rate(last.used_1s_millipercent, SECOND_NS),
            used_1m_millipercent=rate(last.used_1m_millipercent, MINUTE_NS),
            used_15m_millipercent=rate(last.used_15m_millipercent, QUARTER_NS),
            waited_1m_millipercent=stepped(last.waited_1m_millipercent, min(waited, WAITED_MAX), STEP_MILLIPERCENT),
        )


def stepped(told: int, value: int, step: int) -> int:
    """Return `value` rounded to whole steps; but `told`, which was sent last, if that is less than a step away.

    A value of 0 is always 0, so that an idle device is shown as idle.
    """
    return told if value and abs(value - told) < step else (value + step // 2) // step * step


def _device(device: DeviceStatus, *, offered: bool) -> pb.ReportedDevice:
    """Return a device without its numbers, which are sent apart; `offered`: the device plugin gives it out."""
    info = device.info
    return pb.ReportedDevice(
        index=info.index,
        uuid=_text(info.uuid),
        model=_text(info.name),
        memory_total_bytes=info.memory_total_bytes,
        healthy=device.healthy,
        health_reason=_text(device.health_reason),
        offered=offered,
        numa_node=info.numa_node,
        nvlink_peers=info.nvlink_peers,
    )


def _share(share: Share, place: int, index: int) -> pb.ReportedShare:
    """Return what the share holds of its `place`-th device, which has that index on the node."""
    terms = share.devices[place].terms
    return pb.ReportedShare(
        id=share.id,
        device_index=index,
        pod_uid=_text(share.labels.get("pod_uid", "")),
        namespace=_text(share.labels.get("namespace", "")),
        pod=_text(share.labels.get("pod", "")),
        container=_text(share.labels.get("container", "")),
        share_class=pb.ShareClass.Value(f"SHARE_CLASS_{share.share_class.name}"),
        request_millipercent=terms.request_millipercent,
        limit_millipercent=terms.limit_millipercent,
        memory_limit_bytes=terms.memory_limit_bytes,
        paused=share.paused,
        yielding=share.yielding,
    )


def _text(text: str) -> str:
    """Return the text in a form that the scheduler accepts, whatever a driver or a label has put into it."""
    if len(text) <= TEXT_MAX and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text[:TEXT_MAX])
