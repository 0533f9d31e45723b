"""Ends the shares of containers that are gone, and no others.

A source that does not list a container proves nothing if it may not know the container yet. After a reboot kubelet
lists no pod of the API server until it has heard of them. The watch may be behind. Another pid namespace shows no
process. So a share ends only when every source is known to see, and all of them agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.allocation import Binding
from sharepod.deviceplugin.errors import PluginError
from sharepod.kube.client import ApiUnavailable
from sharepod.kube.pod import FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.deviceplugin.core.agent import Agent, HeldShare
    from sharepod.deviceplugin.core.allocation import Allocation, AllocationId
    from sharepod.deviceplugin.core.allocation_table import Record
    from sharepod.deviceplugin.core.shares import Shares
    from sharepod.deviceplugin.core.unit import UnitId
    from sharepod.deviceplugin.interfaces import ApiServer, Kubelet, Processes
    from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
    from sharepod.kube.pod import Pod

log = logging.getLogger("sharepod.deviceplugin")

UNBOUND_S: Final = 60.0
"""An allocation with which no container has started for this time is over if kubelet does not list its units."""
COLLECT_S: Final = 10.0
"""The usual interval between two looks."""
HURRY_S: Final = 1.0
"""The interval while a share waits for room, and for up to COLLECT_S after a pod's end, until its shares are gone."""
NOTICE_S: Final = 0.2
"""The delay of a look after a pod's end: kubelet has a watch of its own, and may hear of it a moment later than we."""
_LABELS: Final = ("namespace", "pod", "container", "pod_uid")


class GarbageCollector:
    """Looks for shares to end, when a pod ends and otherwise every COLLECT_S or every HURRY_S."""

    def __init__(
        self,
        record: Record,
        shares: Shares,
        reconciler: AnnotationReconciler,
        agent: Agent,
        api: ApiServer,
        kubelet: Kubelet,
        processes: Processes,
    ) -> None:
        self._record = record
        self._shares = shares
        self._reconciler = reconciler
        self._agent = agent
        self._api = api
        self._kubelet = kubelet
        self._processes = processes
        self.active: Callable[[], bool] = lambda: True
        """False while another plugin serves the node."""
        self._unbound_since: dict[AllocationId, float] = {}
        """When this process first saw an allocation without a container, by the loop's clock, which never jumps."""
        self._hurry_until_s = 0.0
        """Until then the interval is HURRY_S if ended pods have shares; by the loop's clock."""
        self._logged = ""
        """The failure that was last logged; empty: the last look succeeded."""

    async def collect_for_ever(self) -> None:
        """Release what is over, for ever. Also write and apply what could not be written or applied when it changed."""
        while True:
            if self.active() and self._reconciler.listed:
                try:
                    self._record.save()
                    await self._reconciler.apply_pending()
                    await self.collect()
                    self._logged = ""
                except (PluginError, ApiUnavailable) as error:
                    # A source is away: nothing counts as over while that lasts.
                    if self._logged != str(error):
                        self._logged = str(error)
                        log.warning("shares are not looked through", extra={"cause": str(error)})
            await self._until_due()

    async def _until_due(self) -> None:
        """Wait for the next look. Two looks are at least HURRY_S apart."""
        loop, ended = asyncio.get_running_loop(), self._reconciler.ended
        due_s = loop.time() + COLLECT_S
        await asyncio.sleep(HURRY_S)
        while loop.time() < due_s and not self._hurries(loop.time()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), HURRY_S)
        if ended.is_set():
            ended.clear()
            await asyncio.sleep(NOTICE_S)
            self._hurry_until_s = loop.time() + COLLECT_S

    def _hurries(self, now_s: float) -> bool:
        """Tell whether to look now: a pod has ended, a share waits for room, or a share of an ended pod is left."""
        if self._reconciler.ended.is_set() or self._reconciler.owes:
            return True
        bound = (item for item in self._record.all() if item.binding is not None)
        return now_s < self._hurry_until_s and any(self._may_be_over(item) for item in bound)

    async def collect(self) -> None:
        """Release the shares of containers that are gone, and allocations that were never used.

        Raises PluginError or ApiUnavailable when a source cannot tell.
        """
        since = self._record.moves  # an allocation that moves from here on is left alone
        await self._release_done(since)
        suspects = [item for item in self._record.all() if self._may_be_over(item)]
        orphans = await self._orphans()
        if not suspects and not orphans:
            return
        listing = await self._kubelet.look()
        expected = self._expected_pods()
        if expected and not expected & listing.pods:
            return  # kubelet has not heard of the API server's pods yet: it hears of all of them in one go
        live_pods = await self._processes.live_pods()
        counted = {unit for holder in listing.holders for unit in holder.units}
        if any(item.binding is None for item in suspects):
            counted |= await self._units_in_checkpoint()
        for item in suspects:
            is_live = item.binding is not None and item.binding.cgroup_uid in live_pods
            if is_live or self._is_listed(item, counted):
                continue
            # Only kubelet knows about allocations that were never started. Its list counts if it has an expected pod.
            if await self._is_gone(item.binding) if item.binding is not None else expected:
                await self._shares.end(item, since=since)
        for share, binding in orphans:
            if binding.pod_uid not in live_pods and not share.processes and await self._is_gone(binding):
                await self._agent.release(share.id)
                log.info("share of no allocation released", extra={"share": share.id, "container": binding.title})

    async def _units_in_checkpoint(self) -> set[UnitId]:
        """Return the units of the node's pods in kubelet's checkpoint: no other list has plain init containers.

        It is needed because an init container may wait for its image longer than UNBOUND_S. If the checkpoint has pods
        that the watch does not know, the API server is asked whether they exist: it may have gone away right after such
        a pod was admitted. Raises ApiUnavailable.
        """
        pods = {pod.cgroup_uid for pod in self._reconciler.pods() if pod.phase not in FINISHED}
        if not pods.issuperset(item.pod_uid for item in self._kubelet.recorded()):
            pods |= await self._api.uids()
        return {unit for item in self._kubelet.recorded() if item.pod_uid in pods for unit in item.units}

    async def _release_done(self, since: int) -> None:
        """Release the shares of ended init containers in pods that run on without another container with units.

        The allocations stay: kubelet counts the units for the pod, and its init containers may run again.
        """
        for item in self._record.all():
            pod = self._reconciler.pod(item.binding) if item.binding is not None and item.devices else None
            if pod is not None and self._no_container_follows(item, pod):
                share = await self._agent.share(item.id)
                if share is not None and not share.processes:
                    await self._shares.release(item, since=since)

    def _no_container_follows(self, item: Allocation, pod: Pod) -> bool:
        """Tell whether an allocation is an init container's, and the pod's last container with units has ended well.

        The API may still show the end of an earlier run. So a run of that last container counts only if it began after
        the last time that a container began to start with the share. `finished` has the start of each run.
        """
        with_units = sorted((one for one in pod.all_containers if one.units), key=lambda one: one.order)
        own = pod.named(item.binding.container) if item.binding is not None else None
        if own is None or own.stays or not with_units or with_units[-1].stays:
            return False
        began_unix_s = self._shares.started_unix_s(item.id)
        try:
            last_began_unix_s = datetime.fromisoformat(pod.finished.get(with_units[-1].name, "")).timestamp()
        except ValueError:
            return False
        # Kubelet writes whole seconds.
        return began_unix_s is not None and last_began_unix_s >= math.floor(began_unix_s)

    def _may_be_over(self, item: Allocation) -> bool:
        """Tell whether an allocation may be over, so that the other sources must be asked.

        A bound one may be over if the watch shows its pod as finished or not at all. An unbound one may be over if this
        process has known it for UNBOUND_S.
        """
        if item.binding is not None:
            self._unbound_since.pop(item.id, None)
            pod = self._reconciler.pod(item.binding)
            return pod is None or pod.phase in FINISHED
        now = asyncio.get_running_loop().time()
        return now - self._unbound_since.setdefault(item.id, now) >= UNBOUND_S

    async def _orphans(self) -> list[tuple[HeldShare, Binding]]:
        """Return the agent's shares that have a pod's labels but no allocation here, each with its container.

        There are such shares after the file of allocations was lost. Raises PluginError.
        """
        found = []
        for share in (await self._agent.shares()).values():
            if self._record.get(share.id) is None and all(share.labels.get(key) for key in _LABELS):
                namespace, pod, container, uid = (share.labels[key] for key in _LABELS)
                found.append((share, Binding(namespace, pod, container, uid, uid)))
        return found

    def _expected_pods(self) -> set[tuple[str, str]]:
        """Return the pods that kubelet lists once it has heard of the API server's pods. The plugin's own is one.

        Mirrors of static pods do not count: kubelet knows static pods from its own files.
        """
        return {
            (pod.namespace, pod.name)
            for pod in self._reconciler.pods()
            if pod.cgroup_uid == pod.uid and pod.phase not in FINISHED and not pod.deleting
        }

    def _is_listed(self, item: Allocation, counted: set[UnitId]) -> bool:
        """Tell whether kubelet still counts the units for this allocation, not for a later one with some of them.

        `counted` are the units that kubelet counts for any container. If two unbound allocations have common units,
        both are listed: they may be those of an init container and of the container after it. Once one of the two is
        bound, only the later one is.
        """
        if not item.units & counted:
            return False
        ordered = self._record.all()
        later = ordered[ordered.index(item) + 1 :] if item in ordered else ()
        return not any(
            other.units & item.units and (item.binding is not None or other.binding is not None) for other in later
        )

    async def _is_gone(self, binding: Binding) -> bool:
        """Tell whether the container's pod is over. If the watch does not show it, the API server is asked by name.

        Raises ApiUnavailable.
        """
        pod = self._reconciler.pod(binding)
        if pod is None:
            pod = await self._api.get(binding.namespace, binding.pod)
        # A pod with neither uid is a later one of that name. `uid` is compared too, because `cgroup_uid` may come from
        # annotations, which a tenant can change.
        return pod is None or pod.phase in FINISHED or binding.cgroup_uid not in (pod.cgroup_uid, pod.uid)
