"""The shares of the node: admits them, makes and removes their directories, and tells the arbiter.

It holds the only map from ids and names to the arbiter's handles. Not thread-safe: the agent's event loop owns it. It
knows no grpc, no NVML and no clock (times are parameters).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.agent.devices import unmanaged
from sharepod.agent.errors import InvalidInput, NameTaken, UnknownShare, WrongState
from sharepod.agent.shares import admission, ledger
from sharepod.agent.shares.gangs import Gangs
from sharepod.agent.shares.ledger import MINUTE_NS, QUARTER_NS, SECOND_NS, Account
from sharepod.agent.shares.share import (
    ID_LENGTH,
    ID_LETTERS,
    SHARE_ID,
    DeviceTerms,
    DeviceUsage,
    DeviceUuid,
    Handle,
    Share,
    ShareAsk,
    ShareClass,
    ShareId,
    ShareState,
    ShareStatus,
    Terms,
    Turn,
    Usage,
    check_gang,
    check_labels,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sharepod.agent.devices.device import DeviceInfo, DeviceProcess
    from sharepod.agent.native import NativeArbiter
    from sharepod.agent.shares.checkpoint import Record

_OWNED_NAMES: Final = ("slots", "bell")
"""SP_SLOTS_FILE and SP_DOORBELL_FILE of region/region.h: what programs of the share write."""
_REMEMBERED_PER_HANDLE: Final = 64
"""How many released shares are kept per handle of the arbiter: traces still show their names."""


@dataclass(frozen=True, slots=True)
class TermsChange:
    """New terms for one device of a share; None: unchanged. `device` empty: every device of the share."""

    device: str = ""
    request_millipercent: int | None = None
    limit_millipercent: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(slots=True)
class _Entry:
    """A live share. `carried`: the account of earlier agents, less what the arbiter continues or reads again."""

    share: Share
    handle: Handle
    accounts: tuple[Account, ...]
    carried: tuple[Usage, ...]
    region_fault: str = ""
    """As of the last `check_regions`."""


class Registry:
    """All live shares, oldest first.

    Invariants: every entry has a directory and a handle; names are unique; every device of a share is in `_devices`.
    """

    def __init__(
        self, arbiter: NativeArbiter, directory: Path, devices: Sequence[DeviceInfo], *, overcommit: bool = False
    ) -> None:
        """Begin without shares, and add the devices to the arbiter. `directory`: the parent of the shares' directories.

        With `overcommit` shares are admitted beyond what a device has.
        """
        self._arbiter = arbiter
        self._directory = directory
        self._devices = tuple(devices)
        self._handles = {info.uuid: arbiter.add_device(info.uuid) for info in devices}
        self._uuids = {handle: uuid for uuid, handle in self._handles.items()}
        self._health: dict[DeviceUuid, str] = {}
        self._overcommit = overcommit
        self._entries: dict[ShareId, _Entry] = {}
        self._gangs = Gangs()
        self._shares_by_handle: dict[Handle, list[tuple[int, Share]]] = {}
        """The shares that have had a handle, and since when (ns), oldest first: the arbiter gives handles out again."""

    @property
    def directory(self) -> Path:
        """The parent of the shares' directories."""
        return self._directory

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices of the node."""
        return self._devices

    def add_device(self, info: DeviceInfo) -> None:
        """Add a device that was not there when the agent started."""
        handle = self._arbiter.add_device(info.uuid)
        self._handles[info.uuid], self._uuids[handle] = handle, info.uuid
        self._devices = tuple(sorted((*self._devices, info), key=lambda one: one.index))

    def replace_device(self, name: DeviceUuid, found: Sequence[DeviceInfo]) -> None:
        """Remove the device `name`, a placeholder for a GPU, and add the devices found there: it, or its MIG instances.

        No share holds the placeholder. The first device gets its index, the others get indices above all others.
        """
        [index] = [one.index for one in self._devices if one.uuid == name]
        self._devices = tuple(one for one in self._devices if one.uuid != name)
        self._health.pop(name, None)
        for info in found:
            taken = {one.index for one in self._devices}
            self.add_device(replace(info, index=index if index not in taken else max(taken) + 1))

    def describe(self, info: DeviceInfo) -> None:
        """Replace what is known of a device, except its index and its NVLink peers."""
        self._devices = tuple(
            replace(info, index=one.index, nvlink_peers=one.nvlink_peers) if one.uuid == info.uuid else one
            for one in self._devices
        )

    def device_handle(self, uuid: DeviceUuid) -> Handle:
        """Return the arbiter's handle of a device."""
        return self._handles[uuid]

    def shares(self) -> tuple[Share, ...]:
        """Return all shares, oldest first."""
        return tuple(entry.share for entry in self._entries.values())

    def find(self, reference: str) -> Share:
        """Return the share with that id or name, or of that container (`Share.container`). Raises UnknownShare."""
        return self._entry(reference).share

    def rooms(self) -> dict[DeviceUuid, admission.Room]:
        """Return the room on every device: what is promised, and what is free."""
        return admission.rooms(self._devices, self.shares(), self._health)

    def set_health(self, device: DeviceUuid, reason: str) -> None:
        """Set why work cannot run on a device; an empty `reason`: it can.

        Only admission uses this. The arbiter goes on as before: launches on a lost device fail at once, so its turns
        are short.
        """
        self._health[device] = reason

    def register(
        self,
        ask: ShareAsk,
        *,
        unix_ns: int,
        now_ns: int,
        owner_start_ticks: int = 0,
        owner_uid: int | None = None,
    ) -> Share:
        """Admit a share, create its directory and region. Nothing is left behind when this raises a ShareError.

        `unix_ns` is its time of registration, `now_ns` the monotonic time. If a share with the wanted id exists, it is
        returned unchanged, whatever else is asked for. `owner_uid`: only this user's programs may write the share's
        slots and ring its doorbell. None, as for a container, which has a user that is not known: all programs that can
        reach the directory may.
        """
        if (there := self.known(ask)) is not None:
            return there
        self._check_names(ask)
        devices = admission.place(ask.devices, self.rooms(), overcommit=self._overcommit)
        share_id = ask.id or self._new_id()
        share = Share(
            id=share_id,
            devices=devices,
            share_class=ask.share_class,
            directory=str(self._directory / share_id),
            registered_unix_ns=unix_ns,
            name=ask.name,
            owner_pid=ask.owner_pid,
            owner_start_ticks=owner_start_ticks,
            labels=dict(ask.labels),
            owner=ask.owner,
            gang=ask.gang,
        )
        directory = Path(share.directory)
        try:
            if ask.id:  # an earlier share may have left its directory: no live share uses it
                shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            # Other users' programs reach their own share by its unguessable name; only the agent lists or writes here.
            directory.chmod(0o711)
            handle = self._arbiter.add_share(share.directory, self._terms(devices), share.share_class, ())
            if owner_uid is not None:
                _give_to(owner_uid, directory)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise WrongState(
                f"region of the share cannot be created: {os.strerror(error.errno or 0)}: "
                f"check space and files in {self._directory}"
            ) from error
        self._add(share, handle, carried=(ledger.NOTHING,) * len(devices), now_ns=now_ns)
        self._join(handle, share)
        return share

    def known(self, ask: ShareAsk) -> Share | None:
        """Return the live share with the id that is asked for; None if there is none, or no id is given."""
        entry = self._entries.get(ask.id)
        return entry.share if entry else None

    def adopt(self, record: Record, now_ns: int) -> None:
        """Take over a share of an earlier agent, with its region and account.

        Raises WrongState, and FileNotFoundError when its directory is gone; its files stay as they are.
        """
        share, usages = record.share, record.usages
        if not Path(share.directory).is_dir():
            raise FileNotFoundError(errno.ENOENT, "its directory is gone", share.directory)
        try:
            used_ns = [usage.used_ns for usage in usages]
            handle = self._arbiter.add_share(share.directory, self._terms(share.devices), share.share_class, used_ns)
        except OSError as error:
            raise WrongState(os.strerror(error.errno or 0)) from None
        now = [self._arbiter.read_usage(handle, term) for term in range(len(usages))]
        self._add(share, handle, ledger.carried(usages, record.live_launches, now), now_ns)
        self._join(handle, share)
        if share.paused:
            self._arbiter.pause_share(handle, True)

    def resume_adopted(self) -> None:
        """Resume each share at the arbiter that is not paused itself. Called after the last `adopt`.

        The pause of one share marks the gates of its whole gang, and the arbiter adopts every marked share as paused.
        """
        for share in self.shares():
            if not share.paused:
                self._arbiter.pause_share(self._entries[share.id].handle, False)

    def unmetered_cause(self, process: DeviceProcess, *, attached: bool) -> str:
        """Return why a process that was started in a share runs unmetered; empty if it belongs to no share of ours.

        `attached`: it has a slot, but its share does not hold the device. A tenant controls the environment that names
        the region, so the name counts only if it is one that a share's directory has or could have had.
        """
        if attached:
            return unmanaged.OUTSIDE_CAUSE
        directory, _, name = process.region.rpartition("/")
        if directory != str(self._directory) or not SHARE_ID.fullmatch(name):
            return ""
        if process.mps_client:
            return unmanaged.MPS_CAUSE
        return unmanaged.unmetered_cause(self._arbiter.region_error(process.region), process.without_hook)

    def update(
        self,
        reference: str,
        changes: Sequence[TermsChange],
        share_class: ShareClass | None,
        labels: Mapping[str, str] | None = None,
        gang: str | None = None,
    ) -> Share:
        """Change the terms of a live share, its class, labels or gang (None: unchanged), and return it.

        `reference`: its id or name. Raises a ShareError and changes nothing if a value is wrong or does not fit.
        """
        check_labels(labels or {})
        check_gang(gang or "")
        entry = self._entry(reference)
        share = entry.share
        terms = {held.device: held.terms for held in share.devices}
        for change in changes:
            for device in self._devices_of(share, change):
                terms[device] = _with_change(terms[device], change)
        devices = tuple(DeviceTerms(device, held) for device, held in terms.items())
        room = admission.rooms(self._devices, self.shares(), self._health, without=share.id)
        admission.check_change(share, devices, room, overcommit=self._overcommit)
        changed = replace(
            share,
            devices=devices,
            share_class=share.share_class if share_class is None else share_class,
            labels=share.labels if labels is None else dict(labels),
            gang=share.gang if gang is None else gang,
        )
        self._arbiter.update_share(entry.handle, self._terms(devices), changed.share_class)
        self._replace(entry, changed)
        self._join(entry.handle, changed)
        return changed

    def pause(self, reference: str, *, paused: bool, yielding: bool = False) -> Share:
        """Close a share's gates, or let it run again. Pausing a paused share is no error.

        `yielding`: until the share runs again, its requests of device time count as not promised. Raises DoesNotFit and
        changes nothing if a share that yields should run again but others have got its time.
        """
        entry = self._entry(reference)
        share, yielding = entry.share, paused and yielding
        if share.yielding and not yielding:
            room = admission.rooms(self._devices, self.shares(), self._health, without=share.id)
            admission.check_return(share, room, overcommit=self._overcommit)
        self._arbiter.pause_share(entry.handle, paused)
        self._replace(entry, replace(share, paused=paused, yielding=yielding))
        return entry.share

    def release(self, reference: str, now_ns: int) -> ShareStatus:
        """End a share, by id or name: its gates open, its directory goes. Returns its last account.

        Raises UnknownShare.
        """
        entry = self._entry(reference)
        last = self._status(entry, self._usages(entry), now_ns)
        self._arbiter.remove_share(entry.handle)
        del self._entries[entry.share.id]
        shutil.rmtree(entry.share.directory, ignore_errors=True)
        return last

    def sample(self, now_ns: int) -> None:
        """Add one sample to every account, for the rates."""
        for entry in self._entries.values():
            for account, usage in zip(entry.accounts, self._usages(entry), strict=True):
                account.add(now_ns, usage.used_ns, usage.waited_ns)

    def statuses(self, references: Iterable[str], now_ns: int) -> tuple[ShareStatus, ...]:
        """Return the status of the named shares (of all, when none is named), oldest first. Raises UnknownShare.

        Each read is also a sample for the rates: the more often a client reads, the finer they are.
        """
        wanted = {self.find(reference).id for reference in references}
        return tuple(
            self._status(entry, self._usages(entry), now_ns)
            for entry in self._entries.values()
            if not wanted or entry.share.id in wanted
        )

    def pids(self) -> dict[DeviceUuid, set[int]]:
        """Return the pids of the live processes of all shares, by each device that their share holds."""
        found: dict[DeviceUuid, set[int]] = {}
        for entry in self._entries.values():
            pids = {process.pid for process in self._arbiter.read_processes(entry.handle)}
            for held in entry.share.devices:
                found.setdefault(held.device, set()).update(pids)
        return found

    def check_regions(self) -> None:
        """Check whether programs that start now could use their regions; the result is part of the status."""
        for entry in self._entries.values():
            entry.region_fault = unmanaged.region_fault(self._arbiter.region_error(entry.share.directory))

    def terms_on(self, device: DeviceUuid) -> list[tuple[Share, Handle, int]]:
        """Return the shares that hold the device, each with its handle and the index of its term."""
        return [
            (entry.share, entry.handle, term)
            for entry in self._entries.values()
            for term, held in enumerate(entry.share.devices)
            if held.device == device
        ]

    def turns(self, after: int, capacity: int) -> list[tuple[Turn, Share | None, DeviceUuid]]:
        """Return up to `capacity` finished turns with a sequence above `after`, oldest first.

        Each has its share, None when that has been forgotten, and its device.
        """
        return [
            (turn, self._holder(turn), self._uuids.get(turn.device, DeviceUuid("")))
            for turn in self._arbiter.read_turns(after, capacity)
        ]

    def validate(self) -> None:
        """Assert the invariants (for tests)."""
        names = [share.name for share in self.shares() if share.name]
        if len(names) != len(set(names)):
            raise AssertionError(f"names are not unique: {names}")
        there = {path.name for path in self._directory.iterdir()}
        if there != set(self._entries):
            raise AssertionError(f"directories {there} are not the shares {set(self._entries)}")
        if not self._overcommit and any(room.requested_millipercent > 100_000 for room in self.rooms().values()):
            raise AssertionError("more than 100 % of a device is promised")

    def _entry(self, reference: str) -> _Entry:
        """Return the live share with that id or name, or of that container. Raises UnknownShare."""
        entry = self._entries.get(ShareId(reference))
        if entry is None and reference:
            entry = next((e for e in self._entries.values() if reference in (e.share.name, e.share.container)), None)
        if entry is None:
            raise UnknownShare(f"no share {reference[:80]!r} on this node: `sharepod ps` lists those that are there")
        return entry

    def _check_names(self, ask: ShareAsk) -> None:
        """Raise NameTaken if the name or id that is asked for would also name a live share."""
        for share in self.shares():
            if ask.name and ask.name in (share.name, share.id):
                raise NameTaken(f"name {ask.name!r} belongs to share {share.id}: choose another, or release that one")
            if ask.id and ask.id == share.name:
                raise NameTaken(f"id {ask.id!r} is the name of share {share.id}: choose another, or release that one")

    def _add(self, share: Share, handle: Handle, carried: tuple[Usage, ...], now_ns: int) -> None:
        """Add a share to the live ones, and begin its accounts with a sample. `carried`: as in `_Entry`."""
        accounts = tuple(Account() for _ in share.devices)
        self._entries[share.id] = _Entry(share, handle, accounts, carried)
        holders = self._shares_by_handle.setdefault(handle, [])
        holders.append((now_ns, share))
        del holders[:-_REMEMBERED_PER_HANDLE]
        for term, account in enumerate(accounts):
            usage = self._arbiter.read_usage(handle, term)
            account.add(now_ns, usage.used_ns, usage.waited_ns)

    def _join(self, handle: Handle, share: Share) -> None:
        """Join the share with the live shares of its owner that name the same gang; without a gang it is alone."""
        live = {(one.owner, one.gang) for one in self.shares()}
        self._arbiter.join_gang(handle, self._gangs.key(share.owner, share.gang, live))

    def _holder(self, turn: Turn) -> Share | None:
        """Return the share that had the turn's handle when the turn ended; None if it has been forgotten."""
        for since_ns, share in reversed(self._shares_by_handle.get(turn.share, [])):
            if since_ns <= turn.drained_ns:
                return share
        return None

    def _replace(self, entry: _Entry, share: Share) -> None:
        """Replace the values of a live share."""
        entry.share = share

    def _usages(self, entry: _Entry) -> list[Usage]:
        """Return the arbiter's accounts of a share as of now, one per device."""
        return [self._arbiter.read_usage(entry.handle, term) for term in range(len(entry.accounts))]

    def _status(self, entry: _Entry, present: Sequence[Usage], now_ns: int) -> ShareStatus:
        """Return the share's status. `present`, its accounts as of now, is also a sample for the rates."""
        usages: list[DeviceUsage] = []
        parts = zip(entry.share.devices, entry.accounts, entry.carried, present, strict=True)
        for term, (held, account, carried, usage) in enumerate(parts):
            account.add(now_ns, usage.used_ns, usage.waited_ns)
            second = account.rate_millipercent(now_ns, usage.used_ns, SECOND_NS)
            minute = account.rate_millipercent(now_ns, usage.used_ns, MINUTE_NS)
            quarter = account.rate_millipercent(now_ns, usage.used_ns, QUARTER_NS)
            waited = account.waited_millipercent(now_ns, usage.waited_ns, MINUTE_NS)
            if entry.share.paused and usage.state in (ShareState.IDLE, ShareState.WAITING):
                usage = replace(usage, state=ShareState.PAUSED)
            gang_device = self._uuids.get(usage.gang_device)
            waits, turns = self._arbiter.read_turn_times(entry.handle, term)
            total = ledger.total(carried, usage)
            rates = (second, minute, quarter, waited)
            usages.append(DeviceUsage(held.device, total, *rates, gang_device, waits, turns))
        processes = self._arbiter.read_processes(entry.handle)
        diagnostics = self._arbiter.read_diagnostics(entry.handle)
        return ShareStatus(entry.share, tuple(usages), processes, diagnostics, entry.region_fault)

    def _terms(self, devices: Sequence[DeviceTerms]) -> list[tuple[Handle, Terms]]:
        """Return the terms by the arbiter's handles of the devices, in the same order."""
        return [(self._handles[held.device], held.terms) for held in devices]

    def _devices_of(self, share: Share, change: TermsChange) -> list[DeviceUuid]:
        """Return the devices of the share that `change` is for.

        Raises UnknownDevice, or InvalidInput if the share does not hold the device.
        """
        held = [terms.device for terms in share.devices]
        if not change.device:
            return held
        remedy = "name one that the share holds, or none to change all of them"
        device = admission.resolve_device(self._devices, change.device, remedy).uuid
        if device not in held:
            raise InvalidInput(
                f"share {share.title} has nothing on device {change.device}: name one of {', '.join(held)}"
            )
        return [device]

    def _new_id(self) -> ShareId:
        """Draw an id that is no live share's id or name."""
        while True:
            share_id = ShareId("".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH)))
            if all(share_id not in (share.id, share.name) for share in self.shares()):
                return share_id


def _give_to(uid: int, directory: Path) -> None:
    """Let only `uid` write the slots and ring the doorbell. If that fails (the agent is not root), all users may."""
    with contextlib.suppress(OSError):
        for name in _OWNED_NAMES:
            os.chown(directory / name, uid, -1)
            (directory / name).chmod(0o600)


def _with_change(terms: Terms, change: TermsChange) -> Terms:
    """Return the terms with the change applied; a value that the change does not give stays."""

    def pick(new: int | None, old: int) -> int:
        """Return the new value if one is given, else the old one."""
        return old if new is None else new

    return Terms(
        pick(change.request_millipercent, terms.request_millipercent),
        pick(change.limit_millipercent, terms.limit_millipercent),
        pick(change.memory_limit_bytes, terms.memory_limit_bytes),
    )
