"""A node: its kubelet and API server are doubles, its agent and its device plugin are real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from rig.cluster.apiserver import ApiServer, pod
from rig.cluster.kubelet import FakeKubelet
from rig.until import eventually
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from rig.cluster.kubelet_pods import FakePod


class PluginNode:
    """The parts of such a node. Start it with `plugin_node`."""

    def __init__(self, directory: Path, devices: str, metrics: Sequence[str], spare_percent: int) -> None:
        self.directory = directory
        self.simulated = devices
        self.metrics = metrics
        """The agent's flags about metrics."""
        self.runtime = directory / "run"
        self.cdi = directory / "cdi"
        self.state = directory / "state"
        self.flags: list[str] = []
        """More flags of the plugin."""
        self.spare_percent = spare_percent
        self.offer: list[str] = []
        """UUIDs of the offered devices; empty: all."""
        self.api = ApiServer()
        self.runs("v1.36.2", "containerd://2.1.9+unknown")
        self.kubelet = FakeKubelet(directory / "kubelet")
        self.agent: asyncio.subprocess.Process | None = None
        self.plugin: asyncio.subprocess.Process | None = None

    def runs(self, kubelet: str, container_runtime: str) -> None:
        """Let the API server show the node with these versions."""
        info = {"kubeletVersion": kubelet, "containerRuntimeVersion": container_runtime}
        self.api.put_node({"metadata": {"name": "n1"}, "status": {"nodeInfo": info}})

    async def start_agent(self) -> None:
        """Start the agent and wait until it listens."""
        arguments = ["--runtime-directory", str(self.runtime), "--simulate", self.simulated, *self.metrics]
        self.agent = await self._spawn("sharepod.agent.main", arguments, "agent.log")
        await eventually(lambda: (self.runtime / "agent.sock").exists(), self.log)

    def plugin_arguments(self) -> list[str]:
        kubeconfig = self.api.kubeconfig(self.directory / "kubeconfig")
        given = {
            "node-name": "n1", "agent-socket": self.runtime / "agent.sock", "state-directory": self.state,
            "kubelet-directory": self.directory / "kubelet", "cdi-directory": self.cdi,
            "kubeconfig": kubeconfig, "log-format": "text", "offer": ",".join(self.offer),
            "spare-percent": self.spare_percent,
        }  # fmt: skip
        return [word for name, value in given.items() for word in (f"--{name}", str(value))] + self.flags

    async def start_plugin(self, units: int | None = None) -> None:
        """Start the plugin, and wait until kubelet can give out `units`.

        By default those are the units of all devices: 100 for each, and `spare_percent` more.
        """
        self.plugin = await self.spawn_plugin()
        await self.kubelet.registered()
        if units is None:
            devices = sum(int(kind.partition("x")[0]) for kind in self.simulated.split(","))
            units = (100 + self.spare_percent) * devices
        await eventually(lambda: self.kubelet.allocatable == units, self.log)

    async def spawn_plugin(self) -> asyncio.subprocess.Process:
        """Start a plugin, and return its process at once."""
        return await self._spawn("sharepod.deviceplugin.main", self.plugin_arguments(), "plugin.log")

    async def _spawn(self, module: str, arguments: list[str], log: str) -> asyncio.subprocess.Process:
        """Start a module of ours as a process. Its stderr goes to the file `log` of the directory."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SHAREPOD_")}
        # A killed Kubernetes client leaves copies of certificates in its temporary directory.
        environment |= {"SIMGPU_STATE": str(self.directory / "gpus" / "state"), "TMPDIR": str(self.directory)}
        with (self.directory / log).open("a") as file:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *arguments, stderr=file, env=environment
            )

    async def end(self, process: asyncio.subprocess.Process | None, number: int = signal.SIGTERM) -> None:
        """End a process with a signal, if there is one that runs, and wait for its end."""
        if process is not None and process.returncode is None:
            process.send_signal(number)
            await process.wait()

    def log(self) -> str:
        """Return the logs of all processes, one after another."""
        return "".join(path.read_text() for path in sorted(self.directory.glob("*.log")))

    async def admit(self, name: str, containers: Mapping[str, int], **more: Any) -> FakePod:
        """Let kubelet admit a pod, and the API server show it. `more`: its `annotations`, and options of `admit`."""
        annotations = more.pop("annotations", {})
        admitted = await self.kubelet.admit("default", name, containers, **more)
        self.show(admitted, annotations)
        return admitted

    def show(
        self, shown: FakePod, annotations: Mapping[str, str], phase: str = "Running", *, status: bool = False
    ) -> None:
        """Let the API server show the pod with these annotations and this phase.

        By default the API server is as far behind as it can be, and shows no container's state. `status`: it does.
        """
        body = pod(shown.name, shown.uid, annotations=dict(annotations), phase=phase)
        for key, kinds in (("containers", ("app",)), ("initContainers", ("init", "sidecar"))):
            body["spec"][key] = [
                {
                    "name": name,
                    "resources": {"limits": {"sharepod.io/gpu": str(item.size)}},
                    **({"restartPolicy": "Always"} if item.kind == "sidecar" else {}),
                }
                for name, item in shown.containers.items()
                if item.kind in kinds
            ]
        if status:
            body["status"]["containerStatuses"] = [
                {"name": name, "state": {"running": {}}}
                for name, item in shown.containers.items()
                if item.kind == "app" and item.running
            ]
            body["status"]["initContainerStatuses"] = [
                {"name": name, "state": {"running": {}} if item.running else {"terminated": {"exitCode": 0}}}
                for name, item in shown.containers.items()
                if item.kind == "init" and item.starts
            ]
        self.api.put(body)

    async def shares(self) -> dict[str, pb.Share]:
        """Return the agent's shares by `pod/container`."""
        async with grpc.aio.insecure_channel(f"unix:{self.runtime}/agent.sock") as channel:
            stub: rpc.NodeServiceAsyncStub = rpc.NodeServiceStub(channel)
            answer = await stub.ListShares(pb.ListSharesRequest(), timeout=10, wait_for_ready=True)
        return {f"{share.labels['pod']}/{share.labels['container']}": share for share in answer.shares}

    async def devices(self) -> list[str]:
        """Return the UUIDs of the node's devices."""
        async with grpc.aio.insecure_channel(f"unix:{self.runtime}/agent.sock") as channel:
            stub: rpc.NodeServiceAsyncStub = rpc.NodeServiceStub(channel)
            answer = await stub.GetNode(pb.GetNodeRequest(), timeout=10, wait_for_ready=True)
        return [device.uuid for device in answer.devices]

    def cdi_edits(self, share_id: str) -> dict[str, Any]:
        """Return what the CDI file of a share changes in a container."""
        (path,) = self.cdi.glob(f"*{share_id}*.json")
        edits: dict[str, Any] = json.loads(path.read_text())["devices"][0]["containerEdits"]
        return edits

    def events(self, name: str) -> list[str]:
        """Return `reason: message` of the pod's events."""
        found = [body for body in self.api.events.values() if body["involvedObject"]["name"] == name]
        return [f"{body['reason']}: {body['message']}" for body in found]


@contextlib.asynccontextmanager
async def plugin_node(
    devices: str = "2xH200", metrics: Sequence[str] = ("--metrics-listen", "off"), spare_percent: int = 0
) -> AsyncIterator[PluginNode]:
    """Start a node with simulated devices. At the end nothing of it is left."""
    directory = Path(tempfile.mkdtemp(prefix="sharepod-test-", dir="/dev/shm"))
    (directory / "gpus").mkdir()
    node = PluginNode(directory, devices, metrics, spare_percent)
    try:
        async with node.api, node.kubelet:
            try:
                await node.start_agent()
                await node.start_plugin()
                yield node
            finally:
                await node.end(node.plugin)
                await node.end(node.agent)
    finally:
        shutil.rmtree(directory)
