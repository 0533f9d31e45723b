"""Gives containers their shares: what kubelet's calls, changed annotations and containers that are gone lead to.

docs/device-plugin.md tells the path. Everything runs on one event loop; `_lock` keeps one change of the allocations at
a time, and whatever is given out is on disk before anybody is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from sharepod.agent.share import ID_LENGTH, ID_LETTERS
from sharepod.deviceplugin.agent import NoRoom
from sharepod.deviceplugin.allocation import Allocation, AllocationId, Allocations, Binding
from sharepod.deviceplugin.api import ApiUnavailable
from sharepod.deviceplugin.cdi import name_of, nvidia_edits
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.injection import ContainerEdits, Place, edits_of
from sharepod.deviceplugin.terms import PodTerms, TermsError, read_terms
from sharepod.deviceplugin.unit import NOT_BOUND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from sharepod.deviceplugin.agent import Agent, HeldShare, NodeView
    from sharepod.deviceplugin.cdi import CdiDirectory
    from sharepod.deviceplugin.podresources import Holder
    from sharepod.deviceplugin.pods import Pod
    from sharepod.deviceplugin.store import Store
    from sharepod.deviceplugin.unit import UnitId, Units

log = logging.getLogger("sharepod.deviceplugin")

ROOM_WAIT_S: Final = 20.0
"""A container that ends gives its room back a moment later; kubelet waits 30 s for a start, then asks again."""
ROOM_LOOK_S: Final = 0.5
UNBOUND_NS: Final = 60_000_000_000
"""An allocation that nobody started and pod-resources does not list for so long was of a pod that is gone."""
SWEEP_S: Final = 10.0
_FINISHED: Final = ("Succeeded", "Failed")


class ApiServer(Protocol):
    """What is asked of pods.Pods."""

    async def get(self, namespace: str, name: str) -> Pod | None:
        """Return a pod as it is now; None: there is none."""

    def watch(self) -> AsyncIterator[tuple[str, Pod]]:
        """Yield ("set" | "gone", pod) for ever."""

    async def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell the pod's owner."""


class Kubelet(Protocol):
    """What is asked of podresources.PodResources."""

    async def list(self) -> tuple[Holder, ...]:
        """Return who holds which units."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's choices."""

    late: bool
    """Devices are picked when containers start, through CDI."""
    nvidia_cdi: bool = False
    """Devices come from NVIDIA's CDI files, not from its runtime."""
    limit_percent: int = 100
    """The limit of a pod that names none."""


class Binder:
    """The allocations of the node and what becomes of them."""

    def __init__(
        self,
        policy: Policy,
        store: Store,
        agent: Agent,
        api: ApiServer,
        kubelet: Kubelet,
        cdi: CdiDirectory,
        place: Callable[[NodeView], Place],
        view: Callable[[], NodeView],
        live_pods: Callable[[], frozenset[str]],
        units: Callable[[], Units],
    ) -> None:
        self._policy = policy
        self._store = store
        self._agent = agent
        self._api = api
        self._kubelet = kubelet
        self._cdi = cdi
        self._place = place
        self._view = view
        self._live_pods = live_pods
        self._units = units
        self.changed: Callable[[], None] = lambda: None
        """Called when other units are taken."""
        self.active: Callable[[], bool] = lambda: True
        """False while another plugin serves the node: what is there is its business."""
        self._allocations = Allocations(store.load())
        self._lock = asyncio.Lock()
        self._starting: dict[AllocationId, asyncio.Lock] = {}
        self._terms: dict[AllocationId, PodTerms] = {}
        """As last given to the agent."""
        self._pods: dict[str, Pod] = {}
        """The node's pods by uid, as the watch has them."""
        self._watched = asyncio.Event()
        """The watch has told of all pods once."""

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """All allocations, oldest first."""
        return self._allocations.all()

    def taken(self) -> Mapping[str, frozenset[UnitId]]:
        """Return the units in use by the UUID of their device, or under NOT_BOUND."""
        taken: dict[str, frozenset[UnitId]] = {}
        for item in self._allocations.all():
            parts = len(item.devices) or 1
            ordered = sorted(item.units)
            for index, device in enumerate(item.devices or (NOT_BOUND,)):
                taken[device] = taken.get(device, frozenset()) | frozenset(ordered[index::parts])
        return taken

    # ---- kubelet's calls ----

    async def allocate(self, units: frozenset[UnitId]) -> ContainerEdits:
        """Return what a container that is being admitted gets; valid for as long as it lives."""
        devices = () if self._policy.late else self._devices_of(units)
        async with self._lock:
            allocation = self._allocations.issue(units, self._fresh_id(), time.time_ns())
            self._save()
        log.info("units allocated", extra={"share": allocation.id, "units": len(units)})
        if self._policy.late:
            return ContainerEdits(cdi=(name_of(allocation.id),))
        # The agent is not asked: an error here would end the pod for good.
        return edits_of(self._place(self._view()), allocation.id, devices)

    async def pre_start(self, units: frozenset[UnitId]) -> None:
        """Make the share of a container that is about to start. Idempotent; what fails is tried again by kubelet."""
        holder = await self._holder(units)
        try:
            pod = await self._api.get(holder.namespace, holder.pod)
        except ApiUnavailable as error:
            raise PluginError(f"annotations of {holder.namespace}/{holder.pod} cannot be read: {error}") from None
        if pod is None:
            raise PluginError(f"pod {holder.namespace}/{holder.pod} is not at the API server: it is tried again")
        container = self._container(holder, pod, units)
        try:
            await self._bind(units, container, pod)
        except PluginError as error:
            await self._api.event(pod, "ShareNotReady", f"container {container}: {error}", warning=True)
            raise

    async def _bind(self, units: frozenset[UnitId], container: str, pod: Pod) -> None:
        terms = self._read_terms(pod, container, len(units))
        binding = Binding(pod.namespace, pod.name, container, pod.uid, pod.cgroup_uid)
        async with self._lock:
            allocation = self._allocations.claim(units, binding)
            if allocation is None:
                raise PluginError(
                    f"units of {binding.title} were never given out by this node (its allocations were lost): "
                    "delete the pod, so that it is admitted anew"
                )
            old = self._allocations.superseded(allocation)
            self._save()
        async with self._starting.setdefault(allocation.id, asyncio.Lock()):
            for item in old:
                await self._release(item)
            await self._make(allocation, binding, terms, pod)

    async def _make(self, allocation: Allocation, binding: Binding, terms: PodTerms, pod: Pod) -> None:
        node = await self._agent.node()
        share = (await self._agent.shares()).get(allocation.id)
        if share is not None and self._policy.late and self._is_sick(share, node) and not share.processes:
            await self._agent.release(share.id)  # its container is not there: it may as well start elsewhere
            share = None
        if share is None:
            labels = {
                "namespace": binding.namespace, "pod": binding.pod, "container": binding.container,
                "pod_uid": binding.pod_uid,
            }  # fmt: skip
            share = await self._register(allocation, terms, pod, labels)
            if terms.paused:
                await self._agent.update(share, terms, node)
        else:
            await self._agent.update(share, terms, node)
        self._terms[allocation.id] = terms
        devices = tuple(uuid for uuid, _ in share.devices)
        async with self._lock:
            self._allocations.put(replace(allocation, devices=devices))
            self._save()
        if self._policy.late:
            others = nvidia_edits(share.devices) if self._policy.nvidia_cdi and not node.environment else []
            named = () if others else devices
            self._cdi.write(allocation.id, edits_of(self._place(node), allocation.id, named), others)
        log.info(
            "share ready",
            extra={
                "share": share.id,
                "container": binding.title,
                "devices": ",".join(str(i) for _, i in share.devices),
            },
        )
        indices = ", ".join(str(index) for _, index in share.devices)
        await self._api.event(pod, "ShareReady", f"container {binding.container}: share {share.id} on device {indices}")

    async def _register(
        self, allocation: Allocation, terms: PodTerms, pod: Pod, labels: Mapping[str, str]
    ) -> HeldShare:
        deadline = time.monotonic() + ROOM_WAIT_S
        while True:
            try:
                wanted = await self._wanted(allocation, terms, pod)
                return await self._agent.register(allocation.id, terms, wanted, labels)
            except NoRoom:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(ROOM_LOOK_S)

    async def _wanted(self, allocation: Allocation, terms: PodTerms, pod: Pod) -> Sequence[str]:
        """Return the devices that the share must have; empty: any. Raises NoRoom."""
        if not self._policy.late:
            return self._devices_of(allocation.units)
        if terms.chosen:
            return terms.chosen
        if not terms.same_device:
            return ()
        for item in self._allocations.all():
            other = item.binding
            if item.id != allocation.id and other and other.pod_uid == pod.uid and item.devices:
                return item.devices[:1]
        together = [name for name, units in pod.units if self._read_terms(pod, name, units).same_device]
        needed = max(sum(units for name, units in pod.units if name in together) * 1000, terms.request_millipercent)
        node = await self._agent.node()
        fitting = [device for device in node.devices if device.healthy and device.free_millipercent >= needed]
        if not fitting:
            raise NoRoom(
                f"{needed // 1000} % for containers {', '.join(together)} of one pod fit on no device of this node: "
                "ask for less, or without same-device"
            )
        return (min(fitting, key=lambda device: (device.free_millipercent, device.index)).uuid,)

    def _devices_of(self, units: frozenset[UnitId]) -> tuple[str, ...]:
        known = self._units()
        found: dict[str, int] = {}
        for unit in units:
            device = known.device_of(unit)
            if device is None:
                raise PluginError(f"unit {unit} belongs to no device of this node: its device is gone")
            found[device] = found.get(device, 0) + 1
        if len(found) > 1 and any(count != 100 for count in found.values()):
            raise PluginError(
                f"{len(units)} % would lie on {len(found)} devices of this node, none has so much left: ask for less, "
                "or for whole devices (multiples of 100)",
                retriable=False,
            )
        return tuple(sorted(found))

    async def _holder(self, units: frozenset[UnitId]) -> Holder:
        """Return who holds the units: exactly these, or (a plain init container is not listed) some of them."""
        holders = await self._kubelet.list()
        exact = [holder for holder in holders if holder.units == units]
        found = exact or [holder for holder in holders if holder.units & units]
        if not found:
            raise PluginError("kubelet does not list who holds these units yet: it is tried again")
        return found[0]

    def _container(self, holder: Holder, pod: Pod, units: frozenset[UnitId]) -> str:
        """Return the container that starts: the listed one, or the init container that asks for so many units."""
        init = [name for name, count in pod.init_units if count == len(units) and name not in pod.running]
        return holder.container if holder.units == units or not init else init[0]

    def _read_terms(self, pod: Pod, container: str, units: int) -> PodTerms:
        try:
            return read_terms(
                pod.annotations,
                container,
                units,
                limit_percent=self._policy.limit_percent,
                containers=pod.containers,
            )
        except TermsError as error:
            raise PluginError(str(error), retriable=False) from None

    # ---- changes and ends ----

    async def follow(self) -> None:
        """Apply what changes in the annotations of running pods, for ever."""
        async for kind, pod in self._api.watch():
            if kind == "gone":
                self._pods.pop(pod.uid, None)
            else:
                self._pods[pod.uid] = pod
                if self.active():
                    await self._apply(pod)
            self._watched.set()

    async def _apply(self, pod: Pod) -> None:
        for item in self._allocations.all():
            if item.binding is None or item.binding.pod_uid != pod.uid or not item.devices:
                continue
            try:
                terms = self._read_terms(pod, item.binding.container, len(item.units))
                if terms == self._terms.get(item.id):
                    continue
                share = (await self._agent.shares()).get(item.id)
                if share is not None:
                    await self._agent.update(share, terms, await self._agent.node())
                    self._terms[item.id] = terms
                    log.info("terms changed", extra={"share": item.id, "container": item.binding.title})
            except PluginError as error:
                await self._api.event(
                    pod, "TermsNotApplied", f"container {item.binding.container}: {error}", warning=True
                )

    async def sweep_for_ever(self) -> None:
        """Release what is over, every SWEEP_S."""
        await self._watched.wait()
        while True:
            # Kubelet or the agent is away: nothing is over while that lasts.
            with contextlib.suppress(PluginError):
                if self.active():
                    await self.sweep()
            await asyncio.sleep(SWEEP_S)

    async def sweep(self) -> None:
        """Release the shares of containers that are gone, and forget what was given out and never used."""
        over = [item for item in self._allocations.all() if self._may_be_over(item)]
        if not over:
            return
        held = {unit for holder in await self._kubelet.list() for unit in holder.units}
        live = await asyncio.to_thread(self._live_pods)
        for item in over:
            runs = item.binding is not None and item.binding.cgroup_uid in live
            if not runs and not self._is_listed(item, held):
                await self._release(item)

    def _is_listed(self, item: Allocation, held: set[UnitId]) -> bool:
        """Tell whether kubelet still counts the units for this allocation, not for one that got some of them later."""
        later = any(
            other.issued_unix_ns > item.issued_unix_ns and other.units & item.units for other in self._allocations.all()
        )
        return bool(item.units & held) and not later

    def _may_be_over(self, item: Allocation) -> bool:
        if item.binding is None:
            return time.time_ns() - item.issued_unix_ns > UNBOUND_NS
        pod = self._pods.get(item.binding.pod_uid)
        return pod is None or pod.phase in _FINISHED

    async def _release(self, item: Allocation) -> None:
        await self._agent.release(item.id)
        self._cdi.remove(item.id)
        async with self._lock:
            self._allocations.drop(item.id)
            self._save()
        self._terms.pop(item.id, None)
        self._starting.pop(item.id, None)
        log.info("share released", extra={"share": item.id, "container": item.binding.title if item.binding else ""})

    def _is_sick(self, share: HeldShare, node: NodeView) -> bool:
        devices = (node.device(uuid) for uuid, _ in share.devices)
        return any(device is None or not device.healthy for device in devices)

    def _fresh_id(self) -> AllocationId:
        return AllocationId("".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH)))

    def _save(self) -> None:
        self._store.save(self._allocations.all())
        self.changed()
