"""What the scheduler is told of the node: a picture of its devices and shares, and what differs between two of them.

Pure. Numbers move only when they have moved by a step, so that noise is no change and an idle node has nothing to tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from sharepod.agent.ledger import MINUTE_NS, QUARTER_NS, SECOND_NS, DeviceAccount
from sharepod.agent.share import WHOLE_MILLIPERCENT, ShareClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod.agent.device import DeviceStatus, NodeStatus
    from sharepod.agent.share import DeviceUsage, DeviceUuid, Share

STEP_MILLIPERCENT: Final = 1000
MEMORY_STEPS: Final = 1000
"""Parts of a device's memory: one of them is a step."""
MEMORY_STEP_BYTES: Final = 2**26
"""Of a device that does not say how much it has."""
WAITED_MAX: Final = 1000 * WHOLE_MILLIPERCENT
TEXT_MAX: Final = 253
"""Letters of any text that is told."""

ShareKey = tuple[str, int]
"""Id of the share, index of the device."""
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Device:
    """What seldom changes about a device."""

    index: int
    uuid: str
    model: str
    memory_total_bytes: int
    healthy: bool
    health_reason: str
    offered: bool
    numa_node: int
    nvlink_peers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """What changes all the time about a device."""

    memory_used_bytes: int = 0
    used_1s_millipercent: int = 0
    used_1m_millipercent: int = 0
    used_15m_millipercent: int = 0
    waited_1m_millipercent: int = 0


@dataclass(frozen=True, slots=True)
class HeldShare:
    """What seldom changes about a share on one device."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    share_class: ShareClass
    request_millipercent: int
    limit_millipercent: int
    memory_limit_bytes: int
    paused: bool
    yielding: bool


@dataclass(frozen=True, slots=True)
class ShareNumbers:
    """What changes all the time about a share on one device."""

    used_1m_millipercent: int = 0
    waited_1m_millipercent: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """The node as it is told."""

    devices: Mapping[int, Device] = field(default_factory=dict)
    device_numbers: Mapping[int, DeviceNumbers] = field(default_factory=dict)
    shares: Mapping[ShareKey, HeldShare] = field(default_factory=dict)
    share_numbers: Mapping[ShareKey, ShareNumbers] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """What is new in a picture; `ended` are the ids of shares that have left a device, or the node."""

    devices: Mapping[int, Device]
    device_numbers: Mapping[int, DeviceNumbers]
    shares: Mapping[ShareKey, HeldShare]
    share_numbers: Mapping[ShareKey, ShareNumbers]
    ended: tuple[str, ...]

    def __bool__(self) -> bool:
        """Tell whether there is anything to tell."""
        return bool(self.devices or self.device_numbers or self.shares or self.share_numbers or self.ended)


def difference(before: Picture | None, after: Picture) -> Difference | None:
    """Return what has changed; None: all is to be told anew."""
    if before is None or before.devices.keys() - after.devices.keys():
        return None
    # A share that is released and registered again with its id may be on another device: it ends, and is told anew.
    ended = {share for share, _ in before.shares.keys() - after.shares.keys()}
    shares = {key: value for key, value in before.shares.items() if key[0] not in ended}
    share_numbers = {key: value for key, value in before.share_numbers.items() if key[0] not in ended}
    return Difference(
        _new(before.devices, after.devices),
        _new(before.device_numbers, after.device_numbers),
        _new(shares, after.shares),
        _new(share_numbers, after.share_numbers),
        tuple(sorted(ended)),
    )


def _new(before: Mapping[Key, Value], after: Mapping[Key, Value]) -> dict[Key, Value]:
    return {key: value for key, value in after.items() if before.get(key) != value}


class Painter:
    """Makes the pictures of one node, one after the other."""

    def __init__(self) -> None:
        self._accounts: dict[DeviceUuid, DeviceAccount] = {}
        self._last = Picture()

    def paint(self, status: NodeStatus) -> Picture:
        """Return the node as of `status`, of which each is later than the one before; every second or so."""
        # A plugin that does not tell what it gives out gives out nothing.
        offered = frozenset(status.plugin.offer.device_uuids) if status.plugin else frozenset()
        indices = {device.info.uuid: device.info.index for device in status.devices}
        shares: dict[ShareKey, HeldShare] = {}
        share_numbers: dict[ShareKey, ShareNumbers] = {}
        used_ns: dict[DeviceUuid, dict[str, int]] = {uuid: {} for uuid in indices}
        waited: dict[DeviceUuid, int] = dict.fromkeys(indices, 0)
        for held in status.shares:
            for place, usage in enumerate(held.usages):
                key = (held.share.id, indices[usage.device])
                shares[key] = _held(held.share, place)
                share_numbers[key] = self._share(key, usage)
                used_ns[usage.device][held.share.id] = usage.usage.used_ns
                waited[usage.device] += usage.waited_1m_millipercent
        devices: dict[int, Device] = {}
        device_numbers: dict[int, DeviceNumbers] = {}
        for device in status.devices:
            uuid, index = device.info.uuid, device.info.index
            self._accounts.setdefault(uuid, DeviceAccount()).add(status.now_ns, used_ns[uuid])
            devices[index] = _device(device, offered=uuid in offered)
            device_numbers[index] = self._numbers(device, status.now_ns, waited[uuid])
        self._last = Picture(devices, device_numbers, shares, share_numbers)
        return self._last

    def _share(self, key: ShareKey, usage: DeviceUsage) -> ShareNumbers:
        last = self._last.share_numbers.get(key, ShareNumbers())
        return ShareNumbers(
            settled(last.used_1m_millipercent, usage.used_1m_millipercent, STEP_MILLIPERCENT),
            settled(last.waited_1m_millipercent, usage.waited_1m_millipercent, STEP_MILLIPERCENT),
        )

    def _numbers(self, device: DeviceStatus, now_ns: int, waited: int) -> DeviceNumbers:
        last = self._last.device_numbers.get(device.info.index, DeviceNumbers())
        account = self._accounts[device.info.uuid]
        memory_step = device.info.memory_total_bytes // MEMORY_STEPS or MEMORY_STEP_BYTES

        def rate(before: int, window_ns: int) -> int:
            return settled(before, account.rate_millipercent(now_ns, window_ns), STEP_MILLIPERCENT)

        return DeviceNumbers(
            settled(last.memory_used_bytes, device.memory_used_bytes, memory_step),
            rate(last.used_1s_millipercent, SECOND_NS),
            rate(last.used_1m_millipercent, MINUTE_NS),
            rate(last.used_15m_millipercent, QUARTER_NS),
            settled(last.waited_1m_millipercent, min(waited, WAITED_MAX), STEP_MILLIPERCENT),
        )


def settled(told: int, value: int, step: int) -> int:
    """Return what to tell of a value, in whole steps: what was told for as long as it is less than a step away."""
    return told if value and abs(value - told) < step else (value + step // 2) // step * step


def _device(device: DeviceStatus, *, offered: bool) -> Device:
    info = device.info
    return Device(
        info.index,
        _text(info.uuid),
        _text(info.name),
        info.memory_total_bytes,
        device.healthy,
        _text(device.health_reason),
        offered,
        info.numa_node,
        info.nvlink_peers,
    )


def _held(share: Share, place: int) -> HeldShare:
    terms = share.devices[place].terms
    pod_uid, namespace, pod, container = (
        _text(share.labels.get(label, "")) for label in ("pod_uid", "namespace", "pod", "container")
    )
    return HeldShare(
        pod_uid,
        namespace,
        pod,
        container,
        share.share_class,
        terms.request_millipercent,
        terms.limit_millipercent,
        terms.memory_limit_bytes,
        share.paused,
        share.yielding,
    )


def _text(text: str) -> str:
    """Return a text that the scheduler takes, whatever the driver or a label has in it."""
    if len(text) <= TEXT_MAX and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text[:TEXT_MAX])
