"""Gives containers their shares: this is the work behind kubelet's Allocate and PreStartContainer.

docs/device-plugin.md describes the path. Everything that a container needs is on disk before the container starts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import ID_LENGTH, ID_LETTERS
from sharepod.deviceplugin.cdi.files import name_of, nvidia_edits
from sharepod.deviceplugin.cdi.injection import NO_DEVICE, VISIBLE, ContainerEdits, Place, edits_of
from sharepod.deviceplugin.core.agent import NoRoom, StaysPaused
from sharepod.deviceplugin.core.allocation import Allocation, AllocationId, Binding, labels_of
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.v1beta1.podresources import Holder
from sharepod.kube.client import ApiUnavailable
from sharepod.kube.pod import FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sharepod.deviceplugin.cdi.files import CdiDirectory
    from sharepod.deviceplugin.core.agent import Agent, HeldShare, NodeView
    from sharepod.deviceplugin.core.allocation_table import Claim, Record
    from sharepod.deviceplugin.core.placement import Placement
    from sharepod.deviceplugin.core.shares import Shares
    from sharepod.deviceplugin.core.terms import PodTerms
    from sharepod.deviceplugin.core.unit import UnitId
    from sharepod.deviceplugin.interfaces import ApiServer, Kubelet
    from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
    from sharepod.kube.pod import Container, Pod

log = logging.getLogger("sharepod.deviceplugin")

START_S: Final = 25.0
"""The time for a whole start. Kubelet waits 30 s, and of a slower answer it reports only that it took too long."""
ROOM_WAIT_S: Final = 20.0
"""The longest wait for room. A container that ends frees its room a moment later, but kubelet's next try may come only
after 15 s."""
ROOM_LEFT_S: Final = 3.0
"""The part of START_S that is kept for the steps after the wait for room."""
ROOM_LOOK_S: Final = 0.5
API_WAIT_S: Final = 2.0
"""How long the API server is first asked for the pod: see `_pod`."""
WATCH_WAIT_S: Final = 2.0
"""How long to wait until the watch shows a pod that kubelet has admitted."""
WATCH_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's choices."""

    nvidia_cdi: bool = False
    """Devices come from NVIDIA's CDI files instead of its runtime."""


@dataclass(slots=True)
class _Start:
    """How far the start of a container has got."""

    until_s: float
    """When the start fails, by the loop's clock."""
    waits_for: str = "kubelet to say which container holds the units"
    """What it waits for now, for the error when the time is up."""
    pod: Pod | None = None
    """The pod of the container that starts; None: it is not known yet."""
    container: str = ""
    no_room: NoRoom | None = None
    """The agent's last answer while the start waits for room."""
    stays_paused: bool = False
    """The share has yielded its device time and has not got it back: the container starts, and its programs wait."""


class Allocator:
    """Does what kubelet's two calls ask for."""

    def __init__(
        self,
        policy: Policy,
        record: Record,
        shares: Shares,
        reconciler: AnnotationReconciler,
        agent: Agent,
        api: ApiServer,
        kubelet: Kubelet,
        cdi: CdiDirectory,
        place: Callable[[NodeView], Place],
        placement: Placement,
    ) -> None:
        """Take the parts that a start needs.

        `policy`: what the operator has chosen. `record`: the allocations that were given out. `reconciler` knows the
        node's pods and their terms. `place` returns where files are on the node, in the state that the agent has just
        told. `placement` chooses the devices of a share.
        """
        self._policy = policy
        self._record = record
        self._shares = shares
        self._reconciler = reconciler
        self._agent = agent
        self._api = api
        self._kubelet = kubelet
        self._cdi = cdi
        self._place = place
        self._placement = placement

    def taken(self) -> Mapping[str, frozenset[UnitId]]:
        """Return the units in use, grouped by the UUID of their device; NOT_BOUND: their allocation has no device yet.

        The units of an allocation on several devices are dealt out evenly over these devices.
        """
        return self._record.taken()

    async def allocate(self, units: frozenset[UnitId]) -> ContainerEdits:
        """Return what a container that is being admitted gets. The edits stay valid for its whole life."""
        # Nothing here depends on the agent, the disk or the API server: an error would end the pod for good.
        allocation = self._record.issue(units, self._fresh_id())
        log.info("units allocated", extra={"share": allocation.id, "units": len(units)})
        # A runtime without CDI silently ignores the name. NO_DEVICE is for it: the container must see no device then,
        # whatever its image says. With CDI the variables in the share's file replace this one.
        return ContainerEdits({VISIBLE: NO_DEVICE}, cdi=(name_of(allocation.id),))

    async def pre_start(self, units: frozenset[UnitId]) -> None:
        """Make the share of a container that is about to start. Idempotent: kubelet tries again after an error.

        Raises PluginError; an Event then tells it to the pod's owner, or to the node's operator.
        """
        start = _Start(asyncio.get_running_loop().time() + START_S)
        try:
            async with asyncio.timeout_at(start.until_s):
                await self._start(units, start)
        except TimeoutError:
            slow = PluginError(f"{START_S:g} s were not enough, {start.waits_for} was waited for: it is tried again")
            error = start.no_room or slow
            await self._tell(units, start, error)
            raise error from None
        except PluginError as error:
            await self._tell(units, start, error)
            raise

    async def _tell(self, units: frozenset[UnitId], start: _Start, error: PluginError) -> None:
        """Write an Event for the pod that holds the units, or for the node if no source says which pod it is.

        If `start` does not know the pod yet, kubelet's checkpoint is asked.
        """
        known = self._find_in_checkpoint(units) if start.pod is None else None
        pod, container = (start.pod, start.container) if known is None else (known[0], known[1].container)
        if pod is None:
            text = f"a container with {len(units)} units does not start: {error}"
            self._api.node_event("ShareNotReady", text, warning=True)
        else:
            await self._api.event(pod, "ShareNotReady", f"container {container}: {error}", warning=True)

    async def _start(self, units: frozenset[UnitId], start: _Start) -> None:
        """Find the container that holds the units, and make its share. `start` notes each step. Raises PluginError."""
        holder = await self._holder(units)
        title = f"{holder.namespace}/{holder.pod}"
        start.waits_for = f"the API server to show pod {title}"
        watched = {pod.uid: pod for pod in self._reconciler.pods()}  # older than the pod that is read next
        try:
            pod = await self._pod(holder, units)
        except ApiUnavailable as error:
            raise PluginError(f"annotations of {title} cannot be read: {error}") from None
        if pod is None:
            raise PluginError(f"pod {title} is not at the API server: it is tried again")
        start.pod, start.container = pod, self._container(holder, pod, units)
        terms = self._reconciler.read_terms(pod, start.container, len(units))
        binding = Binding(pod.namespace, pod.name, start.container, pod.uid, pod.cgroup_uid)
        claim = self._record.claim(units, binding)
        allocation = claim.allocation
        start.waits_for = "the agent to release the share of the container before it"
        # Before our own lock is taken: two containers may each supersede the other's allocation, and would then wait
        # for each other.
        for item in claim.superseded:
            await self._shares.release(item)
        start.waits_for = "another start of this container"
        async with self._shares.alone(allocation.id):
            if self._record.get(allocation.id) is None:  # it was ended while this start waited for the lock
                raise PluginError(f"pod {title} was gone for a moment: it is tried again")
            share = await self._make(claim, binding, terms, pod, start)
            if start.stays_paused:
                self._reconciler.owe(allocation)
            else:
                self._reconciler.gave(allocation, terms, watched.get(pod.uid))
        indices = ", ".join(str(held.device_index) for held in share.devices)
        await self._api.event(pod, "ShareReady", f"container {binding.container}: share {share.id} on device {indices}")

    async def _make(self, claim: Claim, binding: Binding, terms: PodTerms, pod: Pod, start: _Start) -> HeldShare:
        """Register the container's share, or bring it up to date. Then write its devices and its CDI file to disk.

        Returns the share. `claim`, `binding`, `terms` and `pod` are the container's. `start.stays_paused` is set if the
        share stays paused. The caller holds the share's lock. Raises PluginError.
        """
        allocation = claim.allocation
        start.waits_for = "the agent"
        node = await self._node_now()
        share = None if claim.is_first else await self._agent.share(allocation.id)
        must_move = share is not None and (self._is_sick(share, node) or len(share.devices) != terms.devices)
        if share is not None and must_move and not share.processes:
            await self._agent.release(share.id)  # no process uses it: it can be made again on other devices
            share, node = None, await self._node_now()
        labels = labels_of(binding, pod)
        if share is None:
            share = await self._register(allocation, terms, pod, node, labels, start)
        # An init container's share goes to the next container, with new labels. While programs of the init container
        # still run, what the share uses is shown and counted under the old ones.
        takes_over = labels.items() - share.labels.items() and not share.processes
        try:
            await self._agent.update(share, terms, node, labels if takes_over else None)
        except StaysPaused:
            start.stays_paused = True
        devices = [(held.device_uuid, held.device_index) for held in share.devices]
        uuids = tuple(uuid for uuid, _ in devices)
        self._record.set_devices(allocation.id, uuids)
        device_edits = nvidia_edits(devices) if self._policy.nvidia_cdi and not node.environment else []
        visible = () if device_edits else uuids  # `device_edits` bring the devices by themselves
        self._cdi.write(allocation.id, edits_of(self._place(node), allocation.id, visible), device_edits)
        log.info(
            "share ready",
            extra={
                "share": share.id,
                "container": binding.title,
                "devices": ",".join(str(index) for _, index in devices),
            },
        )
        return share

    async def _register(
        self,
        allocation: Allocation,
        terms: PodTerms,
        pod: Pod,
        node: NodeView,
        labels: Mapping[str, str],
        start: _Start,
    ) -> HeldShare:
        """Register the share on the first choice of devices that has room, and return it. Wait while none has room.

        `labels` are the new share's. Raises NoRoom after ROOM_WAIT_S, or when only ROOM_LEFT_S of the start's time are
        left. Raises PluginError for any other failure.
        """
        loop = asyncio.get_running_loop()
        until_s = min(loop.time() + ROOM_WAIT_S, start.until_s - ROOM_LEFT_S)
        while True:
            try:
                for uuids in self._placement.choices(allocation, terms, pod, node):
                    try:
                        return await self._agent.register(allocation.id, terms, uuids, labels)
                    except NoRoom as error:
                        start.no_room = error
            except NoRoom as error:  # of `choices`: no device has the time
                start.no_room = error
            if start.no_room is not None and loop.time() + ROOM_LOOK_S > until_s:
                raise start.no_room
            await asyncio.sleep(ROOM_LOOK_S)
            node = await self._node_now()

    async def _node_now(self) -> NodeView:
        """Return the node as it is now, with the devices that pods may have."""
        return self._placement.device_filter.seen(await self._agent.node())

    async def _holder(self, units: frozenset[UnitId]) -> Holder:
        """Return the container that kubelet lists with exactly these units, else one with some of them.

        If kubelet lists none, they are an init container's: pod-resources does not list plain ones. Then kubelet's
        checkpoint names the container, once the watch shows its pod. Raises PluginError after WATCH_WAIT_S.
        """
        holders = (await self._kubelet.look()).holders
        exact = [holder for holder in holders if holder.units == units]
        if found := exact or [holder for holder in holders if holder.units & units]:
            return found[0]
        until_s = asyncio.get_running_loop().time() + WATCH_WAIT_S
        while (known := self._find_in_checkpoint(units)) is None:
            if asyncio.get_running_loop().time() > until_s:
                raise PluginError("kubelet does not list yet which container holds these units: it is tried again")
            await asyncio.sleep(WATCH_LOOK_S)
        return known[1]

    def _find_in_checkpoint(self, units: frozenset[UnitId]) -> tuple[Pod, Holder] | None:
        """Return the pod that has exactly these units in kubelet's checkpoint, and its last container with them.

        None: kubelet's checkpoint has no such pod, or the watch shows it as finished or not at all.
        """
        pods = {pod.cgroup_uid: pod for pod in self._reconciler.pods() if pod.phase not in FINISHED}
        found = [
            (container.order, pods[item.pod_uid], container.name)
            for item in self._kubelet.recorded()
            if item.units == units
            and item.pod_uid in pods
            and (container := pods[item.pod_uid].named(item.container)) is not None
        ]
        if not found:
            return None
        _, pod, name = max(found, key=lambda item: item[0])
        return pod, Holder(pod.namespace, pod.name, name, units)

    async def _pod(self, holder: Holder, units: frozenset[UnitId]) -> Pod | None:
        """Return the holder's pod as it is now; None: it is gone. Raises ApiUnavailable.

        If the API server does not answer within API_WAIT_S, the watch's last copy is enough, provided that kubelet's
        checkpoint has its uid. Else the API server is asked for longer: a copy with the right name alone may be of an
        earlier pod.
        """
        try:
            return await self._api.get(holder.namespace, holder.pod, API_WAIT_S)
        except ApiUnavailable:
            known = self._find_in_checkpoint(units)
        if known is not None and (known[0].namespace, known[0].name) == (holder.namespace, holder.pod):
            return known[0]
        return await self._api.get(holder.namespace, holder.pod)

    def _container(self, holder: Holder, pod: Pod, units: frozenset[UnitId]) -> str:
        """Return the name of the container that starts: the holder, or an init container before it with as many units.

        Kubelet's call names only the units, and init containers may have the same units as the holder, or some of them.
        """
        held = pod.named(holder.container)
        candidates = [  # init containers that may start now
            one
            for one in pod.init_containers
            if one.units == len(units) and not one.stays and one.name not in pod.running
            if held is None or one.order <= held.order
        ]
        unfinished = [one for one in candidates if one.name not in pod.finished]
        if holder.units == units:  # the holder has the same units as its init containers: it starts after them
            return unfinished[0].name if unfinished and not self._is_past(unfinished[0], pod) else holder.container
        # The holder has other units: an init container starts, which pod-resources does not list. If all have ended
        # once, they run again.
        return (unfinished or candidates)[0].name if candidates else holder.container

    def _is_past(self, init: Container, pod: Pod) -> bool:
        """Tell whether a container after `init` has started: the API shows it running, or it is bound in our record.

        The record is needed because the API may be behind.
        """
        later = {one.name for one in pod.all_containers if one.units and one.stays and one.order >= init.order}
        bound = (item.binding for item in self._record.all() if item.binding is not None)
        started = {one.container for one in bound if one.cgroup_uid == pod.cgroup_uid}
        return bool(later & (pod.running | started))

    def _is_sick(self, share: HeldShare, node: NodeView) -> bool:
        """Tell whether a device of the share is unhealthy, gone, or no longer offered."""
        devices = (node.device(held.device_uuid) for held in share.devices)
        return any(device is None or not device.healthy for device in devices)

    def _fresh_id(self) -> AllocationId:
        """Return a new random id."""
        return AllocationId("".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH)))
