"""Follows the API server and the agents' reports, and keeps the view of the cluster up to date."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from sharepod.kube.informer import Informer, Pace, Source
from sharepod.scheduler.state.node import Node, read_node
from sharepod.scheduler.state.pod import Pod, read_pod

if TYPE_CHECKING:
    from sharepod.kube.client import Client
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.usage import UsageBook

log = logging.getLogger("sharepod.scheduler")

PAGE: Final = 500
"""Objects in one page of a list: a page of pods is some megabytes."""
LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""Pods that have ended are not listed."""
TICK_S: Final = 0.25
"""The time between two looks at what agents have reported."""
BREATH: Final = 200
"""Nodes from which numbers are taken before other tasks of the event loop run."""
PATIENCE_S: Final = 10.0
"""The time that agents have to report after a start. From then on a node without a report is avoided."""


class Observer:
    """The sources of one replica's view."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        book: UsageBook,
        *,
        resource: str,
        domains: tuple[str, ...] = (),
        pace: Pace | None = None,
    ) -> None:
        """Bring what `client` and `book` say into `cluster`; `resource` and `domains` as in `read_node`.

        `pace`: how fast a broken watch comes back; None: in 5 s at most.
        """
        self._cluster = cluster
        self._book = book
        pace = pace or Pace(last_s=5.0)
        pods: Source[Pod] = Source(
            "/api/v1/pods",
            {"fieldSelector": LIVE},
            lambda item: read_pod(item, resource),
            lambda pod: pod.uid,
            PAGE,
        )
        nodes: Source[Node] = Source(
            "/api/v1/nodes", {}, lambda item: read_node(item, resource, domains), lambda node: node.name, PAGE
        )
        self._pods = Informer(client, pods, pace, log)
        self._nodes = Informer(client, nodes, pace, log)
        self._with_devices: set[str] = set()
        """Names of the nodes that offer percents of devices to pods."""
        self._listed_s: float | None = None
        """When `not_ready` first found nodes and pods listed."""
        self._started = False
        """The scheduler has been ready: from then on a node that falls silent is avoided and no longer waited for."""

    async def follow_pods(self) -> None:
        """Bring pods into the cluster's view as they come, change and go, for ever."""
        async with contextlib.aclosing(self._pods.changes()) as changes:
            async for kind, pod in changes:
                if kind == "set":
                    self._cluster.set_pod(pod)
                else:
                    self._cluster.remove_pod(pod.uid)

    async def follow_nodes(self) -> None:
        """Bring nodes into the cluster's view as they come, change and go, for ever."""
        async with contextlib.aclosing(self._nodes.changes()) as changes:
            async for kind, node in changes:
                if kind == "set":
                    self._cluster.set_node(node)
                    (self._with_devices.add if node.units else self._with_devices.discard)(node.name)
                else:
                    self._cluster.remove_node(node.name)
                    self._with_devices.discard(node.name)
                    self._book.forget(node.name)

    async def follow_usage(self) -> None:
        """Bring what agents report into the cluster's view, every TICK_S, for ever."""
        while True:
            await self.take_usage(time.monotonic())
            await asyncio.sleep(TICK_S)

    async def take_usage(self, now_s: float) -> None:
        """Bring into the cluster's view what agents have reported since the last call, and which ones fell silent."""
        self._book.age(now_s)
        changes = self._book.take_changes()
        for name in changes.facts:
            use = self._book.node(name)
            self._cluster.set_use(name, use if self._book.is_fresh(name, now_s) else None)
        for number, name in enumerate(changes.numbers, 1):
            if (use := self._book.node(name)) is not None and self._cluster.use(name) is not None:
                self._cluster.measure(name, use)
            if number % BREATH == 0:
                await asyncio.sleep(0)

    @property
    def listed(self) -> bool:
        """Tell whether all nodes and pods have been seen once."""
        return self._pods.listed and self._nodes.listed

    def not_ready(self, now_s: float) -> str:
        """Return, in words for users, why no pod can be placed yet; empty: pods can be placed, from then on for ever.

        It waits until nodes and pods are listed, and then PATIENCE_S at most for the agents of nodes with devices.
        """
        if self._started:
            return ""
        if not self.listed:
            return "SharePod's scheduler is starting: it waits for the API server's nodes and pods"
        if self._listed_s is None:
            self._listed_s = now_s
        missing = sum(self._cluster.use(name) is None for name in self._with_devices)
        if missing and now_s - self._listed_s < PATIENCE_S:
            return f"SharePod's scheduler is starting: it waits for agents to report, nodes without: {missing}"
        self._started = True
        return ""
