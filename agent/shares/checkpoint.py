"""Writes and reads the checkpoint: the shares and their accounts as JSON, replaced atomically.

A new agent adopts the shares in it. The shares live on tmpfs and do not survive a reboot: a checkpoint of an earlier
boot is recognised by its boot id and ignored.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.devices.device import DeviceInfo
from sharepod.agent.devices.health import Health
from sharepod.agent.errors import ShareError, WrongState
from sharepod.agent.shares.share import (
    COUNTERS,
    SHARE_ID,
    Copies,
    DeviceTerms,
    DeviceUuid,
    Share,
    ShareClass,
    ShareId,
    ShareStatus,
    Terms,
    Usage,
)
from sharepod.agent.shares.spending import Party, Spent
from sharepod.process import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FORMAT: Final = 1
NAME: Final = "checkpoint.json"
UNREADABLE: Final = f"{NAME}.unreadable"
"""The name that an unreadable checkpoint gets. Either a newer agent wrote it, or an operator should look at it."""
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, ShareError)
"""What reading a part of a checkpoint raises if that is not as this agent writes it."""
_COUNTER_MAX: Final = 2**63
# The names of the fields that are written.
_COPIES: Final = tuple(field.name for field in fields(Copies))
_SHARE: Final = tuple(field.name for field in fields(Share))
_DEVICE: Final = tuple(field.name for field in fields(DeviceInfo))
_PARTY: Final = tuple(field.name for field in fields(Party))
_TERMS: Final = tuple(field.name for field in fields(Terms))


@dataclass(frozen=True, slots=True)
class Record:
    """A share with its account per device, as an earlier agent left it."""

    share: Share
    usages: tuple[Usage, ...]
    live_launches: int
    """Launches of the live processes, on all devices: the next arbiter reads these from the slots again."""
    text: str = ""
    """The record as it stood in the checkpoint: if the share cannot be adopted, it is written back unchanged."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A share that this agent cannot read, because another version wrote it. It is kept for an agent that can."""

    name: str
    """The name of the share's directory; empty if even that cannot be read."""
    cause: str
    text: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What an earlier agent left."""

    records: tuple[Record, ...]
    unread: tuple[Unread, ...]
    driver_version: str
    """The version of the driver that the earlier agent ran on; empty if it did not say."""
    devices: tuple[DeviceInfo, ...] = ()
    """The devices of the earlier agent; none if it did not say."""
    spent: tuple[Spent, ...] = ()
    """What each party had used; none if it did not say."""
    critical: Mapping[DeviceUuid, Health] = field(default_factory=dict)
    """The devices with a critical Xid, and no reset since; none if it did not say."""


NOTHING_LEFT: Final = Checkpoint((), (), "")


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Dumper:
    """Makes the checkpoint's text. A share with the same status as in the last checkpoint is not encoded again."""

    def __init__(self, boot: str, driver_version: str = "") -> None:
        """Take the id of this boot, and the version of the driver; empty: not known."""
        self._head = f'"format": {FORMAT}, "boot_id": {json.dumps(boot)}, "driver": {json.dumps(driver_version)}'
        self._texts: dict[ShareId, tuple[ShareStatus, str]] = {}
        """By share, as of the last checkpoint: its status, and the text of its record."""

    def dump(
        self,
        statuses: Sequence[ShareStatus],
        unread: Sequence[str] = (),
        devices: Sequence[DeviceInfo] = (),
        spent: Sequence[Spent] = (),
        critical: Mapping[DeviceUuid, Health] = MappingProxyType({}),
    ) -> str:
        """Return the text of a checkpoint with these shares.

        `unread`: records that this agent cannot read and keeps unchanged. `critical`: devices with a critical Xid.
        """
        self._texts = {status.share.id: (status, self._text_of(status)) for status in statuses}
        shares = ", ".join([*[text for _, text in self._texts.values()], *unread])
        known = json.dumps([{name: getattr(info, name) for name in _DEVICE} for info in devices])
        sums = json.dumps([asdict(one.party) | {"used_ns": one.used_ns, "shares": one.shares} for one in spent])
        faults = json.dumps([{"device": uuid, "fault": one.fault, "down": one.down} for uuid, one in critical.items()])
        return f'{{{self._head}, "devices": {known}, "critical": {faults}, "spent": {sums}, "shares": [{shares}]}}'

    def _text_of(self, status: ShareStatus) -> str:
        """Return the text of a share's record: the last one again, if its status has not changed since."""
        known = self._texts.get(status.share.id)
        if known is not None and known[0] == status:
            return known[1]
        record = {
            "share": _fields(status.share),
            "live_launches": sum(process.launches for process in status.processes),
            "usages": [_counters(held.usage) for held in status.usages],
        }
        return json.dumps(record)


def _counters(usage: Usage) -> dict[str, Any]:
    """Return the counters of an account as they are written."""
    gone = {name: getattr(usage.gone_copies, name) for name in _COPIES}
    return {**{name: getattr(usage, name) for name in COUNTERS}, "gone_copies": gone}


def _fields(share: Share) -> dict[str, Any]:
    """Return a share's fields as they are written. `dataclasses.asdict` copies deeply, at twenty times the cost."""
    devices = [
        {"device": held.device, "terms": {name: getattr(held.terms, name) for name in _TERMS}} for held in share.devices
    ]
    found = {**{name: getattr(share, name) for name in _SHARE}, "devices": devices}
    for name in ("yielding", "owner", "gang", "ownerless"):  # an earlier agent does not know these: absent if not set
        if not found[name]:
            del found[name]
    return found


def parse(text: str, boot: str) -> Checkpoint:
    """Read the text of a checkpoint, each share by itself; one of another boot than `boot` counts as empty.

    Raises WrongState if it is unreadable.
    """
    try:
        loaded: Any = json.loads(text)
        cause = "" if loaded["format"] == FORMAT else f"format {loaded['format']} is not {FORMAT}"
        if not cause:
            is_ours = loaded["boot_id"] == boot
            records, unread = _read_shares(loaded["shares"] if is_ours else [])
            devices = _devices(loaded.get("devices", ()) if is_ours else ())
            spent = _spent(loaded.get("spent", ()) if is_ours else ())
            critical = _critical(loaded.get("critical", ()) if is_ours else ())
            return Checkpoint(records, unread, str(loaded.get("driver", "")), devices, spent, critical)
    except _MALFORMED as error:
        cause = repr(error)
    raise _unreadable(cause)


def _unreadable(cause: str) -> WrongState:
    """Return the error for a checkpoint that cannot be read."""
    return WrongState(
        f"checkpoint is unreadable ({cause}): names, labels and owners of its shares are lost, their terms are not: "
        f"it is kept as {UNREADABLE}"
    )


def _read_shares(items: Iterable[Mapping[str, Any]]) -> tuple[tuple[Record, ...], tuple[Unread, ...]]:
    """Read each share by itself: return those that can be read, and the others as they stand, with the cause."""
    records: dict[ShareId, Record] = {}
    unread: list[Unread] = []
    for item in items:
        try:
            record = _record(item)
            if record.share.id in records:
                raise ValueError("its id is another share's")
            records[record.share.id] = record
        except _MALFORMED as error:
            unread.append(Unread(_name(item), repr(error), json.dumps(item)))
    return tuple(records.values()), tuple(unread)


def _name(item: Mapping[str, Any]) -> str:
    """Return the name of the share's directory, which is its id; empty if the item has no proper id."""
    try:
        name = str(item["share"]["id"])
    except _MALFORMED:
        return ""
    return name if SHARE_ID.fullmatch(name) else ""


def _record(item: Mapping[str, Any]) -> Record:
    """Read a share. Fields that only a newer agent knows are left out. Raises one of _MALFORMED."""
    share = {name: item["share"][name] for name in _SHARE if name in item["share"]}
    devices = tuple(
        DeviceTerms(DeviceUuid(on["device"]), Terms(**{key: on["terms"][key] for key in _TERMS if key in on["terms"]}))
        for on in share.pop("devices")
    )
    share["id"] = ShareId(share["id"])
    share["share_class"] = ShareClass(share["share_class"])
    usages = tuple(_usage(usage) for usage in item["usages"])
    if len(usages) != len(devices):
        raise ValueError("accounts and devices differ in number")
    # Share does not check types. A wrong one of these two would fail later, where they are used.
    if not isinstance(share["directory"], str):
        raise TypeError("its directory is no path")
    if not isinstance(share.get("owner", ""), str):
        raise TypeError("its owner is no digest")
    return Record(Share(devices=devices, **share), usages, int(item["live_launches"]), text=json.dumps(item))


def _spent(items: Sequence[Mapping[str, Any]]) -> tuple[Spent, ...]:
    """Read what parties had used; nothing if one is malformed."""
    try:
        parties = [Party(**{name: str(one[name]) for name in _PARTY}) for one in items]
        sums = [(int(one["used_ns"]), int(one["shares"])) for one in items]
    except _MALFORMED:
        return ()
    return tuple(Spent(party, used_ns, shares) for party, (used_ns, shares) in zip(parties, sums, strict=True))


def _critical(items: Iterable[Mapping[str, Any]]) -> dict[DeviceUuid, Health]:
    """Read the devices with a critical Xid; none if one is malformed."""
    try:
        return {
            DeviceUuid(str(one["device"])): Health(fault=str(one["fault"]), fatal=True, down=one["down"] is True)
            for one in items
        }
    except _MALFORMED:
        return {}


def _devices(items: Iterable[Mapping[str, Any]]) -> tuple[DeviceInfo, ...]:
    """Read the devices; none if one is malformed: a new agent lists the devices itself, and only misses lost ones."""
    try:
        found = [{name: item[name] for name in _DEVICE if name in item} for item in items]
        return tuple(DeviceInfo(**one | {"nvlink_peers": tuple(one.get("nvlink_peers", ()))}) for one in found)
    except _MALFORMED:
        return ()


def _usage(item: Mapping[str, Any]) -> Usage:
    """Read the account of a share on one device, which an older agent may have written. Raises one of _MALFORMED."""
    known = {"charged_ns": item["used_ns"], **item}  # older agents did not tell charged from used time
    counters: dict[str, Any] = {name: int(known.get(name, 0)) for name in COUNTERS}
    if not all(0 <= value < _COUNTER_MAX for value in counters.values()):
        raise ValueError("a counter is out of range")
    copied = known.get("gone_copies", {})  # older agents did not count them
    return Usage(**counters, gone_copies=Copies(**{name: int(copied[name]) for name in _COPIES if name in copied}))


def write(directory: Path, text: str) -> None:
    """Replace the checkpoint in `directory`. Raises OSError."""
    files.replace(directory / NAME, text, 0o600)


def read(directory: Path) -> str | None:
    """Return the checkpoint's text, None when there is none. Raises WrongState when it cannot be read."""
    try:
        return (directory / NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(repr(error)) from None


def set_aside(directory: Path) -> None:
    """Rename an unreadable checkpoint, so that the next one does not replace it. It stays until there is no share."""
    if (directory / NAME).is_file():
        with contextlib.suppress(OSError):
            (directory / NAME).replace(directory / UNREADABLE)


def remove_unreadable(directory: Path) -> None:
    """Remove a checkpoint that was set aside."""
    (directory / UNREADABLE).unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Remove the checkpoint, and a half-written one that a crash left."""
    (directory / NAME).unlink(missing_ok=True)
    (directory / f"{NAME}{files.UNFINISHED}").unlink(missing_ok=True)
