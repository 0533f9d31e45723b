"""Runs scheduler replicas on a double of the API server; the test plays kubelet, other schedulers and the agents."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from cluster_world import Agent, node_body, pod_body

from rig.cluster.apiserver import ApiServer
from rig.until import eventually
from sharepod.kube.client import Client
from sharepod.kube.event_writer import EventWriter
from sharepod.kube.informer import Pace
from sharepod.kube.lease import Lease
from sharepod.scheduler.controller.action_writer import ActionWriter
from sharepod.scheduler.controller.exit_status import ExitStatuses
from sharepod.scheduler.controller.gate_controller import GateController
from sharepod.scheduler.explain.pending_status import turn_of
from sharepod.scheduler.explain.queue_view import view
from sharepod.scheduler.explain.status_server import StatusServer
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.observer import Observer
from sharepod.scheduler.state.usage import Report, UsageBook

RULES = "sharepod/sharepod-gates-queues"


class Replica:
    """The parts of one scheduler process; `report` puts the agents' reports into its book."""

    def __init__(self, server: ApiServer, directory: Path, name: str, *, lease: str, unix: Callable[[], float]) -> None:
        self.api = Client(server.access(directory), "sharepod-scheduler")
        self.events = EventWriter(self.api, name, "sharepod-scheduler", 0.01)
        self.cluster, self.book = Cluster(), UsageBook()
        self.observer = Observer(
            self.api, self.cluster, self.book, resource="sharepod.io/gpu",
            pace=Pace(0.01, 0.1, 20), domains=("rack",),
        )  # fmt: skip
        self.lease = Lease(self.api, namespace="sharepod", name=lease, holder=name)
        self.writer = ActionWriter(self.api, self.cluster, self.events)
        self.keeper = GateController(
            self.cluster, self.writer, self.lease, lambda: "" if self.observer.listed else "it starts", unix=unix
        )
        self.status = StatusServer(
            self.cluster, not_ready=self.not_ready,
            queue=lambda now_s: view(
                self.keeper.state, self.keeper.queues, self.lease, now_s, refusal=self.keeper.refusal
            ),
            turn=lambda pod, now_s: turn_of(
                self.cluster, self.keeper.state, self.keeper.queues, pod, now_s, decides=self.lease.is_held()
            ),
        )  # fmt: skip
        self.url = ""
        """The URL of its status server."""
        self._tasks: list[asyncio.Task[None]] = []

    def not_ready(self) -> str:
        return self.observer.not_ready(time.monotonic())

    async def __aenter__(self) -> Self:
        await self.api.__aenter__()
        await self.events.__aenter__()
        self.url = f"http://127.0.0.1:{await self.status.start('127.0.0.1:0', None)}"
        works = (
            self.observer.follow_pods(), self.observer.follow_nodes(), self.lease.keep_for_ever(),
            self.keeper.decide_for_ever(), self.keeper.follow_rules(self.api, RULES),
            ExitStatuses(self.api, self.keeper.state.restarts, self.lease).ask_for_ever(),
        )  # fmt: skip
        self._tasks = [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        await self.status.stop()
        await self.lease.give_up()
        await self.events.__aexit__(None, None, None)
        await self.api.__aexit__(None, None, None)

    async def kill(self) -> None:
        """End its work as if the process were killed: its lease is not given up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.writer.stop()

    async def report(self, agents: dict[str, Agent]) -> None:
        """Let agents report all that they know, and the replica's view take it over."""
        for name, agent in agents.items():
            use = agent.use()
            assert use is not None
            held = [(device.facts.index, share) for device in use.devices for share in device.shares]
            report = Report(
                use.facts, tuple(device.facts for device in use.devices),
                shares=tuple((index, share.terms) for index, share in held),
                share_numbers=tuple((share.terms.id, index, share.used_1m_millipercent, 0) for index, share in held),
            )  # fmt: skip
            self.book.apply(name, report, time.monotonic())
        await self.observer.take_usage(time.monotonic())

    def runs(self, *names: str) -> bool:
        """Tell whether the replica sees that these pods run."""
        return {pod.name for pod in self.cluster.pods() if pod.running} >= set(names)


class World:
    """The API server, nodes with agents that report, and the actions of kubelet and kube-scheduler."""

    def __init__(self, directory: Path, **devices: int) -> None:
        """`devices`: by name, how many devices each of the first nodes has."""
        self.directory = directory
        self.server = ApiServer()
        self.server.put_namespace("sharepod")
        self.server.registry.deletion.kubelet_s = 0.0
        self.agents: dict[str, Agent] = {}
        for name, count in devices.items():
            self.add_node(name, count)

    async def __aenter__(self) -> Self:
        await self.server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.server.__aexit__(*error)

    def put_rules(self, text: str) -> None:
        """Put the rules of queues into their ConfigMap."""
        self.server.put_config_map(*RULES.split("/"), {"queues.yaml": text})

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
            await replica.report(self.agents)
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
        """Return the node that a released pod was sent to; its annotations and node selector must agree on it."""
        body = self.body(name)
        node = str(body["metadata"]["annotations"]["sharepod.io/node"])
        assert body["spec"]["nodeSelector"] == {"kubernetes.io/hostname": f"host-{node}"}
        assert all(uuid.startswith(f"GPU-{node}-") for uuid in self.devices_of(name))
        return node

    def devices_of(self, name: str) -> list[str]:
        return str(self.body(name)["metadata"]["annotations"]["sharepod.io/device"]).split(",")

    def run(self, name: str) -> None:
        """Bind and run a released pod, as kube-scheduler and kubelet do."""
        body = self.body(name)
        body["spec"] |= {"nodeName": self.node_of(name), "schedulingGates": []}
        body["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.server.put(body)

    async def run_released(self, *names: str) -> None:
        """Wait until each pod is released, and run it."""
        for name in names:
            await eventually(lambda name=name: self.is_released(name), f"{name} is not released")  # type: ignore[misc]
            self.run(name)

    def bind(self, name: str, device: str, *, runs_s: float | None = None) -> None:
        """Put a pod on a device as if released before any replica started; `runs_s`: how long it has run."""
        body = self.body(name)
        node = device.split("-")[1]
        body["spec"] |= {"nodeName": node, "schedulingGates": []}
        body["metadata"]["annotations"] |= {"sharepod.io/device": device, "sharepod.io/node": node}
        if runs_s is not None:
            body["status"] = {"phase": "Running", "startTime": stamp(runs_s)}
        self.server.put(body)

    def guard(self, name: str) -> None:
        """Protect a pod from eviction by a disruption budget."""
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
    """Return the time `ago_s` before now as the API server writes it."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
