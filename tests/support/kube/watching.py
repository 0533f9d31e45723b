"""Runs an informer of a node's pods in the background, for tests of what it yields."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from rig.cluster.apiserver import ApiServer
from sharepod.kube.client import Client
from sharepod.kube.informer import Informer, Pace, Source
from sharepod.kube.pod import Pod, read_pod

FAST = Pace(first_s=0.01, last_s=0.1, watch_s=20)
AGENT = "sharepod-test"
LOG = logging.getLogger("sharepod.test.pods")


class View:
    """What the informer has yielded so far, as its reader would keep it."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.changes: list[tuple[str, str]] = []

    async def follow(self, pods: Informer[Pod]) -> None:
        async with contextlib.aclosing(pods.changes()) as changes:
            async for kind, found in changes:
                self.changes.append((kind, found.name))
                if kind == "gone":
                    del self.pods[found.uid]  # raises if the informer reports a pod as gone that it never yielded
                else:
                    assert self.pods.get(found.uid) != found, "a change that changes nothing"
                    self.pods[found.uid] = found

    def equals(self, server: ApiServer) -> bool:
        there = [read_pod(body) for body in server.pods.values() if body["spec"]["nodeName"] == "n1"]
        return self.pods == {found.uid: found for found in there if found is not None}


@contextlib.asynccontextmanager
async def watched(
    server: ApiServer, account: Path, pace: Pace = FAST, page: int = 0
) -> AsyncIterator[tuple[Client, View]]:
    """Run an informer in the background."""
    view = View()
    source = Source("/api/v1/pods", {"fieldSelector": "spec.nodeName=n1"}, read_pod, lambda pod: pod.uid, page)
    async with Client(server.access(account), AGENT) as client:
        task = asyncio.create_task(view.follow(Informer(client, source, pace, LOG)))
        try:
            yield client, view
            assert not task.done(), "the watch has ended"
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
