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
"""For a whole start. Kubelet waits 30 s, and for a slower answer it reports only that it took too long."""
ROOM_WAIT_S: Final = 20.0
"""A container that ends frees its room a moment later, while a retry of kubelet may come only after 15 s."""
ROOM_LEFT_S: Final = 3.0
"""Kept for the rest of a start after the wait for room: the wait is shorter if the start has less time left."""
ROOM_LOOK_S: Final = 0.5
API_WAIT_S: Final = 2.0
"""For the API server to return a pod that the watch has shown. After it, the start uses the watch's last terms."""
WATCH_WAIT_S: Final = 2.0
"""For the watch to show a pod that kubelet has admitted."""
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
    """What it waits for now, for the error that tells that the time is up."""
    pod: Pod | None = None
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

        `policy`: what the operator has chosen; `record`: the allocations that were given out; `reconciler` knows the
        node's pods and their terms; `placement` chooses the devices of a share; `place` returns where files are on the
        node, for its present state.
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
        # This needs neither agent nor disk nor API server: an error here would end the pod for good.
        allocation = self._record.issue(units, self._fresh_id())
        log.info("units allocated", extra={"share": allocation.id, "units": len(units)})
        # A runtime without CDI silently ignores the name. Its container must then see no device, whatever its image
        # says. With CDI the share's variables replace these.
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

        If `start` has not come as far as the pod, kubelet's checkpoint is asked.
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
        views = {pod.uid: pod for pod in self._reconciler.pods()}  # the watch's copies, older than what is read next
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
        for item in claim.superseded:  # before our own lock: two containers may each supersede the other's allocation
            await self._shares.rest(item)
        start.waits_for = "another start of this container"
        async with self._shares.alone(allocation.id):
            if self._record.get(allocation.id) is None:
                raise PluginError(f"pod {title} was gone for a moment: it is tried again")
            share = await self._make(claim, binding, terms, pod, start)
            if start.stays_paused:
                self._reconciler.owe(allocation)
            else:
                self._reconciler.gave(allocation, terms, views.get(pod.uid))
        indices = ", ".join(str(held.device_index) for held in share.devices)
        await self._api.event(pod, "ShareReady", f"container {binding.container}: share {share.id} on device {indices}")

    async def _make(self, claim: Claim, binding: Binding, terms: PodTerms, pod: Pod, start: _Start) -> HeldShare:
        """Register the container's share, or bring it up to date, then write its devices and its CDI file to disk.

        Returns the share. `claim`, `binding`, `terms` and `pod` are the container's. `start` notes if the share stays
        paused. The caller holds the share's lock. Raises PluginError.
        """
        allocation = claim.allocation
        start.waits_for = "the agent"
        node = await self._node_now()
        share = None if claim.is_first else await self._agent.share(allocation.id)
        must_move = share is not None and (self._is_sick(share, node) or len(share.devices) != terms.devices)
        if share is not None and must_move and not share.processes:
            await self._agent.release(share.id)  # no process has it: it can be made again elsewhere
            share, node = None, await self._node_now()
        labels = labels_of(binding, pod)
        if share is None:
            share = await self._register(allocation, terms, pod, node, labels, start)
        # An init container's share goes to the next container. While programs of the earlier container still run, the
        # account and the name stay theirs.
        is_anothers = labels.items() - share.labels.items() and not share.processes
        try:
            await self._agent.update(share, terms, node, labels if is_anothers else None)
        except StaysPaused:
            start.stays_paused = True
        chosen = [(held.device_uuid, held.device_index) for held in share.devices]
        devices = tuple(uuid for uuid, _ in chosen)
        self._record.set_devices(allocation.id, devices)
        others = nvidia_edits(chosen) if self._policy.nvidia_cdi and not node.environment else []
        named = () if others else devices  # `others` bring the devices
        self._cdi.write(allocation.id, edits_of(self._place(node), allocation.id, named), others)
        log.info(
            "share ready",
            extra={
                "share": share.id,
                "container": binding.title,
                "devices": ",".join(str(index) for _, index in chosen),
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
        """Return the share, registered on the first choice of devices that has room. Wait for room if there is none.

        `labels` are the new share's. Raises NoRoom when ROOM_WAIT_S or all but ROOM_LEFT_S of the start's time is over,
        and PluginError for any other failure.
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
            except NoRoom as error:
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

        Pod-resources does not list a plain init container. If no later container has any of its units either, it is
        the one in kubelet's checkpoint, as soon as the watch shows its pod. Raises PluginError after WATCH_WAIT_S.
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
        """Return the pod that has exactly these units in kubelet's checkpoint, and its last container that has them.

        None: the watch shows no such pod, or only a finished one.
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

        While the API server is away, the watch's last copy is enough if kubelet's checkpoint has its uid. Otherwise the
        API server is asked for longer: by the name alone, the copy could be of an earlier pod.
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
        last = pod.named(holder.container)
        init = [
            one
            for one in pod.init_containers
            if one.units == len(units) and not one.stays and one.name not in pod.running
            if last is None or one.order <= last.order
        ]
        unfinished = [one for one in init if one.name not in pod.finished]
        if holder.units == units:  # the holder has the same units as its init containers: it starts after them
            return unfinished[0].name if unfinished and not self._is_past(unfinished[0], pod) else holder.container
        # The holder has other units: an init container starts, which pod-resources does not list.
        return (unfinished or init)[0].name if init else holder.container

    def _is_past(self, init: Container, pod: Pod) -> bool:
        """Tell whether a container after `init` has started: the API shows it running, or it is bound in our record.

        The API alone may be behind.
        """
        names = {one.name for one in pod.all_containers if one.units and one.stays and one.order >= init.order}
        bound = (item.binding for item in self._record.all() if item.binding is not None)
        started = {one.container for one in bound if one.cgroup_uid == pod.cgroup_uid}
        return bool(names & (pod.running | started))

    def _is_sick(self, share: HeldShare, node: NodeView) -> bool:
        """Tell whether a device of the share is unhealthy, gone, or no longer offered."""
        devices = (node.device(held.device_uuid) for held in share.devices)
        return any(device is None or not device.healthy for device in devices)

    def _fresh_id(self) -> AllocationId:
        """Return a new random id."""
        return AllocationId("".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH)))
