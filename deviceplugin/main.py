"""Starts and stops the device plugin: settings, agent, API server, kubelet. Nothing is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

# Set before grpc loads its C core: that would log to stderr in its own format.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from sharepod.agent.shares.share import DeviceUuid
from sharepod.deviceplugin.cdi.files import CdiDirectory
from sharepod.deviceplugin.cdi.injection import PRELOAD_TEXT, Injection, Place, Simulated
from sharepod.deviceplugin.core.agent import Agent, NodeView
from sharepod.deviceplugin.core.allocation_table import Record
from sharepod.deviceplugin.core.checkpoint import Store
from sharepod.deviceplugin.core.device_filter import RIVAL_DOMAIN, DeviceFilter
from sharepod.deviceplugin.core.placement import Placement
from sharepod.deviceplugin.core.shares import Shares
from sharepod.deviceplugin.core.unit import Units
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.metrics import Counters
from sharepod.deviceplugin.metrics_report import Reporter
from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
from sharepod.deviceplugin.reconcile.garbage_collector import GarbageCollector
from sharepod.deviceplugin.reconcile.pods import Pods
from sharepod.deviceplugin.reconcile.processes import HostProcesses
from sharepod.deviceplugin.reconcile.workload_monitor import WorkloadMonitor
from sharepod.deviceplugin.settings import OPTIONS, Settings
from sharepod.deviceplugin.v1beta1.allocator import Allocator, Policy
from sharepod.deviceplugin.v1beta1.podresources import KubeletUnavailable, PodResources
from sharepod.deviceplugin.v1beta1.registration import Registration, State
from sharepod.deviceplugin.v1beta1.service import PluginService
from sharepod.kube.access import Access, AccessError, from_kubeconfig, in_cluster
from sharepod.kube.client import ApiUnavailable
from sharepod.process import files
from sharepod.process.errors import EXIT_FAILURE, SettingsError
from sharepod.process.run import awaited, run, work_until

if TYPE_CHECKING:
    from collections.abc import Collection

    from sharepod.deviceplugin.cdi.runtime import Runtime

log = logging.getLogger("sharepod.deviceplugin")

LOOK_S: Final = 1.0
"""The interval at which the agent is asked for the node and the health of its devices."""
RIVALS_LOOK_S: Final = 5.0
"""The interval at which kubelet is asked for the ids of NVIDIA's device plugin."""
PRELOAD_NAME: Final = "ld.so.preload"


class Plugin:
    """The node as last seen, and what the parts of the plugin take from it."""

    def __init__(self, settings: Settings, node: NodeView) -> None:
        self._settings = settings
        self._node = node
        self.device_filter = DeviceFilter(settings.offer)
        self._unhealthy: dict[int, str] = {}
        """By index: the reason why a device is unhealthy, as last told."""

    def note_rivals(self, ids: Collection[str], now_s: float) -> None:
        """Take the ids that kubelet has from NVIDIA's device plugin; log which of our devices are newly among them.

        `now_s` is the event loop's time.
        """
        for uuid in self.device_filter.observe(self._node, ids, now_s):
            remedy = "keep the GPU out of NVIDIA's device plugin, or out of `offer`; pods that have it go on"
            log.error("device in two device plugins", extra={"device": uuid, "remedy": remedy})

    def units(self) -> Units:
        """Return the units of the devices as last seen; a device that another plugin gives out too is unhealthy."""
        devices = self.device_filter.seen(self._node).devices
        health = [(device.uuid, device.healthy) for device in devices]
        return Units(health, spare_percent=self._settings.spare_percent)

    def offered(self) -> frozenset[DeviceUuid]:
        """Return the devices that this plugin gives out: not those that another plugin gives out too."""
        devices = self.device_filter.seen(self._node).devices
        return frozenset(DeviceUuid(device.uuid) for device in devices if device.uuid not in self.device_filter.rivals)

    def place(self, node: NodeView) -> Place:
        """Return where files are on the node, for a container that starts now. `node` is the agent's latest answer.

        Raises SettingsError if the shares lie below the directory of the simulated devices' state: every container may
        write to that directory.
        """
        settings = self._settings
        simulated = None
        if node.environment:  # the agent has simulated devices
            state, libraries = node.environment["SIMGPU_STATE"], str(settings.simulated_libraries)
            if Path(state).parent in Path(node.shares_directory).parents:
                raise SettingsError(f"simulated devices are in {state}: give the agent a SIMGPU_STATE elsewhere")
            simulated = Simulated(node.environment["SIMGPU_DEVICES"], state, libraries)
        return Place(
            shares_directory=node.shares_directory,
            hook=node.hook_path,
            preload_file=str(settings.state_directory / PRELOAD_NAME),
            injection=cast("Injection", settings.injection),
            closed=node.closed,
            simulated=simulated,
        )

    def tell_health(self, pods: Pods) -> None:
        """Write an Event of the node if the unhealthy devices, or the reasons, differ from those of the last call."""
        devices = self.device_filter.seen(self._node).devices
        reasons = {device.index: device.health_reason for device in devices if not device.healthy}
        if reasons != self._unhealthy:
            listed = "; ".join(f"device {index}: {reason or 'no reason given'}" for index, reason in reasons.items())
            if reasons:
                text = f"{len(reasons)} of {len(devices)} devices take no new shares: {listed}"
                pods.node_event("SharePodDevicesUnhealthy", text, warning=True)
            else:
                pods.node_event("SharePodDevicesHealthy", f"all {len(devices)} devices take shares again")
        self._unhealthy = reasons

    async def look_for_ever(self, agent: Agent, service: PluginService, pods: Pods) -> None:
        """Ask the agent for the node every LOOK_S, for ever.

        After a change kubelet gets the units with their health, and the node's operator an Event with the reasons.
        """
        while True:
            with contextlib.suppress(PluginError):  # the agent is away, perhaps for a restart: the last state stays
                self._node = await agent.node()
                service.show(self.units())
                self.tell_health(pods)
            await asyncio.sleep(LOOK_S)

    async def look_for_rivals_for_ever(self, kubelet: PodResources) -> None:
        """Ask kubelet every RIVALS_LOOK_S, for ever, which devices NVIDIA's device plugin gives out as well."""
        while True:
            with contextlib.suppress(KubeletUnavailable):  # then the known ids stay
                self.note_rivals(await kubelet.given(RIVAL_DOMAIN), asyncio.get_running_loop().time())
            await asyncio.sleep(RIVALS_LOOK_S)


def _prepare(settings: Settings) -> None:
    """Make the state directory and the file that containers see as /etc/ld.so.preload. Raises SettingsError."""
    directory = settings.state_directory
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        preload = directory / PRELOAD_NAME
        if not preload.exists() or preload.read_text(encoding="ascii") != PRELOAD_TEXT:
            files.replace(preload, PRELOAD_TEXT)
    except OSError as error:
        raise SettingsError(
            f"state directory {directory}: {error.strerror}: choose another with --state-directory"
        ) from None


def _access(settings: Settings) -> Access:
    """Return how to reach the API server: by the kubeconfig if there is one, else by the pod's service account.

    Raises AccessError.
    """
    return from_kubeconfig(Path(settings.kubeconfig)) if settings.kubeconfig else in_cluster(os.environ)


async def _runtime(settings: Settings, pods: Pods) -> Runtime:
    """Return the node's kubelet and container runtime as soon as the API server answers.

    If they are such that shares would reach no container, tell the node's operator by an Event and raise PluginError.
    """
    while True:
        try:
            runtime = await pods.runtime()
            break
        except ApiUnavailable as error:
            log.warning("API server not reached", extra={"cause": str(error)})
            await asyncio.sleep(LOOK_S)
    if cause := runtime.lack(cdi_is_on=settings.runtime_cdi == "on"):
        pods.node_event("SharePodNodeNotServed", cause, warning=True)
        raise PluginError(cause, retriable=False)
    return runtime


def _say_that_it_waits(settings: Settings, pods: Pods) -> None:
    """Tell the node's operator by an Event that there is no driver yet."""
    text = (
        f"no NVIDIA driver on this node ({settings.wait_for}): it offers no shares until one is loaded; label it "
        "sharepod.io/agent=disabled to keep SharePod off it"
    )
    log.warning("no NVIDIA driver on this node: waiting", extra={"file": settings.wait_for})
    pods.node_event("SharePodNodeWaits", text)


async def _node(agent: Agent) -> NodeView:
    """Return the node as soon as its agent answers. The log says once that the plugin waits."""
    logged = False
    while True:
        try:
            return await agent.node()
        except PluginError as error:
            if not logged:
                log.warning("waiting for the agent", extra={"cause": str(error)})
            logged = True
        await asyncio.sleep(LOOK_S)


async def _serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Make the parts, join them, and run them until `stopping` is set. Raises PluginError, AccessError, CannotStart."""
    _prepare(settings)
    access = _access(settings)
    async with contextlib.AsyncExitStack() as stack:
        agent = await stack.enter_async_context(Agent(settings.agent_socket))
        pods = await stack.enter_async_context(Pods(access, settings.node_name, resource=settings.resource))
        kubelet = await stack.enter_async_context(
            PodResources(settings.pod_resources_socket, settings.plugins_directory, resource=settings.resource)
        )
        processes = HostProcesses(settings.pod_resources_socket)
        counters = Counters()
        agent.failed, pods.failed, kubelet.failed = (
            functools.partial(counters.failed, side) for side in ("agent", "api_server", "kubelet")
        )
        # Raises PluginError for a wrong pid namespace now, not at the first pod.
        processes.check()
        runtime = await _runtime(settings, pods)
        if settings.wait_for and not await awaited(
            settings.wait_for, stopping, lambda: _say_that_it_waits(settings, pods)
        ):
            return
        node = await _node(agent)
        plugin = Plugin(settings, node)
        plugin.place(node)  # reports simulated devices in a wrong place now, not at the first pod
        with contextlib.suppress(KubeletUnavailable):  # never offer a device of both plugins, not even at first
            plugin.note_rivals(await kubelet.given(RIVAL_DOMAIN), asyncio.get_running_loop().time())
        policy = Policy(nvidia_cdi=settings.devices == "cdi")
        cdi = CdiDirectory(settings.cdi_directory)
        record = Record(Store(settings.state_directory))
        cdi.remove_others(item.id for item in record.all())
        shares = Shares(record, agent, cdi)
        reconciler = AnnotationReconciler(record, shares, agent, pods, limit_percent=settings.limit_percent)
        collector = GarbageCollector(record, shares, reconciler, agent, pods, kubelet, processes)
        placement = Placement(record, reconciler, plugin.device_filter)
        allocator = Allocator(policy, record, shares, reconciler, agent, pods, kubelet, cdi, plugin.place, placement)
        service = PluginService(allocator, plugin.units(), counters=counters)
        record.changed = service.changed
        registration = Registration(service, settings.plugins_directory, resource=settings.resource)
        registration.registered, registration.taking_over = counters.registered, record.reload
        reporter = Reporter(counters, record, plugin.device_filter, agent)
        reporter.offered = plugin.offered
        reporter.serving = lambda: registration.state is State.REGISTERED
        monitor = WorkloadMonitor(
            record, shares, reconciler, agent, pods, processes,
            lambda note: pods.node_event(note.reason, note.message, warning=note.warning),
        )  # fmt: skip
        active = lambda: registration.state is not State.STANDING_BY  # noqa: E731 - one rule for all of them
        record.active = reconciler.active = collector.active = reporter.active = monitor.active = active
        await stack.enter_async_context(registration)
        told = {"node": settings.node_name, "kubelet": runtime.kubelet, "runtime": runtime.container_runtime}
        log.info("device plugin started", extra=told)
        gc.freeze()  # objects of the start stay: no collection has to scan them again
        works = (
            plugin.look_for_ever(agent, service, pods),
            plugin.look_for_rivals_for_ever(kubelet),
            reconciler.follow(),
            reconciler.resume_for_ever(),
            collector.collect_for_ever(),
            reporter.report_for_ever(),
            monitor.look_for_ever(),
        )
        await work_until(stopping.wait(), works)
        log.info("device plugin stopping", extra={"allocations": len(record.all())})


if __name__ == "__main__":
    expected = {AccessError: EXIT_FAILURE, PluginError: EXIT_FAILURE}
    sys.exit(run(OPTIONS.program, OPTIONS.start(), _serve, expected=expected, patience_s=LOOK_S))
