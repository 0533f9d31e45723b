"""One replica of the extender in this process, with an API server's double and agents that a test tells."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from apiserver import ApiServer
from cluster_world import Agent, node_body

from sharepod.deviceplugin.api import Api
from sharepod.deviceplugin.watch import Pace
from sharepod.scheduler.annotator import Annotator
from sharepod.scheduler.cluster import Cluster
from sharepod.scheduler.extender import Extender
from sharepod.scheduler.extender_server import ExtenderServer
from sharepod.scheduler.informer import Informer
from sharepod.scheduler.usage import Report, UsageBook

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

RESOURCE = "sharepod.io/gpu"
PATIENCE = 20.0


class Front:
    """One replica in this process, the API server's double, and agents that are told by the test."""

    def __init__(self, directory: Path, server: ApiServer) -> None:
        self.server = server
        self.cluster, self.book = Cluster(), UsageBook()
        access = server.cluster(directory)
        self.api = Api(access)
        self.informer = Informer(
            self.api, access.server, self.cluster, self.book, resource=RESOURCE, pace=Pace(0.01, 0.1, 20)
        )
        self.annotator = Annotator(self.api, access.server)
        self.extender = Extender(self.cluster)
        self.answers = ExtenderServer(
            self.extender, self.annotator, resource=RESOURCE,
            not_ready=lambda: self.informer.not_ready(time.monotonic()),
        )  # fmt: skip
        self.agents: dict[str, Agent] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.api.__aenter__()
        self.port = await self.answers.start("127.0.0.1:0", None)
        works = (self.informer.follow_pods(), self.informer.follow_nodes(), self.informer.follow_usage())
        self._tasks = [asyncio.create_task(work) for work in works]
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()
        await self.annotator.stop()
        await self.answers.stop()
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

    async def call(self, verb: str, body: Any) -> Any:
        async with self.client.post(f"/{verb}", json=body) as response:
            assert response.status == 200, await response.text()
            return json.loads(await response.read())

    async def filter(self, body: dict[str, Any], names: list[str]) -> dict[str, Any]:
        answer = await self.call("filter", {"Pod": body, "Nodes": None, "NodeNames": names})
        assert isinstance(answer, dict)
        return answer

    async def schedule(self, body: dict[str, Any], names: list[str]) -> str:
        """Schedule and bind a pod as kube-scheduler does."""
        self.server.put(body)
        answer = await self.filter(body, names)
        assert answer["Error"] == ""
        fitting = answer["NodeNames"]
        if len(fitting) > 1:
            scores = await self.call("prioritize", {"Pod": body, "NodeNames": fitting})
            fitting = [max(scores, key=lambda item: item["Score"])["Host"]]
        if not fitting:
            return ""
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        bound = json.loads(json.dumps(self.server.pods[key]))
        bound["spec"]["nodeName"] = fitting[0]
        self.server.put(bound)
        return str(fitting[0])

    def device(self, name: str) -> str | None:
        annotations = self.server.pods["default", name]["metadata"]["annotations"]
        found = annotations.get("sharepod.io/device")
        return None if found is None else str(found)


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def with_front(tmp_path: Path, test: Callable[[Front], Coroutine[Any, Any, None]], *, listed: bool = True) -> None:
    async def run() -> None:
        async with ApiServer() as server, Front(tmp_path / "account", server) as front:
            if listed:
                front.node("n1")
                front.node("n2")
                await until(lambda: not front.informer.not_ready(time.monotonic()), "the extender is not ready")
            await test(front)

    asyncio.run(run())
