"""What an earlier agent left: its checkpoint, and regions that the checkpoint has no record of.

A region contains its terms, so a share without a record is adopted all the same. A share that cannot be adopted is left
alone while a process lives in it, and its record is kept for an agent that can read it. All methods run on the agent's
event loop.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.agent.errors import ShareError
from sharepod.agent.shares import checkpoint
from sharepod.agent.shares.checkpoint import NOTHING_LEFT, Checkpoint, Record, Unread
from sharepod.agent.shares.share import SHARE_ID, DeviceTerms, DeviceUuid, Share, ShareId, Usage

if TYPE_CHECKING:
    from collections.abc import Collection

    from sharepod.agent.native import NativeArbiter

log = logging.getLogger("sharepod.agent")

_SLOTS_NAME: Final = "slots"
_OF_ONE_USER: Final = 0o600
"""The mode of the slots of a share with an owner: see `registry.py`."""


class Leftovers:
    """The directories and records of shares that this agent does not serve.

    Invariant: a directory is removed only when no process has a slot in it. If a slot is claimed but its lock is gone,
    a process may just have lost its descriptors: so this must be found twice.
    """

    def __init__(self, arbiter: NativeArbiter, shares_directory: Path, state_directory: Path, boot: str) -> None:
        """Take the arbiter, which reads regions, the directories of shares and checkpoint, and the boot's id."""
        self._arbiter = arbiter
        self._shares = shares_directory
        self._state = state_directory
        self._boot = boot
        self._unread: tuple[Unread, ...] = ()
        """Records that this agent cannot read: they stay in the checkpoint, and their directories stay."""
        self._left: dict[str, Unread] = {}
        """By name of the directory: shares that are not adopted. They are left alone while a process lives in them."""
        self._lost = ""
        """Why the checkpoint could not be read when the agent started; empty if it could."""
        self._doubtful: set[str] = set()
        """The names in `_left` for which, at the last look, a slot was claimed but its lock was gone."""

    def read(self) -> Checkpoint:
        """Return the checkpoint, with an added record for each region that is to be adopted but has none.

        Called once, at the agent's start. What cannot be read is logged, and kept for `texts` and `troubles`. A
        checkpoint that cannot be read at all is set aside.
        """
        is_whole = True
        try:
            text = checkpoint.read(self._state)
            left = checkpoint.parse(text, self._boot) if text else NOTHING_LEFT
        except ShareError as error:
            checkpoint.set_aside(self._state)
            self._lost = str(error)
            log.error("checkpoint lost", extra={"cause": str(error)})  # noqa: TRY400 - the text says it all
            left, is_whole = NOTHING_LEFT, False
        self._unread = tuple(one for one in left.unread if one.name)
        for one in self._unread:
            cause = f"{one.cause}: its record and its region are kept for an agent that can read them, and its programs"
            log.error("share not read", extra={"share": one.name, "cause": f"{cause} run unmetered until then"})
        for one in left.unread:
            if not one.name:
                cause = f"{one.cause}: nor which share it is of: it is given up, and the region says the terms"
                log.error("share not read", extra={"cause": cause})
                is_whole = False
        known = {Path(record.share.directory).name for record in left.records} | {one.name for one in self._unread}
        return replace(left, records=(*left.records, *self._unrecorded(known, is_whole=is_whole)))

    def troubles(self) -> list[str]:
        """Return a line about a checkpoint that was lost, and one for each share that this agent cannot take over."""
        remedy = "release the shares of that time, and register them anew"
        lost = [f"as of the agent's start, its {self._lost}: {remedy}"] if self._lost else []
        unread = [
            f"share {one.name} cannot be read: {one.cause}: its programs run unmetered: start them anew, or the agent "
            "in the version that wrote it"
            for one in self._unread
        ]
        left = [
            f"share {one.name} is not adopted: {one.cause}: its programs run unmetered: start them anew"
            for one in self._left.values()
            if one.cause
        ]
        return lost + unread + left

    def texts(self) -> list[str]:
        """Return the records that the next checkpoint is to keep as they are."""
        return [one.text for one in (*self._unread, *self._left.values()) if one.text]

    def keep(self, record: Record, cause: str) -> None:
        """Leave a share alone while a process lives in it: it cannot be adopted, for `cause`. Its record stays."""
        name = Path(record.share.directory).name
        self._left[name] = Unread(name, cause, record.text)

    def clear(self, live: Collection[str]) -> None:
        """Remove the directories that were left alone and in which no process lives any more. Called again and again.

        `live`: the ids of the shares that this agent serves: a directory of theirs is left alone no longer.
        """
        for name in tuple(self._left):
            if name in live:  # it was registered anew
                del self._left[name]
                continue
            directory = self._shares / name
            tenants = self._arbiter.region_tenants(str(directory))  # 2: in use; 1: perhaps; 0: not in use
            if tenants == 1 and name not in self._doubtful:
                self._doubtful.add(name)
            elif tenants == 2:
                self._doubtful.discard(name)
            else:
                del self._left[name]
                self._doubtful.discard(name)
                shutil.rmtree(directory, ignore_errors=True)
                log.warning("directory without a share removed", extra={"share": name})

    def _unrecorded(self, known: Collection[str], *, is_whole: bool) -> list[Record]:
        """Return a record for each region that has none and is to be adopted; leave the other ones alone.

        `known`: the names of directories that have a record. `is_whole`: no record of the checkpoint is lost. Then a
        region without a record and without a process is what a crash between two steps left: it is not adopted, and
        `clear` removes it.
        """
        found: list[Record] = []
        for directory in sorted(self._shares.iterdir()):
            if directory.name in known:
                continue
            try:
                record = self._record_of(directory)
            except (OSError, ShareError) as error:
                cause = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
                self._left[directory.name] = Unread(directory.name, cause, "")
                cause = (
                    f"{cause}: it has no record, and is no region of this agent's: it is left alone while it is in use"
                )
                log.error("share not adopted", extra={"share": directory.name, "cause": cause})  # noqa: TRY400
                continue
            if not is_whole or self._arbiter.region_tenants(str(directory)):
                log.warning("share without a record", extra={**record.share.log_fields, "terms": "as its region says"})
                found.append(record)
            else:
                self._left[directory.name] = Unread(directory.name, "", "")
        return found

    def _record_of(self, directory: Path) -> Record:
        """Return a record made from the terms in a region. Raises OSError and ShareError."""
        if not SHARE_ID.fullmatch(directory.name):
            raise FileNotFoundError(2, "no share has this name", directory.name)
        terms, share_class, paused = self._arbiter.region_terms(str(directory))
        share = Share(
            id=ShareId(directory.name),
            devices=tuple(DeviceTerms(DeviceUuid(uuid), held) for uuid, held in terms),
            share_class=share_class,
            directory=str(directory),
            registered_unix_ns=directory.stat().st_mtime_ns,
            paused=paused,
            ownerless=(directory / _SLOTS_NAME).stat().st_mode & 0o777 == _OF_ONE_USER,
        )
        return Record(share, (Usage(),) * len(terms), 0)
