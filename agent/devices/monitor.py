"""Keeps what is known of each device: the last look at it, its health, unmanaged processes, memory overhead.

It takes the looks of the inventory, and tells the registry and the arbiter what follows from them. All methods run on
the agent's event loop.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from sharepod.agent.devices import health, unmanaged
from sharepod.agent.devices.device import DeviceLook, DeviceStatus
from sharepod.agent.shares import overhead
from sharepod.agent.shares.admission import resolve_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sharepod.agent.devices.device import DeviceInfo
    from sharepod.agent.native import NativeArbiter
    from sharepod.agent.shares.registry import Registry
    from sharepod.agent.shares.share import DeviceUuid, Share, ShareId, Usage

log = logging.getLogger("sharepod.agent")


class Devices:
    """The devices of the node, including those that NVML does not list.

    Invariant: `_health` has a verdict on each device of the registry.
    """

    def __init__(self, registry: Registry, arbiter: NativeArbiter, monitoring: Sequence[str]) -> None:
        """Take the parts; `monitoring` are names of processes that may use a device without a share."""
        self._registry = registry
        self._arbiter = arbiter
        self._health = {info.uuid: health.Health() for info in registry.devices}
        self._looks: dict[DeviceUuid, DeviceLook] = {}
        self._looked_ns: dict[DeviceUuid, int] = {}
        """When a look at each device last came; empty until `begin`."""
        self._unmanaged = unmanaged.UnmanagedProcesses(monitoring)
        self._overheads = overhead.Overheads()
        self._refusals: dict[tuple[ShareId, DeviceUuid], int] = {}
        """How many refused allocations of a share on a device have been logged."""
        self.missing: dict[DeviceUuid, int | None] = {}
        """Devices that NVML did not list or describe when the agent started.

        A GPU that could not tell its UUID is here by the name that stands for it, with its place in NVML's list.
        """
        self.released: set[DeviceUuid] = set()
        """Devices that an operator has released: while there is one, no device is looked at."""

    def add_missing(self, info: DeviceInfo, reason: str, now_ns: int, place: int | None = None) -> None:
        """Add a device that NVML does not list or describe: unhealthy with the reason until it is found.

        `place`: as in `missing`.
        """
        self._registry.add_device(info)
        self.missing[info.uuid] = place
        self._health[info.uuid] = health.Health(fault=reason, well_since_ns=now_ns)
        self._registry.set_health(info.uuid, reason)

    def critical(self) -> dict[DeviceUuid, health.Health]:
        """Return the verdicts on devices with a critical Xid since the last reset; a released device has none."""
        return {uuid: one for uuid, one in self._health.items() if one.fatal and uuid not in self.released}

    def recall(self, critical: Mapping[DeviceUuid, health.Health], now_ns: int) -> None:
        """Take over an earlier agent's verdicts on devices with a critical Xid, before its shares are adopted."""
        for uuid, verdict in critical.items():
            if uuid in self._health:
                self._health[uuid] = replace(verdict, well_since_ns=now_ns)
                self._registry.set_health(uuid, verdict.reason)

    def tell_unhealthy(self) -> None:
        """Log the devices that are unhealthy from the start, each with its shares, once these are adopted."""
        for uuid, verdict in self._health.items():
            if verdict.reason:
                self._tell_health(uuid, verdict.reason)

    def are_well(self) -> bool:
        """Tell whether no device has a fault: then the checkpoint has to keep none."""
        return not any(verdict.fault for verdict in self._health.values())

    def statuses(self) -> tuple[DeviceStatus, ...]:
        """Return the devices as of their last looks, without reading any share: the plugin asks every second."""
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
                    unmanaged=self._unmanaged.current(info.uuid),
                    unmanaged_seen=self._unmanaged.seen(info.uuid),
                    unmetered_seen=self._unmanaged.unmetered_seen(info.uuid),
                    context_bytes=self.context_bytes(info.uuid),
                    xids_seen=verdict.xids_seen,
                )
            )
        return tuple(result)

    def find(self, reference: str) -> DeviceInfo:
        """Return the device with that UUID or index. Raises UnknownDevice."""
        return resolve_device(self._registry.devices, reference, "name one of them")

    def status(self, device: DeviceUuid) -> DeviceStatus:
        """Return the status of one of the devices. It must be there."""
        return next(status for status in self.statuses() if status.info.uuid == device)

    def release(self, device: DeviceUuid) -> None:
        """Note that a device is in an operator's hands. Until `resume` it is unfit, and looks at it are dropped."""
        self.released.add(device)
        reason = health.released(self.find(device).index)
        self._judge(device, replace(self._health[device], unfit=reason))

    def resume(self, device: DeviceUuid, now_ns: int) -> None:
        """Take a device back. Like a device that a new agent finds, it is trusted if it is well at the next look."""
        self.released.discard(device)
        self._judge(device, health.Health(xids_seen=self._health[device].xids_seen, unfit=health.TAKEN_BACK))
        self.begin(now_ns)

    def context_bytes(self, device: DeviceUuid) -> int:
        """Return the memory that a context takes on the device; 0: not known."""
        return self._arbiter.context_bytes(self._registry.device_handle(device))

    def begin(self, now_ns: int) -> None:
        """Expect looks from now on: a device without one for OVERDUE_NS hangs."""
        self._looked_ns = dict.fromkeys(self._health, now_ns)

    def notice_hanging(self, now_ns: int) -> None:
        """Find the devices that have not been looked at for too long. Called every second."""
        for uuid, looked_ns in self._looked_ns.items():
            if now_ns - looked_ns >= health.OVERDUE_NS and not self.released:
                self._judge(uuid, health.overdue(self._health[uuid], now_ns))

    def looked(self, looks: Sequence[DeviceLook], now_ns: int) -> None:
        """Take looks of the inventory: judge health, find processes without a share, charge memory beyond allocations.

        Called on the event loop each time that a thread has looked at its GPU.
        """
        owned = self._registry.pids()
        attached = {pid for pids in owned.values() for pid in pids}
        for look in looks:
            if look.uuid in self.released:
                continue  # the look began before the release
            if look.found:
                self._take_found(look, now_ns)
                continue  # the first look at it comes next
            self._looks[look.uuid] = look
            self._looked_ns[look.uuid] = now_ns
            self._judge(look.uuid, health.step(self._health[look.uuid], look, now_ns))
            owned_here = owned.get(look.uuid, set())
            causes = {
                process.pid: self._registry.unmetered_cause(process, attached=process.pid in attached)
                for process in look.processes
                if process.pid not in owned_here
            }
            for found in self._unmanaged.step(look.uuid, look.processes, owned_here, now_ns, causes):
                _tell_found(found)
            self._charge_overhead(look)

    def _take_found(self, look: DeviceLook, now_ns: int) -> None:
        """Take a missing device that NVML has found; or, if a name stood for it, the devices that are at its place.

        It stays unhealthy, with the verdict that it had, until the next looks have shown that it is well.
        """
        before = self._health[look.uuid]
        if look.uuid == look.found[0].uuid:
            self._registry.describe(look.found[0])
        else:
            self._registry.replace_device(look.uuid, look.found)
            for known in (self._health, self._looks, self._looked_ns, self.missing):
                known.pop(look.uuid, None)
        for info in look.found:
            self._health[info.uuid] = before
            self._registry.set_health(info.uuid, before.reason)
            self._looked_ns[info.uuid] = now_ns
            log.info("missing device found", extra={"device": info.uuid})

    def forget(self, share: ShareId) -> None:
        """Forget how many refused allocations of a share were logged: it has ended."""
        self._refusals = {key: count for key, count in self._refusals.items() if key[0] != share}

    def _judge(self, device: DeviceUuid, verdict: health.Health) -> None:
        """Set the verdict on a device. If its reason is new, tell the registry and the log."""
        before, self._health[device] = self._health[device], verdict
        if verdict.reason != before.reason:
            self._registry.set_health(device, verdict.reason)
            self._tell_health(device, verdict.reason)

    def _tell_health(self, device: DeviceUuid, reason: str) -> None:
        """Log why the device is unhealthy; without a reason, that it is healthy again. The line names its shares."""
        held = [s.title for s in self._registry.shares() if any(terms.device == device for terms in s.devices)]
        if reason:
            log.error("device unhealthy", extra={"device": device, "reason": reason, "shares": held})
        else:
            log.info("device healthy again", extra={"device": device, "shares": held})

    def _charge_overhead(self, look: DeviceLook) -> None:
        """Charge the shares on a device with the memory that their processes take beyond allocations.

        Also learn what a context takes there, and log allocations that were refused.
        """
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
        """Log the allocations that the cap has refused since the last call for the share and device."""
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
            log.warning("allocations did not fit under the cap", extra=share.log_fields | fields)


def _tell_found(found: unmanaged.Finding) -> None:
    """Log a process that runs without a share, or unmetered although it was started in one."""
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
