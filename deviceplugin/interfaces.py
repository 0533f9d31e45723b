"""Protocols: what the plugin's parts ask of the API server, of kubelet and of the node's processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sharepod.deviceplugin.v1beta1.kubelet_checkpoint import Recorded
    from sharepod.deviceplugin.v1beta1.podresources import Listing
    from sharepod.kube.pod import Pod


class ApiServer(Protocol):
    """What the plugin asks of the API server: pods.Pods."""

    @property
    def listed(self) -> bool:
        """Tell whether the watch has reported all pods once, and the plugin has handled them."""

    async def get(self, namespace: str, name: str, within_s: float = ...) -> Pod | None:
        """Return a pod as it is now; None: it does not exist. Raises ApiUnavailable after `within_s` at most."""

    async def uids(self) -> frozenset[str]:
        """Return the cgroup uids of the node's pods that are not over, as of now. Raises ApiUnavailable."""

    def watch(self) -> AsyncIterator[tuple[str, Pod]]:
        """Yield ("set" | "gone", pod): every pod of the node, then every change, for ever."""

    async def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an Event for the pod's owner. Returns at once and never raises."""

    def node_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an Event for the node's operator. Returns at once and never raises."""


class Kubelet(Protocol):
    """What the plugin asks of kubelet: podresources.PodResources."""

    async def look(self) -> Listing:
        """Return which container holds which units, and which pods kubelet knows. Raises KubeletUnavailable."""

    def recorded(self) -> tuple[Recorded, ...]:
        """Return which container was given which units, from kubelet's checkpoint; nothing when it cannot be read."""


class Processes(Protocol):
    """What the plugin asks of the node's processes: processes.HostProcesses."""

    async def live_pods(self) -> frozenset[str]:
        """Return the uids of the pods that have a process now. Raises PluginError when that cannot be told."""
