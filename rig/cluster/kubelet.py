"""A double of kubelet: registration, admission, starts of containers, checkpoint, pod-resources.

It behaves as kubelet 1.36 was seen to behave::

    async with FakeKubelet(directory) as kubelet:
        ...                                     # the plugin registers in kubelet.plugins
        await kubelet.registered()
        pod = await kubelet.admit("default", "trainer", {"train": 30}, init={"fetch": 30})
        await kubelet.start(pod, "fetch")       # PreStartContainer, then the container runs
        kubelet.end(pod, "fetch")
        started = await kubelet.start(pod, "train", patience_s=20)
        await kubelet.restart(pod, "train")     # no Allocate; the answer is replayed
        await kubelet.relaunch()                # its directory is emptied, its pods go on

It contains no API server, and no program runs in its containers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import re
import socket
from typing import TYPE_CHECKING
from uuid import UUID

import grpc

from rig.cluster.kubelet_endpoint import CallFailed, Endpoint
from rig.cluster.kubelet_pods import AdmissionFailed, FakeContainer, FakePod, Kind, StartFailed
from rig.cluster.kubelet_services import PodResources, Registry
from rig.until import eventually
from sharepod.proto import deviceplugin_pb2 as pb
from sharepod.proto import deviceplugin_pb2_grpc as rpc
from sharepod.proto import podresources_pb2 as pods_pb
from sharepod.proto import podresources_pb2_grpc as pods_rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path
    from typing import Any, Self

CHECKPOINT = "kubelet_internal_checkpoint"
PRE_START_TIMEOUT_S = 30.0
RETRY_S = 0.2
"""Short for tests: kubelet's own second try comes after 0.2–0.9 s, later ones after up to 15 s."""


def leave_dead_socket(path: Path) -> None:
    """Make a socket on which no process listens, as a killed process leaves it."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


class FakeKubelet:
    """A kubelet with plugins that serve one resource. `rate` and `burst` limit the calls of pod-resources."""

    def __init__(
        self,
        directory: Path,
        *,
        rate: float = 100.0,
        burst: int = 10,
    ) -> None:
        self.plugins = directory / "device-plugins"
        self.socket = self.plugins / "kubelet.sock"
        self.pod_resources = directory / "pod-resources" / "kubelet.sock"
        self.resource = "sharepod.io/gpu"
        self.pods: dict[str, FakePod] = {}
        self.endpoint: Endpoint | None = None
        self.registrations: list[pb.RegisterRequest] = []
        self.refusal = ""
        """The error with which Register is answered, if any."""
        self.others: dict[str, list[str]] = {}
        """By resource: ids of other plugins' devices that no pod holds."""
        self.others_held: dict[str, list[str]] = {}
        """By resource: ids of other plugins' devices that a pod holds."""
        self.lists = 0
        """How many times pod-resources answered."""
        self.rate, self.burst = rate, burst
        self._random = random.Random(0)
        self._choosing = asyncio.Lock()
        self._servers: list[grpc.aio.Server] = []

    # Its start and end

    async def __aenter__(self) -> Self:
        self.plugins.mkdir(parents=True, exist_ok=True)
        self.pod_resources.parent.mkdir(parents=True, exist_ok=True)
        await self.launch()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut_down()

    async def launch(self) -> None:
        """Start: read the checkpoint, empty the directory, serve."""
        self._read_checkpoint()
        for path in self.plugins.iterdir():
            if path.name != CHECKPOINT and not path.is_dir():
                path.unlink()
        serving: tuple[tuple[Path, Callable[[Any, grpc.aio.Server], None], object], ...] = (
            (self.pod_resources, pods_rpc.add_PodResourcesListerServicer_to_server, PodResources(self)),
            (self.socket, rpc.add_RegistrationServicer_to_server, Registry(self)),
        )
        for path, add, servicer in serving:
            path.unlink(missing_ok=True)
            server = grpc.aio.server()
            add(servicer, server)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)

    async def shut_down(self) -> None:
        """Shut down. Containers go on running, and the plugins' sockets stay."""
        endpoint, self.endpoint = self.endpoint, None
        if endpoint:
            await endpoint.stop()
        await asyncio.gather(*(server.stop(None) for server in self._servers))
        self._servers.clear()

    async def relaunch(self) -> None:
        """Restart, without the plugins. Wait with `registered` for them."""
        async with self.away():
            pass

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Be down for a while. The socket's file stays, as after a kill."""
        await self.shut_down()
        self.socket.unlink(missing_ok=True)
        leave_dead_socket(self.socket)
        yield
        await self.launch()

    # Its plugins

    async def registered(self, timeout_s: float = 30) -> Endpoint:
        """Wait until a plugin is registered and has sent its units."""

        def is_there() -> bool:
            return bool(self.endpoint and self.endpoint.lists and not self.endpoint.stopped)

        await eventually(is_there, "registered", timeout_s)
        assert self.endpoint
        return self.endpoint

    @property
    def capacity(self) -> int:
        """The number of units, also of unhealthy ones."""
        return len(self.endpoint.devices) if self.endpoint else 0

    @property
    def allocatable(self) -> int:
        return len(self.healthy)

    @property
    def healthy(self) -> set[str]:
        """The ids of the healthy units."""
        return {name for name, healthy in self.endpoint.devices.items() if healthy} if self.endpoint else set()

    async def adopt(self, request: pb.RegisterRequest) -> None:
        """Connect to a plugin that registers. It replaces the previous one.

        Raises ValueError, TimeoutError, grpc.aio.AioRpcError.
        """
        self.registrations.append(request)
        if self.refusal:
            raise ValueError(self.refusal)
        if request.version != "v1beta1":
            raise ValueError(f"requested API version {request.version!r} is not supported by kubelet")
        if request.resource_name != self.resource or not re.fullmatch(r"[^/]+\.[^/]+/[^/]+", request.resource_name):
            raise ValueError(f"the ResourceName {request.resource_name!r} is invalid")
        endpoint = Endpoint(self.plugins / request.endpoint)
        try:
            endpoint.options = request.options
            await endpoint.connect()
        except BaseException:
            await endpoint.stop()
            raise
        before, self.endpoint = self.endpoint, endpoint
        if before:
            await before.stop()
        endpoint.watch()

    # Its pods

    async def admit(
        self,
        namespace: str,
        name: str,
        containers: Mapping[str, int],
        *,
        init: Mapping[str, int] | None = None,
        sidecars: Mapping[str, int] | None = None,
        uid: str = "",
    ) -> FakePod:
        """Admit a pod: call Allocate for each container that asks for units. Raises AdmissionFailed."""
        kinds: tuple[tuple[Kind, Mapping[str, int] | None], ...]
        kinds = (("init", init), ("sidecar", sidecars), ("app", containers))
        made = {key: FakeContainer(key, kind, size) for kind, some in kinds for key, size in (some or {}).items()}
        pod = FakePod(namespace, name, uid or str(UUID(int=self._random.getrandbits(128))), made)
        self.pods[pod.uid] = pod
        try:
            for container in made.values():
                if container.size:
                    await self._allocate(pod, container)
        except AdmissionFailed as error:
            self._fail(pod, str(error))
            raise
        pod.admitted = True
        return pod

    async def start(self, pod: FakePod, name: str, *, patience_s: float = 0) -> FakeContainer:
        """Start a container; try again for `patience_s`. Raises StartFailed, or AdmissionFailed if it never can."""
        container = pod.containers[name]
        assert pod.admitted, f"{pod.name} is not admitted"
        assert pod.active, f"{pod.name} has ended"
        assert not container.running, f"{name} runs"
        deadline_s = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                await self._pre_start(pod, container)
                break
            except StartFailed as error:
                container.message = str(error)
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
            await asyncio.sleep(RETRY_S)
        container.message, container.running, container.starts = "", True, container.starts + 1
        pod.phase = "Running" if container.kind == "app" else pod.phase
        return container

    def end(self, pod: FakePod, name: str) -> None:
        """Let a container end. The pod keeps its units."""
        pod.containers[name].running = False

    async def restart(self, pod: FakePod, name: str, *, patience_s: float = 0) -> FakeContainer:
        """Restart a container: the same ids, no Allocate."""
        self.end(pod, name)
        return await self.start(pod, name, patience_s=patience_s)

    def finish(self, pod: FakePod) -> None:
        """Let a pod succeed. Its units are free then."""
        for name in pod.containers:
            self.end(pod, name)
        pod.phase = "Succeeded"
        self._write_checkpoint()

    def delete(self, pod: FakePod) -> None:
        """Forget a pod. Its units are free at once, even if some of it still runs."""
        del self.pods[pod.uid]
        self._write_checkpoint()

    def ids_in_use(self) -> set[str]:
        """Return the ids of the units that pods hold, except pods that have ended."""
        pods = [pod for pod in self.pods.values() if pod.active]
        return {name for pod in pods for container in pod.containers.values() for name in container.ids}

    def listed(self) -> list[pods_pb.PodResources]:
        """Return the present answer of pod-resources: sidecars and app containers, with devices of admitted pods."""
        pods = [pod for pod in self.pods.values() if pod.active]
        held = [pods_pb.ContainerDevices(resource_name=key, device_ids=ids) for key, ids in self.others_held.items()]
        other = pods_pb.PodResources(
            name="other", namespace="default", containers=[pods_pb.ContainerResources(name="main", devices=held)]
        )
        return [other] * bool(held) + [
            pods_pb.PodResources(
                name=pod.name,
                namespace=pod.namespace,
                containers=[
                    pods_pb.ContainerResources(name=container.name, devices=self._entries(pod, container))
                    for container in pod.containers.values()
                    if container.kind != "init"
                ],
            )
            for pod in pods
        ]

    def _entries(self, pod: FakePod, container: FakeContainer) -> list[pods_pb.ContainerDevices]:
        """Return a container's units in the form of pod-resources; none if its pod is not admitted or has ended."""
        ids = container.ids if pod.admitted and pod.active else []
        return [pods_pb.ContainerDevices(resource_name=self.resource, device_ids=[name]) for name in ids]

    def _fail(self, pod: FakePod, message: str) -> None:
        """Let the pod fail for good. Its units are free then."""
        for container in pod.containers.values():
            container.ids = []
        pod.phase, pod.reason, pod.message = "Failed", "UnexpectedAdmissionError", message
        self._write_checkpoint()

    async def _allocate(self, pod: FakePod, container: FakeContainer) -> None:
        """Choose units for a container and call Allocate for them. Raises AdmissionFailed."""
        # One at a time: kubelet holds its lock while it chooses, and admits one pod after the other.
        async with self._choosing:
            container.ids = await self._choose(pod, container)
        endpoint = self._live_endpoint()
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=container.ids)])
        try:
            response = await endpoint.call(endpoint.stub.Allocate(request))
        except CallFailed as error:
            raise AdmissionFailed(self._unexpected(str(error))) from None
        assert len(response.container_responses) == 1
        container.response = response.container_responses[0]
        self._write_checkpoint()

    async def _choose(self, pod: FakePod, container: FakeContainer) -> list[str]:
        """Choose ids: first those of the pod's init containers, then as the plugin advises. Raises AdmissionFailed.

        Ids of init containers are used again if no sidecar or app container has them. The order of the ids has no
        meaning, so it is random.
        """
        endpoint = self._live_endpoint()
        if not self.healthy:
            raise AdmissionFailed(self._unexpected(f"no healthy devices present; cannot allocate {self.resource}"))
        siblings = list(pod.containers.values())
        reusable = {name for other in siblings if other.kind == "init" for name in other.ids}
        reusable -= {name for other in siblings if other.kind != "init" for name in other.ids}
        reused = self._shuffled(reusable)[: container.size]
        missing = container.size - len(reused)
        if not missing:
            return reused
        available = self.healthy - self.ids_in_use()
        if len(available) < missing:
            counts = f"Requested: {missing}, Available: {len(available)}"
            raise AdmissionFailed(
                self._unexpected(f"requested number of devices unavailable for {self.resource}. {counts}")
            )
        preferred: list[str] = []
        if endpoint.options.get_preferred_allocation_available:
            ask = pb.ContainerPreferredAllocationRequest(
                available_device_ids=self._shuffled(available | set(reused)),
                must_include_device_ids=reused,
                allocation_size=container.size,
            )
            request = pb.PreferredAllocationRequest(container_requests=[ask])
            try:
                answer = await endpoint.call(endpoint.stub.GetPreferredAllocation(request))
            except CallFailed as error:
                raise AdmissionFailed(self._unexpected(str(error))) from None
            preferred = list(answer.container_responses[0].device_ids)
        advised = [name for name in preferred if name in available and name not in reused]
        others = self._shuffled(available - set(advised))
        return self._shuffled({*reused, *(advised + others)[:missing]})

    async def _pre_start(self, pod: FakePod, container: FakeContainer) -> None:
        """Call PreStartContainer if the container has units and the plugin asks for that call.

        Raises StartFailed, and AdmissionFailed if there is no plugin and the container never ran.
        """
        container.pre_started = False
        if not container.ids:
            return
        endpoint = self.endpoint
        if not endpoint and not container.starts:
            # After its restart kubelet admits containers again that do not run yet.
            self._fail(pod, self._unexpected(f"no healthy devices present; cannot allocate {self.resource}"))
            raise AdmissionFailed(pod.message)
        if not endpoint or not endpoint.options.pre_start_required:
            return  # kubelet does not know yet that the plugin wants PreStartContainer
        if endpoint.stopped:
            raise StartFailed(f"endpoint for {self.resource} has been stopped")
        request = pb.PreStartContainerRequest(devices_ids=self._shuffled(set(container.ids)))
        try:
            await endpoint.call(endpoint.stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_S))
        except CallFailed as error:
            raise StartFailed(str(error)) from None
        container.pre_started = True

    def _live_endpoint(self) -> Endpoint:
        """Return the registered plugin. Raises AdmissionFailed if there is none."""
        if not self.endpoint:
            raise AdmissionFailed(self._unexpected(f"cannot allocate unregistered device {self.resource}"))
        return self.endpoint

    def _unexpected(self, cause: str) -> str:
        """Return kubelet's message for a pod that is not admitted."""
        return f"Allocate failed due to {cause}, which is unexpected"

    def _shuffled(self, ids: set[str]) -> list[str]:
        """Return ids in a random order, drawn from a fixed seed."""
        return self._random.sample(sorted(ids), len(ids))

    # Its checkpoint

    def _write_checkpoint(self) -> None:
        """Write which units each container holds and what Allocate answered, as kubelet does for its next start."""
        entries = [
            {
                "PodUID": pod.uid, "ContainerName": container.name, "ResourceName": self.resource,
                "DeviceIDs": {"-1": container.ids}, "AllocResp": _encoded(container.response),
            }
            for pod in self.pods.values()
            if pod.active
            for container in pod.containers.values()
            if container.response
        ]  # fmt: skip
        content = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0}
        (self.plugins / CHECKPOINT).write_text(json.dumps(content))

    def _read_checkpoint(self) -> None:
        """Take over the ids and answers of the checkpoint, and no others: a new kubelet knows no more."""
        for pod in self.pods.values():
            for container in pod.containers.values():
                container.ids, container.response = [], None
        with contextlib.suppress(FileNotFoundError):
            for entry in json.loads((self.plugins / CHECKPOINT).read_text())["Data"]["PodDeviceEntries"]:
                container = self.pods[entry["PodUID"]].containers[entry["ContainerName"]]
                container.ids = entry["DeviceIDs"]["-1"]
                container.response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))


def _encoded(response: pb.ContainerAllocateResponse | None) -> str:
    """Return an answer of Allocate as it is written into the checkpoint."""
    return base64.b64encode(response.SerializeToString() if response else b"").decode()
