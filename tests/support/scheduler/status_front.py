"""One replica's status server in this process, with an API server's double and agents that a test tells."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from cluster_world import Agent, node_body, read

from rig.cluster.apiserver import ApiServer
from rig.until import eventually
from sharepod.kube.client import Client
from sharepod.kube.informer import Pace
from sharepod.scheduler.cluster import Cluster
from sharepod.scheduler.observer import Observer
from sharepod.scheduler.placing import Placer
from sharepod.scheduler.pod import NODE, device_annotations
from sharepod.scheduler.status_server import StatusServer
from sharepod.scheduler.usage import Report, UsageBook

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

RESOURCE = "sharepod.io/gpu"


class Front:
    """One replica in this process, the API server's double, and agents that are told by the test."""

    def __init__(self, directory: Path, server: ApiServer) -> None:
        self.server = server
        self.cluster, self.book = Cluster(), UsageBook()
        self.api = Client(server.access(directory), "sharepod-scheduler")
        self.observer = Observer(self.api, self.cluster, self.book, resource=RESOURCE, pace=Pace(0.01, 0.1, 20))
        self.queue: Callable[[float], dict[str, object]] = lambda _: {}
        self.status = StatusServer(
            self.cluster, not_ready=lambda: self.observer.not_ready(time.monotonic()),
            queue=lambda now_s: self.queue(now_s), turn=lambda *_: None,
        )  # fmt: skip
        self.agents: dict[str, Agent] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.api.__aenter__()
        self.port = await self.status.start("127.0.0.1:0", None)
        works = (self.observer.follow_pods(), self.observer.follow_nodes(), self.observer.follow_usage())
        self._tasks = [asyncio.create_task(work) for work in works]
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()
        await self.status.stop()
        await self.api.__aexit__(None, None, None)

    def node(self, name: str, devices: int = 2) -> None:
        """Let a node join, its agent report."""
        self.agents[name] = Agent(name, devices)
        self.server.put_node(node_body(name, devices))
        self.report(name)

    def report(self, name: str) -> None:
        use = self.agents[name].use()
        assert use is not None
        report = Report(
            use.facts,
            tuple(device.facts for device in use.devices),
            shares=tuple((device.facts.index, share.terms) for device in use.devices for share in device.shares),
        )
        self.book.apply(name, report, time.monotonic())

    def schedule(self, body: dict[str, Any]) -> str:
        """Find a pod a place as a round does, and have it released and bound there. Returns its node, or nothing."""
        found = Placer(self.cluster, time.monotonic()).place([read(body)])
        if found is None:
            return ""
        [place] = found
        bound = copy.deepcopy(body)
        bound["metadata"]["annotations"] |= {NODE: place.node} | device_annotations(place.pod, place.devices)
        bound["spec"]["nodeName"] = place.node
        self.server.put(bound)
        return place.node

    def device(self, name: str) -> str:
        return str(self.server.pods["default", name]["metadata"]["annotations"]["sharepod.io/device"])


def with_front(tmp_path: Path, test: Callable[[Front], Coroutine[Any, Any, None]], *, listed: bool = True) -> None:
    async def run() -> None:
        async with ApiServer() as server, Front(tmp_path / "account", server) as front:
            if listed:
                front.node("n1")
                front.node("n2")
                await eventually(lambda: not front.observer.not_ready(time.monotonic()), "the replica is not ready")
            await test(front)

    asyncio.run(run())
