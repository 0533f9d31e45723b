"""Applies live changes: it watches the node's pods at the API server and brings their annotations to their shares.

Some changes can't reach the agent at once: the agent is away, or the share is just being made. `apply_pending` looks at
all pods again and tells the agent later. A share that should run again after it has yielded may find no room yet. Then
it is owed its device time, and `resume` looks every RESUME_S whether there is room.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.agent import StaysPaused, free_millipercent
from sharepod.deviceplugin.core.allocation import labels_of
from sharepod.deviceplugin.core.terms import PodTerms, TermsError, read_terms
from sharepod.deviceplugin.errors import PluginError
from sharepod.kube.pod import FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.deviceplugin.core.agent import Agent
    from sharepod.deviceplugin.core.allocation import Allocation, AllocationId, Binding
    from sharepod.deviceplugin.core.allocation_table import Record
    from sharepod.deviceplugin.core.shares import Shares
    from sharepod.deviceplugin.interfaces import ApiServer
    from sharepod.kube.pod import Pod

log = logging.getLogger("sharepod.deviceplugin")

RESUME_S: Final = 1.0


class AnnotationReconciler:
    """Watches the node's pods and applies their changes."""

    def __init__(self, record: Record, shares: Shares, agent: Agent, api: ApiServer, *, limit_percent: int) -> None:
        """`limit_percent` is the node's limit for containers that name none."""
        self._record = record
        self._shares = shares
        self._agent = agent
        self._api = api
        self._limit_percent = limit_percent
        self.active: Callable[[], bool] = lambda: True
        """False while another plugin serves the node: the shares are then that plugin's business."""
        self._pods: dict[str, Pod] = {}
        """By the uid in their cgroups: a static pod gets a new mirror now and then, but its cgroups stay."""
        self._outdated: dict[AllocationId, Pod | None] = {}
        """The watch's copy of the pod at the time its share got terms that were read directly from the API server. The
        share's terms are newer, so this copy is not applied."""
        self._told: dict[AllocationId, str] = {}
        """Why the terms of an allocation are not applied, as last told to the pod's owner."""
        self._owed: set[AllocationId] = set()
        """Allocations with a share that should run by its terms, but stays paused until others leave room."""
        self.ended: Final = asyncio.Event()
        """Set when a pod that holds an allocation is gone or has finished. The garbage collector clears it."""

    @property
    def owes(self) -> bool:
        """Tell whether a share waits for room to run again."""
        return bool(self._owed)

    @property
    def listed(self) -> bool:
        """Tell whether the watch has shown every pod of the node once."""
        return self._api.listed

    def pods(self) -> tuple[Pod, ...]:
        """Return the pods of the node, as the watch has them."""
        return tuple(self._pods.values())

    def pod(self, binding: Binding) -> Pod | None:
        """Return a container's pod, as the watch has it; None: the watch does not show it."""
        return self._pods.get(binding.cgroup_uid)

    async def follow(self) -> None:
        """Apply every change that the watch reports, for ever."""
        async for kind, pod in self._api.watch():
            if kind == "set":
                self._pods[pod.cgroup_uid] = pod
                if self.active():
                    await self._apply(pod)
                if pod.phase in FINISHED:
                    self._note_end(pod)
            elif (known := self._pods.get(pod.cgroup_uid)) is not None and known.uid == pod.uid:
                del self._pods[pod.cgroup_uid]  # the uids are equal: no later mirror of a static pod has replaced it
                self._note_end(pod)

    def _note_end(self, pod: Pod) -> None:
        """Set `ended` if the pod holds an allocation."""
        bindings = (item.binding for item in self._record.all())
        if any(one is not None and one.cgroup_uid == pod.cgroup_uid for one in bindings):
            self.ended.set()

    async def apply_pending(self) -> None:
        """Apply the changes that could not be applied when they happened. The garbage collector calls this."""
        for pod in self.pods():
            await self._apply(pod)

    async def resume_for_ever(self) -> None:
        """Let the owed shares run again as soon as there is room; look every RESUME_S, for ever."""
        while True:
            await asyncio.sleep(RESUME_S)
            if self.active():
                await self.resume()

    async def resume(self) -> None:
        """Let those owed shares run again for which there is room now, the oldest first."""
        for item in self._record.all():
            if item.id not in self._owed or item.binding is None or (pod := self.pod(item.binding)) is None:
                continue
            try:
                request = self.read_terms(pod, item.binding.container, len(item.units)).request_millipercent
                node = await self._agent.node()
            except PluginError:  # `apply_pending` reports it
                continue
            devices = [node.device(uuid) for uuid in item.devices]
            if all(device is not None and free_millipercent(device) >= request for device in devices):
                await self._apply(pod)

    def owe(self, item: Allocation) -> None:
        """Note that the allocation's share stays paused although its terms let it run: `resume` looks for room."""
        self._owed.add(item.id)

    def read_terms(self, pod: Pod, container: str, units: int) -> PodTerms:
        """Return the terms of a container with `units` units. Raises PluginError.

        The name of its gang gets the namespace in front: gangs of the same name in two namespaces are different ones.
        """
        try:
            terms = read_terms(
                pod.annotations, container, units, limit_percent=self._limit_percent, containers=pod.names
            )
        except TermsError as error:
            raise PluginError(str(error), retriable=False) from None
        return replace(terms, gang=f"{pod.namespace}/{terms.gang}") if terms.gang else terms

    def gave(self, item: Allocation, terms: PodTerms, outdated: Pod | None) -> None:
        """Note that the agent was given these terms, read from the API server itself, and owes the share nothing.

        `outdated` is the copy of the pod that the watch had before they were read; None: it had none.
        """
        self._shares.note_terms(item.id, terms)
        self._outdated[item.id] = outdated
        self._told.pop(item.id, None)
        self._owed.discard(item.id)

    async def _apply(self, pod: Pod) -> None:
        """Bring a pod's annotations to its shares, each under its lock. Forget what was noted of gone allocations."""
        for item in self._record.all():
            # A share that is just being made is left out: it gets the terms that were read for it, and `apply_pending`
            # applies newer ones.
            is_of_pod = item.binding is not None and item.binding.cgroup_uid == pod.cgroup_uid
            if is_of_pod and item.devices and not self._shares.alone(item.id).locked():
                async with self._shares.alone(item.id):
                    await self._apply_to(item, pod)
        known = {item.id for item in self._record.all()}
        for noted in (self._outdated, self._told):
            for gone in noted.keys() - known:
                del noted[gone]
        self._owed &= known

    def _present_container(self, item: Allocation, binding: Binding, pod: Pod) -> str:
        """Return the name of the container that has an allocation now: the bound one, or the one that took it over.

        When an init container has ended, its allocation goes to the running container that has as many units and no
        allocation of its own. The API may show that end only after this container has started, so that its start still
        bound the init container.
        """
        if binding.container not in pod.finished:
            return binding.container
        bound = {
            other.binding.container
            for other in self._record.all()
            if other.binding is not None and other.binding.cgroup_uid == binding.cgroup_uid
        }
        heirs = [
            name for name, units in pod.units if units == len(item.units) and name in pod.running and name not in bound
        ]
        return heirs[0] if len(heirs) == 1 else binding.container  # with several, it is not known which

    async def _apply_to(self, item: Allocation, pod: Pod) -> None:
        """Give the share of one allocation the terms of its pod, and the container that has it now.

        The caller holds the share's lock. An error is told to the pod's owner once, and the next look tries again.
        """
        # Nothing to do if the watch has another copy of the pod by now, or if the share has newer terms than this copy.
        if item.binding is None or self._pods.get(pod.cgroup_uid) is not pod or self._outdated.get(item.id) is pod:
            return
        try:
            binding = replace(item.binding, container=self._present_container(item, item.binding, pod))
            terms = self.read_terms(pod, binding.container, len(item.units))
            if terms == self._shares.terms(item.id) and binding == item.binding and item.id not in self._owed:
                return
            share = await self._agent.share(item.id)
            if share is not None:
                changed = terms != self._shares.terms(item.id)
                await self._shares.change(share, item, terms, await self._agent.node(), labels_of(binding, pod))
                self._record.rebind(item.id, binding)
                self._told.pop(item.id, None)
                what = "terms changed" if changed else "share passed to another container"
                log.info(what, extra={"share": item.id, "container": binding.title})
                if item.id in self._owed and not (terms.paused or terms.yields == "pause"):
                    await self._api.event(pod, "ShareResumed", f"container {binding.container}: share {item.id} runs")
            self._owed.discard(item.id)
        except PluginError as error:
            stays_paused = isinstance(error, StaysPaused)
            if stays_paused:
                self._owed.add(item.id)
            if self._told.get(item.id) != str(error):
                self._told[item.id] = str(error)
                text = f"container {item.binding.container}: {error}"
                reason = "ShareStaysPaused" if stays_paused else "TermsNotApplied"
                await self._api.event(pod, reason, text, warning=True)
