"""Writes and reads the checkpoint: the shares and their accounts as JSON, replaced atomically.

It is what a new agent adopts from. The shares live on tmpfs and do not survive a reboot; a checkpoint of an earlier
boot is recognised by its boot id and ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.errors import ShareError, WrongState
from sharepod.agent.share import (
    COUNTERS,
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
from sharepod.process import files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT: Final = 1
NAME: Final = "checkpoint.json"
_COPIES: Final = tuple(field.name for field in fields(Copies))
_SHARE: Final = tuple(field.name for field in fields(Share))
_TERMS: Final = tuple(field.name for field in fields(Terms))


@dataclass(frozen=True, slots=True)
class Record:
    """A share with its account per device, as an earlier agent left it."""

    share: Share
    usages: tuple[Usage, ...]
    live_launches: int
    """Launches, on all devices, of the processes that lived then: the next arbiter reads them from the slots again."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What an earlier agent left."""

    records: tuple[Record, ...]
    driver_version: str
    """Of the driver that it ran on; empty when it did not say."""


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Dumper:
    """Makes the checkpoint's text. A share that has not been read anew since the last one is not encoded again."""

    def __init__(self, boot: str, driver_version: str = "") -> None:
        self._head = f'"format": {FORMAT}, "boot_id": {json.dumps(boot)}, "driver": {json.dumps(driver_version)}'
        self._dumped: dict[ShareId, tuple[ShareStatus, str]] = {}

    def dump(self, statuses: Sequence[ShareStatus]) -> str:
        """Return the text."""
        self._dumped = {status.share.id: (status, self._dump(status)) for status in statuses}
        shares = ", ".join([text for _, text in self._dumped.values()])
        return f'{{{self._head}, "shares": [{shares}]}}'

    def _dump(self, status: ShareStatus) -> str:
        known = self._dumped.get(status.share.id)
        if known is not None and known[0] is status:
            return known[1]
        record = {
            "share": _fields(status.share),
            "live_launches": sum(process.launches for process in status.processes),
            "usages": [_counters(held.usage) for held in status.usages],
        }
        return json.dumps(record)


def _counters(usage: Usage) -> dict[str, Any]:
    gone = {name: getattr(usage.gone_copies, name) for name in _COPIES}
    return {**{name: getattr(usage, name) for name in COUNTERS}, "gone_copies": gone}


def _fields(share: Share) -> dict[str, Any]:
    """Return what `dataclasses.asdict` would; that copies deeply, at twenty times the cost."""
    devices = [
        {"device": held.device, "terms": {name: getattr(held.terms, name) for name in _TERMS}} for held in share.devices
    ]
    found = {**{name: getattr(share, name) for name in _SHARE}, "devices": devices}
    for name in ("yielding", "gang"):  # an agent of before that is put back does not know the words
        if not found[name]:
            del found[name]
    return found


def parse(text: str, boot: str) -> Checkpoint:
    """Read a checkpoint; one of another boot has no records. Raises WrongState when it is unreadable."""
    try:
        loaded: Any = json.loads(text)
        cause = "" if loaded["format"] == FORMAT else f"format {loaded['format']} is not {FORMAT}"
        if not cause:
            records = tuple(_record(item) for item in loaded["shares"]) if loaded["boot_id"] == boot else ()
            return Checkpoint(records, str(loaded.get("driver", "")))
    except (ValueError, KeyError, TypeError, AttributeError, ShareError) as error:
        cause = repr(error)
    raise _unreadable(cause)


def _unreadable(cause: str) -> WrongState:
    return WrongState(f"checkpoint is unreadable ({cause}): its shares are given up, start their programs anew")


def _record(item: Mapping[str, Any]) -> Record:
    share = dict(item["share"])
    devices = tuple(DeviceTerms(DeviceUuid(held["device"]), Terms(**held["terms"])) for held in share.pop("devices"))
    share["id"] = ShareId(share["id"])
    share["share_class"] = ShareClass(share["share_class"])
    usages = tuple(_usage(usage) for usage in item["usages"])
    if len(usages) != len(devices):
        raise ValueError("accounts and devices differ in number")
    return Record(Share(devices=devices, **share), usages, int(item["live_launches"]))


def _usage(item: Mapping[str, Any]) -> Usage:
    known = {"charged_ns": item["used_ns"], **item}  # older agents had one account for both
    counters: dict[str, Any] = {name: int(known.get(name, 0)) for name in COUNTERS}
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


def remove(directory: Path) -> None:
    """Remove the checkpoint and what a crash left of a new one."""
    (directory / NAME).unlink(missing_ok=True)
    (directory / f"{NAME}{files.UNFINISHED}").unlink(missing_ok=True)
