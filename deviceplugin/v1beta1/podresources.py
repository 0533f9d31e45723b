"""Asks kubelet which container holds which units, by pod-resources and its checkpoint. It decides and stores nothing.

Kubelet answers at most 100 calls a second, and every start of a container asks. So callers that ask at the same time
share one call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import grpc

from sharepod.deviceplugin.core.coalesce import Look
from sharepod.deviceplugin.core.unit import RESOURCE, UnitId
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.v1beta1.kubelet_checkpoint import Recorded, read_checkpoint
from sharepod.proto import podresources_pb2 as pb
from sharepod.proto import podresources_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

TIMEOUT_S: Final = 5.0
"""The limit for one answer, which takes kubelet milliseconds."""
PATIENCE_S: Final = {grpc.StatusCode.RESOURCE_EXHAUSTED: 5.0, grpc.StatusCode.UNAVAILABLE: 0.5}
"""By failure: how long the call is repeated. RESOURCE_EXHAUSTED: kubelet is asked too often. UNAVAILABLE: no process
listens; the connection to a kubelet that has just come back is made a moment later."""
RETRY_S: Final = 0.05
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)


class KubeletUnavailable(PluginError):
    """Kubelet does not say which container holds the units."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A container and the units that kubelet has given it."""

    namespace: str
    pod: str
    container: str
    units: frozenset[UnitId]


@dataclass(frozen=True, slots=True)
class Listing:
    """What kubelet lists."""

    holders: tuple[Holder, ...]
    """The containers that hold units."""
    pods: frozenset[tuple[str, str]]
    """Namespace and name of all pods that kubelet knows, also of those without units. After its start it knows none of
    the API server's pods for a while."""


class PodResources:
    """Kubelet's pod-resources service; an async context manager. All of it runs in one event loop."""

    def __init__(self, socket: Path, checkpoints: Path, *, resource: str = RESOURCE) -> None:
        """Take the socket of the service, and the directory with kubelet's checkpoint of devices."""
        self._socket = socket
        self._checkpoints = checkpoints
        self._resource = resource
        # One channel for good, also when kubelet restarts: closing it would cancel other callers' calls.
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._stub = rpc.PodResourcesListerStub(self._channel)
        self._look = Look(self._list)
        self.failed: Callable[[], None] = lambda: None
        """Called when kubelet does not answer, or not as it should."""

    async def __aenter__(self) -> Self:
        """Connect to nothing yet: kubelet may be away."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the calls that are under way and close the connection."""
        await self._look.end()
        await self._channel.close()

    async def list(self) -> tuple[Holder, ...]:
        """Return the containers that hold units, as `look` finds them. Raises KubeletUnavailable."""
        return (await self.look()).holders

    async def look(self) -> Listing:
        """Return what kubelet lists now or a moment later. Raises KubeletUnavailable.

        A plain init container holds nothing in this list: kubelet shows its units at the container that gets them next.
        """
        return await self._look.take()

    def recorded(self) -> tuple[Recorded, ...]:
        """Return what kubelet's checkpoint says, init containers included; nothing when it cannot be read."""
        return read_checkpoint(self._checkpoints, self._resource)

    async def _list(self) -> Listing:
        """Ask kubelet once for what it lists. Raises KubeletUnavailable."""
        response = await self._ask("List", pb.ListPodResourcesRequest())
        holders = (
            Holder(pod.namespace, pod.name, container.name, self._units(container))
            for pod in response.pod_resources
            for container in pod.containers
        )
        pods = frozenset((pod.namespace, pod.name) for pod in response.pod_resources)
        return Listing(tuple(holder for holder in holders if holder.units), pods)

    async def given(self, domain: str) -> frozenset[str]:
        """Return the ids of devices in all resources with a name that begins with `domain`.

        They are the ids that pods hold, and those that pods could get. Raises KubeletUnavailable.
        """
        held = await self._ask("List", pb.ListPodResourcesRequest())
        entries = [entry for pod in held.pod_resources for container in pod.containers for entry in container.devices]
        entries += (await self._ask("GetAllocatableResources", pb.AllocatableResourcesRequest())).devices
        return frozenset(
            unit for entry in entries if entry.resource_name.startswith(domain) for unit in entry.device_ids
        )

    def _units(self, container: pb.ContainerResources) -> frozenset[UnitId]:
        """Return the container's units of our resource. Kubelet makes one entry for each id."""
        ours = (entry.device_ids for entry in container.devices if entry.resource_name == self._resource)
        return frozenset(map(UnitId, chain.from_iterable(ours)))

    async def _ask(self, name: str, request: Any) -> Any:
        """Return the answer to the call with this name, such as "List".

        A call that fails as PATIENCE_S names is repeated for the time given there. Raises KubeletUnavailable after
        that time, and at once after any other failure.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                return await getattr(self._stub, name)(request, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if loop.time() - began > PATIENCE_S.get(error.code(), 0.0):
                    raise self._unavailable(error) from None
            await asyncio.sleep(RETRY_S)

    def _unavailable(self, error: grpc.aio.AioRpcError) -> KubeletUnavailable:
        """Call `failed`, and return the failure of a call as one line with the remedy."""
        self.failed()
        remedy = "wait until kubelet is up, or give the directory of its pod-resources socket"
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            remedy = (
                "something else on the node asks it all the time, find out what; "
                f"it was tried for {PATIENCE_S[error.code()]:g} s"
            )
        text = f"kubelet does not say on {self._socket} which container holds the units"
        return KubeletUnavailable(f"{text}: {error.code().name}: {error.details()}: {remedy}")
