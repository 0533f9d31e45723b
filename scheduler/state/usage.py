"""Keeps what the agents have reported: devices, the shares on them, what these really use. Pure: `now_s` is given.

A report is complete, or says only what has changed since the one before; it counts whole or not at all. The values are
frozen and replaced whole, so that a value that other code holds never changes. What changes rarely (facts, terms) is
apart from what changes every second (numbers). So reports of ten thousand nodes a second make few new objects, and
placement can skip a node on which only the numbers have changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.errors import UsageRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sharepod.agent.shares.share import ShareClass

SILENT_S: Final = 30.0
"""Three heartbeats. A node that is silent for longer is avoided."""
FORGOTTEN_S: Final = 3600.0
"""A node that is silent for longer is forgotten."""
DEVICES_MAX: Final = 128
"""Devices of a node: 16 GPUs in seven instances each are 112."""
SHARES_MAX: Final = 4096
"""Shares of a node; a share on several devices counts once for each."""


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """What a share holds of one device, and the pod that it is for. The texts are empty if it is for no pod."""

    id: str
    pod_uid: str
    namespace: str
    pod: str
    container: str
    share_class: ShareClass
    request_millipercent: int
    limit_millipercent: int
    memory_limit_bytes: int
    """0: no cap."""
    paused: bool
    yielding: bool = False
    """It is paused to make room: its time is not promised to it."""


@dataclass(frozen=True, slots=True)
class ShareUse:
    """A share on one device, with the time that it used and waited in the last minute, in 1/1000 % of the minute."""

    terms: ShareTerms
    used_1m_millipercent: int = 0
    waited_1m_millipercent: int = 0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What seldom changes about a device."""

    index: int
    """Its number on the node."""
    uuid: str
    model: str
    memory_total_bytes: int
    """0: not known."""
    healthy: bool
    health_reason: str
    offered: bool
    """The device plugin gives it out; False until the device plugin has said so."""
    numa_node: int
    """-1: not known."""
    nvlink_peers: tuple[int, ...]
    """Indices of the devices that NVLink joins it with."""


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """What is measured on a device: memory in use by all processes; time that shares used, in 1/1000 %."""

    memory_used_bytes: int = 0
    used_1s_millipercent: int = 0
    used_1m_millipercent: int = 0
    used_15m_millipercent: int = 0
    waited_1m_millipercent: int = 0
    """Contention: the time that its shares waited, added up; above 100 % when several wait at once."""


NO_NUMBERS: Final = DeviceNumbers()


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device, what it does, and the shares on it."""

    facts: DeviceFacts
    numbers: DeviceNumbers = NO_NUMBERS
    shares: tuple[ShareUse, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The node that reports, and the version of its agent."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node as its agent last reported it; its devices are in the order of their indices."""

    facts: NodeFacts
    devices: tuple[DeviceUse, ...]

    def device(self, index: int) -> DeviceUse | None:
        """Return the device with the number `index` on the node; None: the node has none."""
        position = _position(self.devices, index)
        return self.devices[position] if position >= 0 else None

    def pod_uids(self) -> set[str]:
        """Return the uids of the pods that hold shares there; with "" if a share is for no pod."""
        return {share.terms.pod_uid for device in self.devices for share in device.shares}


@dataclass(frozen=True, slots=True)
class Report:
    """One message of an agent, with all values checked. With `node` it is complete, else it tells what has changed."""

    node: NodeFacts | None = None
    devices: tuple[DeviceFacts, ...] = ()
    device_numbers: tuple[tuple[int, DeviceNumbers], ...] = ()
    """Index and numbers."""
    shares: tuple[tuple[int, ShareTerms], ...] = ()
    """Index of the device, and terms."""
    share_numbers: tuple[tuple[str, int, int, int], ...] = ()
    """Id, index of the device, time used and waited over the last minute."""
    ended_shares: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Tell whether it says only that the agent is there."""
        return not (self.device_numbers or self.share_numbers or self.changes_facts)

    @property
    def changes_facts(self) -> bool:
        """Tell whether it is about more than numbers."""
        return bool(self.node or self.devices or self.shares or self.ended_shares)


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of the nodes about which something is new."""

    facts: frozenset[str]
    """Devices, health, shares, terms; or the node came, fell silent, is back, is forgotten."""
    numbers: frozenset[str]
    """Only what they use."""


@dataclass(slots=True)
class _Entry:
    """A node as it last reported, and when it did so."""

    node: NodeUse
    heard_s: float
    silent: bool = False
    """`age` has found it silent, and it has not reported since."""


class UsageBook:
    """The nodes by name. Invariant: a node is what its last complete report and all changes after it say."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._facts: set[str] = set()
        self._numbers: set[str] = set()
        """Names of the nodes with changed facts, and with changed numbers, since the last call of `take_changes`."""

    def __len__(self) -> int:
        """Return how many nodes are known, silent ones too."""
        return len(self._entries)

    def names(self) -> tuple[str, ...]:
        """Return the names of the known nodes."""
        return tuple(self._entries)

    def node(self, name: str) -> NodeUse | None:
        """Return what a node last reported, however long ago; None: it has reported nothing, or is forgotten."""
        entry = self._entries.get(name)
        return entry.node if entry else None

    def silent_s(self, name: str, now_s: float) -> float | None:
        """Return for how many seconds a node has reported nothing; None: it is not known."""
        entry = self._entries.get(name)
        return max(0.0, now_s - entry.heard_s) if entry else None

    def is_fresh(self, name: str, now_s: float) -> bool:
        """Tell whether a node is known and not silent."""
        silent_s = self.silent_s(name, now_s)
        return silent_s is not None and silent_s <= SILENT_S

    def apply(self, name: str, report: Report, now_s: float) -> None:
        """Take a report of node `name`, as `read_report` has checked it; the node counts as heard now.

        Raises UsageRefused, and changes nothing, if the report does not fit what is known of the node.
        """
        entry = self._entries.get(name)
        if report.node is not None:
            if report.node.name != name:
                raise UsageRefused(f"the report is of node {report.node.name}, the stream of {name}: connect again")
            node = _complete(report.node, report)
            if entry is None:
                self._entries[name] = _Entry(node, now_s)
            else:
                entry.node = node
            self._facts.add(name)
        elif entry is None:
            raise UsageRefused("changes of a node that has told nothing yet: begin with a complete message")
        elif not report.is_empty:
            entry.node = NodeUse(entry.node.facts, _changed(entry.node.devices, report))
            (self._facts if report.changes_facts else self._numbers).add(name)
        self._hear(name, now_s)

    def age(self, now_s: float) -> None:
        """Mark the nodes that have fallen silent, forget those silent for FORGOTTEN_S; called about every second."""
        for name, entry in list(self._entries.items()):
            silent_s = now_s - entry.heard_s
            if silent_s > FORGOTTEN_S:
                del self._entries[name]
                self._facts.add(name)
            elif silent_s > SILENT_S and not entry.silent:
                entry.silent = True
                self._facts.add(name)

    def forget(self, name: str) -> None:
        """Drop a node that has left the cluster. An unknown name is no error."""
        if self._entries.pop(name, None):
            self._facts.add(name)

    def take_changes(self) -> Changes:
        """Return the names of the nodes that have changed since the last call; no name is in both sets."""
        changes = Changes(frozenset(self._facts), frozenset(self._numbers - self._facts))
        self._facts.clear()
        self._numbers.clear()
        return changes

    def validate(self) -> None:
        """Assert the invariants (for tests)."""
        for name, entry in self._entries.items():
            indices = [device.facts.index for device in entry.node.devices]
            if entry.node.facts.name != name or indices != sorted(set(indices)):
                raise AssertionError(f"{name}: {entry.node}")
            for device in entry.node.devices:
                ids = [share.terms.id for share in device.shares]
                if len(ids) != len(set(ids)):
                    raise AssertionError(f"{name}: shares {ids} on device {device.facts.index}")

    def _hear(self, name: str, now_s: float) -> None:
        """Note that a node has reported now; if it was silent, its facts count as changed."""
        entry = self._entries[name]
        entry.heard_s = now_s
        if entry.silent:
            entry.silent = False
            self._facts.add(name)


def _complete(facts: NodeFacts, report: Report) -> NodeUse:
    """Return a node as a complete report tells it, whatever was known before. Raises UsageRefused."""
    if report.ended_shares:
        raise UsageRefused("a complete report has shares that ended: tell only those that are there")
    return NodeUse(facts, _changed((), report))


def _changed(before: tuple[DeviceUse, ...], report: Report) -> tuple[DeviceUse, ...]:
    """Return the devices as they are after a report; `before`: as they were. Raises UsageRefused if it does not fit.

    This runs every second for every node, so only what the report names is made anew.
    """
    devices = list(before)
    if report.devices:
        devices = _with_facts(devices, report.devices)
    for index, numbers in report.device_numbers:
        position = _position_of_known(devices, index)
        devices[position] = DeviceUse(devices[position].facts, numbers, devices[position].shares)
    if report.ended_shares:
        ended = frozenset(report.ended_shares)
        devices = [_without(device, ended) for device in devices]
    if report.shares or report.share_numbers:
        _change_shares(devices, report)
    return tuple(devices)


def _with_facts(devices: Iterable[DeviceUse], told: Iterable[DeviceFacts]) -> list[DeviceUse]:
    """Return the devices with the facts in `told`, which may have new devices, in the order of their indices.

    Raises UsageRefused for too many devices, and for two with one UUID.
    """
    known = {device.facts.index: device for device in devices}
    for facts in told:
        old = known.get(facts.index)
        known[facts.index] = replace(old, facts=facts) if old else DeviceUse(facts)
    if len(known) > DEVICES_MAX:
        raise UsageRefused(f"a node with more than {DEVICES_MAX} devices: tell fewer")
    if len({device.facts.uuid for device in known.values()}) != len(known):
        raise UsageRefused("two devices of a node with one UUID: tell each once")
    return [known[index] for index in sorted(known)]


def _change_shares(devices: list[DeviceUse], report: Report) -> None:
    """Put a report's terms and numbers of shares into `devices`, which is changed.

    Raises UsageRefused for a device or a share that is not known, and for too many shares.
    """
    copies: dict[int, dict[str, ShareUse]] = {}
    for index, terms in report.shares:
        shares = _shares_to_edit(copies, devices, index)
        old = shares.get(terms.id)
        shares[terms.id] = replace(old, terms=terms) if old else ShareUse(terms)
    for share, index, used, waited in report.share_numbers:
        shares = _shares_to_edit(copies, devices, index)
        old = shares.get(share)
        if old is None:
            raise UsageRefused(f"numbers of share {share}, which is not on device {index}: tell its terms first")
        shares[share] = ShareUse(old.terms, used, waited)
    for position, shares in copies.items():
        devices[position] = DeviceUse(devices[position].facts, devices[position].numbers, tuple(shares.values()))
    if report.shares and sum(len(device.shares) for device in devices) > SHARES_MAX:
        raise UsageRefused(f"a node with more than {SHARES_MAX} shares: tell fewer")


def _shares_to_edit(
    copies: dict[int, dict[str, ShareUse]], devices: list[DeviceUse], index: int
) -> dict[str, ShareUse]:
    """Return a copy of the shares of the device with the number `index`, by id, for the caller to change.

    `copies`: by a device's position, the copies made so far, so that each device is copied once. Raises UsageRefused if
    there is no such device.
    """
    position = _position_of_known(devices, index)
    shares = copies.get(position)
    if shares is None:
        shares = copies[position] = {share.terms.id: share for share in devices[position].shares}
    return shares


def _without(device: DeviceUse, ended: frozenset[str]) -> DeviceUse:
    """Return a device without the shares that have ended; the same value if none of them was there."""
    left = tuple(share for share in device.shares if share.terms.id not in ended)
    return device if len(left) == len(device.shares) else replace(device, shares=left)


def _position(devices: Sequence[DeviceUse], index: int) -> int:
    """Return the position in `devices` of the device with the number `index`; -1: there is none."""
    if index < len(devices) and devices[index].facts.index == index:  # nearly always: they are numbered from 0
        return index
    return next((position for position, device in enumerate(devices) if device.facts.index == index), -1)


def _position_of_known(devices: Sequence[DeviceUse], index: int) -> int:
    """Return the position in `devices` of the device with the number `index`. Raises UsageRefused if there is none."""
    position = _position(devices, index)
    if position < 0:
        raise UsageRefused(f"numbers or shares of device {index}, which the node does not have: tell the device first")
    return position
