"""The node: puts registry, health, owners, foreign processes and checkpoint together behind one object.

All methods run on the agent's event loop. The service and the metrics see the node only through this class; it sees
neither of them.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.agent import checkpoint, foreign, health, overhead, trouble
from sharepod.agent.device import DeviceLook, DeviceStatus, NodeStatus
from sharepod.agent.errors import ShareError
from sharepod.agent.owners import Owners, start_ticks, user_of
from sharepod.agent.plugin import fresh

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from sharepod.agent.native import NativeArbiter
    from sharepod.agent.plugin import Report
    from sharepod.agent.registry import Registry, TermsChange
    from sharepod.agent.share import DeviceUuid, Share, ShareAsk, ShareClass, ShareId, ShareStatus, Turn, Usage

log = logging.getLogger("sharepod.agent")

ANSWER_S: Final = 2.0
"""How long another thread waits for the event loop."""


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
    ) -> None:
        """Take the parts."""
        self.identity = identity
        self._registry = registry
        self._arbiter = arbiter
        self._state_directory = state_directory
        self._owners = Owners(self._owner_ended)
        self._health = {info.uuid: health.Health() for info in registry.devices}
        self._looks: dict[DeviceUuid, DeviceLook] = {}
        self._foreign = foreign.ForeignProcesses(monitoring)
        self._overheads = overhead.Overheads()
        self._troubles = trouble.Troubles()
        self._refusals: dict[tuple[ShareId, DeviceUuid], int] = {}
        self._boot = checkpoint.boot_id()
        self._dumper = checkpoint.Dumper(self._boot, identity.driver_version)
        self._save_failure = ""
        self._plugin: tuple[int, Report] | None = None
        """When the device plugin last told its counters, and them."""
        self.published = self.status()
        """The last status that went into the checkpoint: replaced whole, never changed."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        """The arbiter is gone: what the threads of the inventory had on its way comes too late."""

    # ---- shares

    def register(self, ask: ShareAsk) -> ShareStatus:
        """Create a share, or return the one that has its id. Raises a ShareError and leaves nothing behind."""
        if (there := self._registry.known(ask)) is not None:
            return self._one(there)
        ticks = start_ticks(ask.owner_pid) if ask.owner_pid else 0
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
        log.info("share registered", extra=_fields(share))
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
        """Change the terms of a live share, who it is for, or its gang. Raises a ShareError and changes nothing."""
        before = self._registry.find(reference)
        share = self._registry.update(reference, changes, share_class, labels, gang)
        if share == before:  # every start of a container tells its terms again
            return self._one(share)
        log.info("share updated", extra=_fields(share))
        return self._publish_change(share)

    def release(self, reference: str, *, reason: str = "released") -> ShareStatus:
        """End a share and return its last account."""
        last = self._registry.release(reference, time.monotonic_ns())
        self._owners.forget(last.share.id)
        self._refusals = {key: count for key, count in self._refusals.items() if key[0] != last.share.id}
        used_ns = sum(held.usage.used_ns for held in last.usages)
        log.info("share ended", extra={**_fields(last.share), "reason": reason, "used_ns": used_ns})
        self.publish()
        return last

    def pause(self, reference: str, *, paused: bool, yielding: bool = False) -> ShareStatus:
        """Close a share's gates, or let it run again. Raises DoesNotFit, and one that yields goes on yielding."""
        share = self._registry.pause(reference, paused=paused, yielding=yielding)
        log.info("share yields" if yielding else "share paused" if paused else "share resumed", extra=_fields(share))
        self.publish()
        return self._one(share)

    def statuses(self, references: Iterable[str] = ()) -> tuple[ShareStatus, ...]:
        """Return the named shares, or all. Raises UnknownShare."""
        return self._registry.statuses(references, time.monotonic_ns())

    def turns(self, after: int, capacity: int) -> list[tuple[Turn, Share | None, DeviceUuid]]:
        """Return finished turns with a sequence above `after`, oldest first."""
        return self._registry.turns(after, capacity)

    def share(self, reference: str) -> Share:
        """Return the share with that id or name. Raises UnknownShare."""
        return self._registry.find(reference)

    def _one(self, share: Share) -> ShareStatus:
        return self.statuses([share.id])[0]

    def _owner_ended(self, share: ShareId) -> None:
        self.release(share, reason="owner ended")

    # ---- the node

    def now_ns(self) -> int:
        """Return the time of statuses."""
        return time.monotonic_ns()

    def status(self) -> NodeStatus:
        """Return everything, as of now."""
        now_ns = self.now_ns()
        return NodeStatus(
            now_ns, self._registry.statuses((), now_ns), self.device_statuses(), fresh(self._plugin, now_ns)
        )

    def take_report(self, report: Report) -> None:
        """Take the device plugin's counters, for the metrics."""
        self._plugin = (self.now_ns(), report)

    def serve_threads(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the event loop that this object's methods run on, for `status_from_thread`."""
        self._loop = loop

    def status_from_thread(self) -> NodeStatus:
        """Return everything, as of now, to another thread; the last published status when the loop does not answer."""
        answer: concurrent.futures.Future[NodeStatus] = concurrent.futures.Future()
        if self._loop is None:
            return self.published
        try:
            self._loop.call_soon_threadsafe(
                lambda: answer.set_result(self.published if self._is_closed else self.status())
            )
            return answer.result(ANSWER_S)
        except (RuntimeError, TimeoutError):  # it has closed, or is busy
            return self.published

    def device_statuses(self) -> tuple[DeviceStatus, ...]:
        """Return the devices as of now: the plugin asks every second, and needs no share for it."""
        rooms = self._registry.rooms()
        result: list[DeviceStatus] = []
        for info in self._registry.devices:
            look = self._looks.get(info.uuid)
            verdict = self._health[info.uuid]
            result.append(
                DeviceStatus(
                    info=info,
                    health_reason=verdict.reason,
                    memory_used_bytes=look.memory_used_bytes if look else 0,
                    requested_millipercent=rooms[info.uuid].requested_millipercent,
                    yielded_millipercent=rooms[info.uuid].yielded_millipercent,
                    memory_promised_bytes=rooms[info.uuid].memory_promised_bytes,
                    counters=self._arbiter.read_device(self._registry.device_handle(info.uuid)),
                    foreign=self._foreign.current(info.uuid),
                    foreign_seen=self._foreign.seen(info.uuid),
                    unmetered_seen=self._foreign.unmetered_seen(info.uuid),
                    context_bytes=self._arbiter.context_bytes(self._registry.device_handle(info.uuid)),
                    xids_seen=verdict.xids_seen,
                )
            )
        return tuple(result)

    def sample(self) -> None:
        """Take one sample for the rates; every second that nothing is published."""
        self._registry.sample(time.monotonic_ns())

    def publish(self) -> None:
        """Publish the status as of now and write it to the checkpoint; at every change and every two seconds."""
        self.published = self.status()
        self._save()

    def _publish_change(self, share: Share) -> ShareStatus:
        """Publish a share that is new or has changed, and return its status.

        All else is as last published, within two seconds. A node where a hundred containers start would read each of
        the others, and every device, for every one that starts.
        """
        status = self._one(share)
        shares = {known.share.id: known for known in self.published.shares} | {share.id: status}
        self.published = replace(self.published, shares=tuple(shares.values()))
        self._save()
        return status

    def looked(self, looks: Sequence[DeviceLook]) -> None:
        """Take one look of the inventory into account: health, and processes without a share."""
        if self._is_closed:
            return
        now_ns = time.monotonic_ns()
        owned = self._registry.pids()
        attached = {pid for pids in owned.values() for pid in pids}
        for look in looks:
            self._looks[look.uuid] = look
            before = self._health[look.uuid]
            after = health.step(before, look, now_ns)
            self._health[look.uuid] = after
            if after.reason != before.reason:
                self._registry.set_health(look.uuid, after.reason)
                self._tell_health(look.uuid, after.reason)
            here = owned.get(look.uuid, set())
            causes = {
                process.pid: self._registry.unmetered_cause(process, attached=process.pid in attached)
                for process in look.processes
                if process.pid not in here
            }
            for found in self._foreign.step(look.uuid, look.processes, here, now_ns, causes):
                _tell_found(found)
            self._settle(look)
        self._tell_troubles()

    def _tell_troubles(self) -> None:
        """Tell what is new of bad input, damage and drivers that lack something."""
        self._registry.check_regions()
        contexts = {
            info.uuid: self._arbiter.context_bytes(self._registry.device_handle(info.uuid))
            for info in self._registry.devices
        }
        for line in self._troubles.step(self.statuses(), contexts):
            log.warning(line.event, extra=_fields(self._registry.find(line.share)) | line.fields)

    def _settle(self, look: DeviceLook) -> None:
        """Charge shares with what their processes take beyond their allocations, and tell what did not fit."""
        held: list[overhead.Held] = []
        for share, handle, term in self._registry.terms_on(look.uuid):
            held += [overhead.Held(handle, term, one) for one in self._arbiter.read_holdings(handle, term)]
            self._tell_refusals(share, look.uuid, self._arbiter.read_usage(handle, term))
        nvml_bytes = {process.pid: process.memory_used_bytes for process in look.processes}
        for settled in self._overheads.step(look.uuid, held, nvml_bytes):
            one = settled.held
            self._arbiter.set_overhead(one.share, one.term, one.holding, settled.overhead_bytes)
        if learned := self._overheads.context_bytes(look.uuid):
            self._arbiter.context_bytes(self._registry.device_handle(look.uuid), learned)

    def _tell_refusals(self, share: Share, device: DeviceUuid, usage: Usage) -> None:
        told = self._refusals.get((share.id, device), 0)
        self._refusals[share.id, device] = usage.memory_refusals
        if usage.memory_refusals > told:
            [limit] = [held.terms.memory_limit_bytes for held in share.devices if held.device == device]
            fields = {
                "device": device,
                "refused": usage.memory_refusals - told,
                "last_bytes": usage.memory_refused_bytes,
                "memory_used_bytes": usage.memory_used_bytes,
                "memory_limit_bytes": limit,
            }
            log.warning("allocations did not fit under the cap", extra=_fields(share) | fields)

    def _tell_health(self, device: DeviceUuid, reason: str) -> None:
        held = [s.title for s in self._registry.shares() if any(terms.device == device for terms in s.devices)]
        if reason:
            log.error("device unhealthy", extra={"device": device, "reason": reason, "shares": held})
        else:
            log.info("device healthy again", extra={"device": device, "shares": held})

    # ---- the checkpoint

    def adopt(self) -> None:
        """Take over the shares that an earlier agent left, and remove what belongs to none."""
        try:
            text = checkpoint.read(self._state_directory)
            left = checkpoint.parse(text, self._boot) if text else None
        except ShareError as error:
            log.error("checkpoint lost", extra={"cause": str(error)})  # noqa: TRY400 - the text says it all
            left = None
        for record in left.records if left else ():
            self._adopt_one(record)
        if left and left.driver_version not in ("", self.identity.driver_version):
            self._arbiter.forget_contexts()
        for name in self._registry.remove_orphans():
            log.warning("directory without a share removed", extra={"share": name})
        self.publish()

    def _adopt_one(self, record: checkpoint.Record) -> None:
        share = record.share
        try:
            self._registry.adopt(record, time.monotonic_ns())
        except ShareError as error:
            log.error("share not adopted", extra={**_fields(share), "cause": str(error)})  # noqa: TRY400 - as above
            return
        log.info("share adopted", extra=_fields(share))
        if share.owner_pid:
            try:
                self._owners.watch(share.id, share.owner_pid, share.owner_start_ticks)
            except ShareError:
                self.release(share.id, reason="owner ended while no agent ran")

    def _save(self) -> None:
        """Write the checkpoint as of the published status; remove it when there is no share.

        One that cannot be written (a full disk) is told once and tried again with the next: no share depends on it.
        """
        statuses, failure = self.published.shares, ""
        try:
            if statuses:
                checkpoint.write(self._state_directory, self._dumper.dump(statuses))
            else:
                checkpoint.remove(self._state_directory)
        except OSError as error:
            failure = os.strerror(error.errno or 0)
        if failure == self._save_failure:
            return
        self._save_failure = failure
        if failure:
            cause = f"{failure}: until there is room, a new agent adopts the shares of the last checkpoint only"
            log.error("checkpoint not written", extra={"directory": str(self._state_directory), "cause": cause})
        else:
            log.info("checkpoint written again", extra={"directory": str(self._state_directory)})

    def close(self) -> None:
        """Write the last checkpoint and open the gates; shares and regions stay for the next agent."""
        self.publish()
        self._is_closed = True
        self._owners.close()
        self._arbiter.close()


def _tell_found(found: foreign.Finding) -> None:
    process = found.process
    fields: dict[str, object] = {
        "device": found.device,
        "pid": process.pid,
        "process_name": process.name,
        "memory_used_bytes": process.memory_used_bytes,
    }
    if process.unmetered_cause:
        cause = {"region": process.region, "cause": process.unmetered_cause}
        log.warning("process of a share runs unmetered", extra=fields | cause)
    else:
        log.warning("process without a share", extra=fields)


def _fields(share: Share) -> dict[str, object]:
    return {"share": share.id, "share_name": share.name, "devices": [held.device for held in share.devices]}
