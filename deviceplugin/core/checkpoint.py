"""Keeps the allocations on disk, in `allocations.json`. The file is replaced atomically.

It survives reboots, as kubelet's own checkpoint does. A damaged file is put aside under another name for an operator.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sharepod.deviceplugin.core.allocation import Allocation, AllocationId, Binding
from sharepod.deviceplugin.core.unit import UnitId
from sharepod.deviceplugin.errors import PluginError
from sharepod.process import files

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("sharepod.deviceplugin")

NAME: Final = "allocations.json"
FORMAT: Final = 1
_ALLOCATION: Final = tuple(field.name for field in fields(Allocation))
_BINDING: Final = tuple(field.name for field in fields(Binding))
_TEXT: Final = f'{{"format":{FORMAT},"allocations":[%s]}}'


class _Stamp(NamedTuple):
    """Which file a name stands for. The inode's number alone can't tell: the next file may get the same one."""

    inode: int
    modified_ns: int
    size: int


class Store:
    """One file in a directory of ours."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._encoded: dict[AllocationId, tuple[Allocation, str]] = {}
        """The allocations of the last `save`, each with its JSON text."""
        self._saved: tuple[Allocation, ...] | None = None
        """The allocations that this object has written to disk; None: the next `save` writes in any case."""
        self._stamp: _Stamp | None = None
        """The file that this object last read or wrote."""

    def changed(self) -> bool:
        """Tell whether another plugin has written the file since this object last read or wrote it.

        False also if the file is missing.
        """
        try:
            return _stamp_of(self._path.stat()) != self._stamp
        except OSError:
            return False

    def load(self) -> tuple[Allocation, ...]:
        """Return what was saved last; nothing on a new node. A damaged file is put aside, and nothing is returned."""
        try:
            return self._read()
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            aside = self._path.with_suffix(".damaged")
            self._path.replace(aside)
            remedy = "pods that run go on; a container that starts again fails until its pod is deleted"
            log.error(  # noqa: TRY400 - the cause is in it
                "allocations lost", extra={"file": str(aside), "cause": str(error) or repr(error), "remedy": remedy}
            )
            return ()

    def reread(self) -> tuple[Allocation, ...] | None:
        """Return what another plugin saved; None when it cannot be read: the caller keeps what it knows."""
        try:
            return self._read()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("allocations of another plugin not read", extra={"cause": str(error) or repr(error)})
            return None

    def _read(self) -> tuple[Allocation, ...]:
        """Return the allocations in the file, and note which file it was, for `changed`.

        Raises OSError, ValueError, KeyError or TypeError.
        """
        with self._path.open(encoding="utf-8") as file:
            self._stamp, self._saved = _stamp_of(os.fstat(file.fileno())), None
            return _allocations(json.load(file))

    def save(self, allocations: Iterable[Allocation]) -> None:
        """Replace the file, unless these allocations are in it already: a container that starts again changes nothing.

        Raises PluginError when the file cannot be written. The caller must not use an allocation that is not on disk.
        """
        items = tuple(allocations)
        if items == self._saved and self._path.exists():
            return
        self._saved = None
        # Allocations change one at a time, so the unchanged ones are encoded only once.
        self._encoded = {item.id: self._encode(item) for item in items}
        try:
            written = files.replace(self._path, _TEXT % ",".join(text for _, text in self._encoded.values()))
            self._stamp, self._saved = _stamp_of(written), items
        except OSError as error:
            raise PluginError(
                f"{self._path} cannot be written: {error.strerror}: make room, or choose another --state-directory"
            ) from None

    def _encode(self, item: Allocation) -> tuple[Allocation, str]:
        """Return the allocation and its JSON text. The text of an unchanged allocation is that of the last `save`."""
        known = self._encoded.get(item.id)
        if known is not None and known[0] is item:
            return known
        return item, json.dumps(_fields(item), separators=(",", ":"))


def _stamp_of(found: os.stat_result) -> _Stamp:
    """Return which file has this status."""
    return _Stamp(found.st_ino, found.st_mtime_ns, found.st_size)


def _allocations(content: dict[str, Any]) -> tuple[Allocation, ...]:
    """Return the allocations in a file's content. Raises ValueError, KeyError or TypeError for any other content."""
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}")
    return tuple(_from_fields(item) for item in content["allocations"])


def _fields(allocation: Allocation) -> dict[str, Any]:
    """Return an allocation's fields for JSON. `dataclasses.asdict` would cost ten times as much: it copies deeply."""
    binding = allocation.binding
    return {
        **{name: getattr(allocation, name) for name in _ALLOCATION},
        "units": sorted(allocation.units),
        "binding": None if binding is None else {name: getattr(binding, name) for name in _BINDING},
    }


def _from_fields(item: dict[str, Any]) -> Allocation:
    """Return the allocation with these fields, as `_fields` writes them. Raises ValueError, KeyError or TypeError."""
    binding = item["binding"]
    return Allocation(
        id=AllocationId(item["id"]),
        units=frozenset(UnitId(unit) for unit in item["units"]),
        issued_unix_ns=int(item["issued_unix_ns"]),
        binding=None if binding is None else Binding(**binding),
        devices=tuple(item["devices"]),
    )
