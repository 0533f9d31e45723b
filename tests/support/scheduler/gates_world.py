"""A controller with an API server's double: what kubelet and schedulers would do is the test's, and what agents say."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from cluster_world import Agent, node_body, pod_body

from rig.cluster.apiserver import ApiServer
from sharepod.kube.client import Client
from sharepod.kube.event_writer import EventWriter
from sharepod.kube.informer import Pace
from sharepod.kube.lease import Lease
from sharepod.scheduler.cluster import Cluster
from sharepod.scheduler.endings import Endings
from sharepod.scheduler.gatekeeper import Gatekeeper
from sharepod.scheduler.observer import Observer
from sharepod.scheduler.order_writer import OrderWriter
from sharepod.scheduler.usage import UsageBook

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

PATIENCE_S = 20.0
RULES = "sharepod/sharepod-gates-queues"


class Replica:
    """One controller; its agents' reports are put straight into its view."""

    def __init__(self, server: ApiServer, directory: Path, name: str, *, lease: str, unix: Callable[[], float]) -> None:
        self.api = Client(server.access(directory), "sharepod-scheduler")
        self.events = EventWriter(self.api, name, "sharepod-scheduler", 0.01)
        self.cluster = Cluster()
        self.observer = Observer(
            self.api, self.cluster, UsageBook(), resource="sharepod.io/gpu",
            pace=Pace(0.01, 0.1, 20), domains=("rack",),
        )  # fmt: skip
        self.lease = Lease(self.api, namespace="sharepod", name=lease, holder=name)
        self.writer = OrderWriter(self.api, self.cluster, self.events)
        self.keeper = Gatekeeper(
            self.cluster, self.writer, self.lease, lambda: "" if self.observer.listed else "it starts", unix=unix
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.api.__aenter__()
        await self.events.__aenter__()
        works = (
            self.observer.follow_pods(), self.observer.follow_nodes(), self.lease.keep_for_ever(),
            self.keeper.decide_for_ever(), self.keeper.follow_rules(self.api, RULES),
            Endings(self.api, self.keeper.memory.restarts, self.lease).ask_for_ever(),
        )  # fmt: skip
        self._tasks = [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        await self.lease.give_up()
        await self.events.__aexit__(None, None, None)
        await self.api.__aexit__(None, None, None)

    async def kill(self) -> None:
        """End its work as if it were killed: its lease stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.writer.stop()

    def report(self, agents: dict[str, Agent]) -> None:
        for name, agent in agents.items():
            self.cluster.set_use(name, agent.use())


class World:
    """The API server, nodes whose agents report, and what kubelet and schedulers would do."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = ApiServer()
        self.server.put_namespace("sharepod")
        self.server.registry.deletion.kubelet_s = 0.0
        self.agents: dict[str, Agent] = {}
        self.replicas: list[Replica] = []

    def add_node(self, name: str, devices: int, rack: str = "") -> None:
        body = node_body(name, devices)
        body["metadata"]["labels"] = {"kubernetes.io/hostname": f"host-{name}", "rack": rack}
        body["status"]["allocatable"]["sharepod.io/gpu"] = str(200 * devices)
        self.server.put_node(body)
        self.agents[name] = Agent(name, devices)

    @contextlib.asynccontextmanager
    async def replica(
        self, name: str = "one", *, lease: str = "leader", unix: Callable[[], float] = time.time
    ) -> AsyncIterator[Replica]:
        directory = self.directory / "account"
        async with Replica(self.server, directory, name, lease=lease, unix=unix) as replica:
            replica.report(self.agents)
            self.replicas.append(replica)
            yield replica

    def create(
        self,
        name: str,
        units: int,
        priority: int = 0,
        *,
        gated: bool = True,
        ago_s: float = 0.0,
        uid: str = "",
        **annotations: str,
    ) -> None:
        body = pod_body(
            name, units, {f"sharepod.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
        )
        body["metadata"] |= {"creationTimestamp": stamp(ago_s), "uid": uid or f"uid-{name}"}
        body["spec"]["priority"] = priority
        body["spec"]["schedulingGates"] = [{"name": "sharepod.io/gate"}] if gated else []
        self.server.put(body)

    def body(self, name: str) -> dict[str, Any]:
        return self.server.pods["default", name]

    def is_released(self, name: str) -> bool:
        return not self.body(name)["spec"]["schedulingGates"]

    def node_of(self, name: str) -> str:
        """Return where a released pod was sent; all that says so has to agree."""
        body = self.body(name)
        node = str(body["metadata"]["annotations"]["sharepod.io/node"])
        assert body["spec"]["nodeSelector"] == {"kubernetes.io/hostname": f"host-{node}"}
        assert all(uuid.startswith(f"GPU-{node}-") for uuid in self.devices_of(name))
        return node

    def devices_of(self, name: str) -> list[str]:
        return str(self.body(name)["metadata"]["annotations"]["sharepod.io/device"]).split(",")

    def run(self, name: str) -> None:
        """Do what a scheduler and kubelet do with a released pod."""
        body = self.body(name)
        body["spec"] |= {"nodeName": self.node_of(name), "schedulingGates": []}
        body["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.server.put(body)

    def bind(self, name: str, device: str, *, runs_s: float | None = None) -> None:
        """Have a pod on a device as if it had been released before any replica was there; `runs_s`: for how long."""
        body = self.body(name)
        node = device.split("-")[1]
        body["spec"] |= {"nodeName": node, "schedulingGates": []}
        body["metadata"]["annotations"] |= {"sharepod.io/device": device, "sharepod.io/node": node}
        if runs_s is not None:
            body["status"] = {"phase": "Running", "startTime": stamp(runs_s)}
        self.server.put(body)

    def end(self, name: str, phase: str, **status: Any) -> None:
        """Let a pod's containers end, as kubelet tells it."""
        body = self.body(name)
        body["status"] = {"phase": phase, **status}
        self.server.put(body)

    def guard(self, name: str) -> None:
        """Have a disruption budget keep a pod from being evicted."""
        body = self.body(name)
        body["metadata"]["labels"] = {"guarded": "yes"}
        self.server.put(body)
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"guarded": "yes"}}}
        metadata = {"name": "budget", "namespace": "default"}
        self.server.put_object("poddisruptionbudgets", {"metadata": metadata, "spec": spec})

    def yields(self, name: str) -> str:
        return str(self.body(name)["metadata"]["annotations"].get("sharepod.io/yield", ""))

    def told(self, name: str) -> set[str]:
        return {event["reason"] for event in self.events(name)}

    def events(self, name: str, reason: str = "") -> list[dict[str, Any]]:
        events = [event for event in self.server.events.values() if event["involvedObject"]["name"] == name]
        return [event for event in events if reason in ("", event["reason"])]

    def said(self, name: str, reason: str) -> str:
        return "; ".join(str(event["message"]) for event in self.events(name, reason))


def stamp(ago_s: float) -> str:
    """Return a time as the API server writes it."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def in_world(directory: Path, test: Callable[[World], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        world = World(directory)
        async with world.server, asyncio.timeout(100):
            await test(world)

    asyncio.run(run())
