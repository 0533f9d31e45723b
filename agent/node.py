"""The node: one object that puts registry, health, owners, unmanaged processes and checkpoint together.

All methods run on the agent's event loop. The service and the metrics use the node only through this class; it knows
neither of them.
"""

from __future__ import annotations

import concurrent.futures
import errno
import logging
import os
import pwd
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.agent.api.plugin import fresh
from sharepod.agent.devices.device import NOT_LISTED, STANDS_IN, DeviceInfo, NodeStatus, matched
from sharepod.agent.devices.monitor import Devices
from sharepod.agent.devices.processes import user_of
from sharepod.agent.errors import ShareError
from sharepod.agent.shares import checkpoint, diagnostics
from sharepod.agent.shares.leftovers import Leftovers
from sharepod.agent.shares.owners import Owners, start_ticks
from sharepod.agent.shares.spending import Party, Spending

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sharepod.agent.api.plugin import Report
    from sharepod.agent.devices.device import DeviceLook, DeviceStatus, Unlisted
    from sharepod.agent.native import NativeArbiter
    from sharepod.agent.shares.registry import Registry, TermsChange
    from sharepod.agent.shares.share import DeviceUuid, Share, ShareAsk, ShareClass, ShareId, ShareStatus, Turn

log = logging.getLogger("sharepod.agent")

ANSWER_S: Final = 2.0
"""How long another thread waits for the event loop."""
OWNERLESS_NS: Final = 60_000_000_000
"""A share without a known owner ends when it has had no process for this long: until then one may be about to start."""
_ADOPTS_LAST: Final = "a new agent adopts the shares of the last checkpoint only"
_AFTER_FAILURE: Final = {
    errno.ENOSPC: f"{_ADOPTS_LAST}: make room there",
    errno.ENOENT: (
        "its directory is gone, and with it the regions of the shares (a user's runtime directory goes when that user "
        "logs out: `loginctl enable-linger` keeps it): start the agent anew, and their programs"
    ),
}
"""By error: what happens if the checkpoint cannot be written, and the remedy after the last colon."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change while the agent runs: fields of `GetNodeResponse`."""

    node_name: str
    version: str
    region_abi_version: int
    agent_pid: int
    driver_version: str
    runtime_directory: str
    policy: str
    metrics_address: str
    hook_path: str
    features: tuple[str, ...]
    settings: dict[str, str]
    environment: dict[str, str]
    """What a program needs to see the node's devices; empty on real ones."""


class Node:
    """The state of the node while an agent runs."""

    def __init__(
        self,
        identity: Identity,
        registry: Registry,
        arbiter: NativeArbiter,
        state_directory: Path,
        monitoring: Sequence[str],
        keep_series_s: int = 0,
        host_troubles: Sequence[str] = (),
    ) -> None:
        """Take the parts; shares that have ended are remembered for `keep_series_s`.

        `host_troubles`: what an operator should know of the host besides; it may grow.
        """
        self.identity = identity
        self._registry = registry
        self._arbiter = arbiter
        self._state_directory = state_directory
        self._owners = Owners(self._owner_ended)
        self._devices = Devices(registry, arbiter, monitoring)
        self._diagnostic_log = diagnostics.DiagnosticLog()
        self._boot = checkpoint.boot_id()
        self._dumper = checkpoint.Dumper(self._boot, identity.driver_version)
        self._leftovers = Leftovers(arbiter, registry.directory, state_directory, self._boot)
        self._spending = Spending(keep_series_s * 1_000_000_000)
        self._users: dict[ShareId, str] = {}
        """The user that runs the owner of each share."""
        self._empty_ns: dict[ShareId, int] = {}
        """For each share without a known owner: since when it has had no process."""
        self._host_troubles = host_troubles
        self._save_failure = ""
        """Why the last checkpoint could not be written, with what follows; empty if it could."""
        self.troubles: tuple[str, ...] = ()
        """What an operator should know of shares and of the agent, as of the last `look_after_shares`."""
        self._plugin: tuple[int, Report] | None = None
        """When the device plugin last reported its counters, and the counters."""
        self.published = self.status()
        """The last status that went into the checkpoint. It is replaced whole and never changed."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        """The arbiter is gone: looks that the inventory's threads deliver from now on are dropped."""

    # ---- shares

    def register(self, ask: ShareAsk) -> ShareStatus:
        """Create a share, watch its owner, and write the checkpoint; if a share has the id, return that one.

        Raises a ShareError and leaves nothing behind.
        """
        if (there := self._registry.known(ask)) is not None:
            return self._status_of(there)
        ticks = ask.owner_start_ticks or (start_ticks(ask.owner_pid) if ask.owner_pid else 0)
        share = self._registry.register(
            ask,
            unix_ns=time.time_ns(),
            now_ns=time.monotonic_ns(),
            owner_start_ticks=ticks,
            owner_uid=user_of(ask.owner_pid) if ask.owner_pid else None,
        )
        if ask.owner_pid:
            try:
                self._owners.watch(share.id, ask.owner_pid, ticks)
            except ShareError:
                self._registry.release(share.id, time.monotonic_ns())
                raise
        self._users[share.id] = _user(share)
        log.info("share registered", extra=share.log_fields)
        return self._publish_change(share)

    def environment(self, share: Share) -> dict[str, str]:
        """Return what a program of the share needs in its environment."""
        return {
            **self.identity.environment,
            "SHAREPOD_REGION": share.directory,
            "CUDA_VISIBLE_DEVICES": ",".join(held.device for held in share.devices),
            **({"SHAREPOD_POLICY": "closed"} if self.identity.policy == "closed" else {}),
        }

    def update(
        self,
        reference: str,
        changes: Sequence[TermsChange],
        share_class: ShareClass | None,
        labels: Mapping[str, str] | None = None,
        gang: str | None = None,
    ) -> ShareStatus:
        """Change the terms of a live share, its class, labels or gang; None: unchanged. `reference`: its id or name.

        Raises a ShareError and changes nothing.
        """
        before = self._registry.find(reference)
        share = self._registry.update(reference, changes, share_class, labels, gang)
        if share == before:  # every start of a container sends the same terms again
            return self._status_of(share)
        log.info("share updated", extra=share.log_fields)
        return self._publish_change(share)

    def release(self, reference: str, *, reason: str = "released") -> ShareStatus:
        """End a share, by id or name, and return its last account; `reason` is for the log. Raises UnknownShare."""
        last = self._registry.release(reference, time.monotonic_ns())
        self._owners.forget(last.share.id)
        self._devices.forget(last.share.id)
        self._spending.end(last, self._party(last.share), self.now_ns())
        self._users.pop(last.share.id, None)
        used_ns = sum(held.usage.used_ns for held in last.usages)
        log.info("share ended", extra={**last.share.log_fields, "reason": reason, "used_ns": used_ns})
        self.publish()
        return last

    def pause(self, reference: str, *, paused: bool, yielding: bool = False) -> ShareStatus:
        """Close a share's gates, or let it run again. `yielding`: while paused, its requests count as not promised.

        Raises UnknownShare, and DoesNotFit if the time that a share yielded is taken: then it goes on yielding.
        """
        share = self._registry.pause(reference, paused=paused, yielding=yielding)
        log.info("share yields" if yielding else "share paused" if paused else "share resumed", extra=share.log_fields)
        self.publish()
        return self._status_of(share)

    def statuses(self, references: Iterable[str] = ()) -> tuple[ShareStatus, ...]:
        """Return the shares with these ids or names, or all if none is given, as of now. Raises UnknownShare."""
        return self._registry.statuses(references, time.monotonic_ns())

    def turns(self, after: int, capacity: int) -> list[tuple[Turn, Share | None, DeviceUuid]]:
        """Return up to `capacity` finished turns with a sequence above `after`, oldest first, with share and device.

        The share is None if it has been forgotten.
        """
        return self._registry.turns(after, capacity)

    def share(self, reference: str) -> Share:
        """Return the share with that id or name, or of that container. Raises UnknownShare."""
        return self._registry.find(reference)

    def _status_of(self, share: Share) -> ShareStatus:
        """Return the status of one share, as of now."""
        return self.statuses([share.id])[0]

    def _owner_ended(self, share: ShareId) -> None:
        """End a share: the process that owns it is gone."""
        self.release(share, reason="owner ended")

    # ---- the node

    def now_ns(self) -> int:
        """Return the time, as statuses have it: CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def status(self) -> NodeStatus:
        """Return everything, as of now.

        It also takes a sample for the rates, and adds to the sums of each party (Spending) what its shares have used.
        """
        now_ns = self.now_ns()
        shares = self._registry.statuses((), now_ns)  # of all shares
        for share in shares:
            self._spending.count(share, self._party(share.share))
        return NodeStatus(
            now_ns,
            shares,
            self.device_statuses(),
            plugin=fresh(self._plugin, now_ns),
            ended=self._spending.ended(now_ns),
            spent=self._spending.spent(),
        )

    def _party(self, share: Share) -> Party:
        """Return the party that the share counts for: its pod's namespace and workload, else the user of its owner."""
        namespace = share.labels.get("namespace", "")
        if namespace:
            return Party(namespace, share.labels.get("owner", ""))
        return Party(user=self._users.get(share.id, ""))

    def take_report(self, report: Report) -> None:
        """Take the device plugin's counters, for the metrics."""
        self._plugin = (self.now_ns(), report)

    def serve_threads(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the event loop that this object's methods run on. From now on a device without looks is said to hang."""
        self._loop = loop
        self._devices.begin(self.now_ns())

    def status_from_thread(self) -> NodeStatus:
        """Return the status as of now, to another thread; the last published one if the event loop does not answer.

        The returned status is in the checkpoint. So a counter that was shown does not fall if this agent is killed and
        another one takes over.
        """
        answer: concurrent.futures.Future[NodeStatus] = concurrent.futures.Future()
        if self._loop is None:
            return self.published
        try:
            self._loop.call_soon_threadsafe(
                lambda: answer.set_result(self.published if self._is_closed else self.publish())
            )
            return answer.result(ANSWER_S)
        except (RuntimeError, TimeoutError):  # it has closed, or is busy
            return self.published

    @property
    def devices(self) -> Devices:
        """The node's devices: health, unmanaged processes, memory."""
        return self._devices

    def device_statuses(self) -> tuple[DeviceStatus, ...]:
        """Return the devices as of now."""
        return self._devices.statuses()

    def sample(self) -> None:
        """Take one sample for the rates. Called in every second in which nothing is published."""
        self._registry.sample(time.monotonic_ns())

    def publish(self) -> NodeStatus:
        """Publish the status as of now, write it to the checkpoint, and return it.

        Called after changes, at scrapes, and every two seconds.
        """
        self.published = self.status()
        self._save()
        return self.published

    def _publish_change(self, share: Share) -> ShareStatus:
        """Publish a share that is new or has changed, and return its status.

        Everything else stays as last published, at most two seconds ago. Else a node where a hundred containers start
        would read all shares and devices for each of them.
        """
        status = self._status_of(share)
        self._spending.count(status, self._party(share))
        shares = {known.share.id: known for known in self.published.shares} | {share.id: status}
        self.published = replace(self.published, shares=tuple(shares.values()), spent=self._spending.spent())
        self._save()
        return status

    def looked(self, looks: Sequence[DeviceLook]) -> None:
        """Take looks of the inventory. A change of the critical Xids goes into the checkpoint at once.

        Called on the event loop; after `close` it does nothing.
        """
        if self._is_closed:
            return
        before = self._devices.critical()
        self._devices.looked(looks, self.now_ns())
        if self._devices.critical() != before:
            self._save()

    def notice_hanging(self) -> None:
        """Find the devices that NVML hangs on. Called every second."""
        self._devices.notice_hanging(self.now_ns())

    def look_after_shares(self) -> None:
        """Do what is due every two seconds: check the regions, end what is unused, publish, renew `troubles`.

        Also log what is new about programs: bad input, damage, missing driver functions.
        """
        self._registry.check_regions()
        self._end_unused()
        self.publish()
        self.troubles = tuple(self._troubles())
        contexts = {info.uuid: self._devices.context_bytes(info.uuid) for info in self._registry.devices}
        for line in self._diagnostic_log.step(self.published.shares, contexts):
            log.warning(line.event, extra=self._registry.find(line.share).log_fields | line.fields)

    def _troubles(self) -> Iterator[str]:
        """Yield the troubles as of the published status, each as "what: cause: remedy"."""
        yield from self._host_troubles
        if self._save_failure:
            yield f"the checkpoint in {self._state_directory} is not written: {self._save_failure}"
        yield from self._leftovers.troubles()
        for status in self.published.shares:
            yield from diagnostics.troubles(status)

    # ---- the checkpoint

    def adopt(self, unlisted: Sequence[Unlisted]) -> None:
        """Take over the shares that an earlier agent left, and remove directories that belong to no share.

        `unlisted`: the devices that NVML could not describe.
        """
        left = self._leftovers.read()
        self._add_missing(left, unlisted)
        self._spending.restore(left.spent)
        is_same_driver = left.driver_version in ("", self.identity.driver_version)
        if is_same_driver:
            self._devices.recall(left.critical, self.now_ns())
        for record in left.records:
            self._adopt_one(record)
        self._registry.resume_adopted()
        self._devices.tell_unhealthy()
        if not is_same_driver:
            self._arbiter.forget_contexts()  # also in the grants of the shares, which are adopted now
        self._end_unused()
        self.publish()

    def _add_missing(self, left: checkpoint.Checkpoint, unlisted: Sequence[Unlisted]) -> None:
        """Add the devices that NVML does not list although shares hold them or the checkpoint names them as GPUs.

        Also add those that it lists but cannot describe. A GPU in MIG mode is in the list by its instances. What an
        earlier agent knew of a device is kept. It gets its old index, or one above all others if that is taken.
        """
        listed = {info.uuid for info in self._registry.devices}
        absent = [one for one in left.devices if one.uuid not in listed and not one.uuid.startswith(STANDS_IN)]
        known, unseen = matched(unlisted, absent)  # devices of the earlier agent, and new ones
        missing = {uuid: one.reason for uuid, one in known.items()}
        for held in (terms.device for record in left.records for terms in record.share.devices):
            if held not in listed:
                missing.setdefault(held, NOT_LISTED)
        addresses = {info.address for info in self._registry.devices}
        for info in absent:
            if info.address and info.address not in addresses and not info.uuid.startswith("MIG-"):
                missing.setdefault(info.uuid, NOT_LISTED)
        infos = {info.uuid: info for info in absent}
        taken = {info.index for info in self._registry.devices}
        for uuid, reason in missing.items():
            info = infos.get(uuid) or DeviceInfo(uuid, 0, "unknown", 0)
            index = info.index if info.index not in taken else max(taken, default=-1) + 1
            taken.add(index)
            self._devices.add_missing(replace(info, index=index), reason, self.now_ns())
        for one in unseen:
            index = one.index if one.index not in taken else max(taken) + 1
            taken.add(index)
            info = DeviceInfo(one.name, index, "unknown", 0, address=one.address)
            self._devices.add_missing(info, one.reason, self.now_ns(), place=None if one.uuid else one.place)

    def _adopt_one(self, record: checkpoint.Record) -> None:
        """Take over one share, or log why that fails. It is released at once if its owner has ended meanwhile."""
        share = record.share
        try:
            self._registry.adopt(record, self.now_ns())
        except (FileNotFoundError, ShareError) as error:
            is_gone = isinstance(error, FileNotFoundError)
            cause = "its directory is gone" if is_gone else f"{error}: its region is left alone while it is in use"
            extra = {**share.log_fields, "cause": f"{cause}: its programs run unmetered, start them anew"}
            log.error("share not adopted", extra=extra)  # noqa: TRY400 - the text says it all
            if not is_gone:
                self._leftovers.keep(record, str(error))
            return
        self._users[share.id] = _user(share)
        self._spending.adopt(share.id, sum(usage.used_ns for usage in record.usages), self._party(share))
        log.info("share adopted", extra=share.log_fields)
        if share.owner_pid:
            try:
                self._owners.watch(share.id, share.owner_pid, share.owner_start_ticks)
            except ShareError:
                self.release(share.id, reason="owner ended while no agent ran")

    def _end_unused(self) -> None:
        """Remove directories that no agent serves and no process uses; end ownerless shares that have no process."""
        self._leftovers.clear({share.id for share in self._registry.shares()})
        now_ns = self.now_ns()
        empty = [status.share.id for status in self.published.shares if status.share.ownerless and not status.processes]
        self._empty_ns = {share: self._empty_ns.get(share, now_ns) for share in empty}
        for share, since_ns in self._empty_ns.items():
            if now_ns - since_ns >= OWNERLESS_NS:
                self.release(share, reason="no process is in it, and its owner is not known")

    def _save(self, *, is_last: bool = False) -> None:
        """Write the checkpoint as of the published status; remove it when there is nothing to keep.

        The sums of parties are kept until a planned stop (`is_last`) without shares: a killed agent loses none.

        If the checkpoint cannot be written (a full disk), that is logged once and tried again at the next change: the
        shares run on without it.
        """
        statuses, failure = self.published.shares, ""
        try:
            unread = self._leftovers.texts()
            needs_devices = bool(statuses or unread or not self._devices.are_well())
            if needs_devices or (self.published.spent and not is_last):
                devices, critical = self._registry.devices if needs_devices else (), self._devices.critical()
                text = self._dumper.dump(statuses, unread, devices, self.published.spent, critical)
                checkpoint.write(self._state_directory, text)
            else:
                checkpoint.remove(self._state_directory)
            if not needs_devices:
                checkpoint.remove_unreadable(self._state_directory)
        except OSError as error:
            then = _AFTER_FAILURE.get(error.errno or 0, f"{_ADOPTS_LAST}: let the agent write there")
            failure = f"{os.strerror(error.errno or 0)}: {then}"
        if failure == self._save_failure:
            return
        self._save_failure = failure
        if failure:
            log.error("checkpoint not written", extra={"directory": str(self._state_directory), "cause": failure})
        else:
            log.info("checkpoint written again", extra={"directory": str(self._state_directory)})

    @property
    def missing(self) -> tuple[DeviceInfo, ...]:
        """Return the devices that NVML did not list or describe when the agent started."""
        return tuple(info for info in self._registry.devices if info.uuid in self._devices.missing)

    def close(self) -> None:
        """Write the last checkpoint and stop the arbiter, which opens the gates.

        Shares and regions stay for the next agent.
        """
        self.published = self.status()
        self._save(is_last=True)
        self._is_closed = True
        self._owners.close()
        self._arbiter.close()


def _user(share: Share) -> str:
    """Return the user of a share's owner; empty if the share has no owner or the owner is gone."""
    uid = user_of(share.owner_pid) if share.owner_pid else None
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
