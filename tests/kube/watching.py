"""An informer of a node's pods in the background, for tests of what it yields."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiserver import ApiServer

from sharepod.kube.client import Client
from sharepod.kube.informer import Informer, Pace, Source
from sharepod.kube.pod import Pod, read_pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

FAST = Pace(first_s=0.01, last_s=0.1, watch_s=20)
PATIENCE_S = 20.0
AGENT = "sharepod-test"
LOG = logging.getLogger("sharepod.test.pods")


def with_server(test: Callable[[ApiServer, Path], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine with a started API server and a directory for its service account."""

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="sharepod-test-") as directory:
            async with ApiServer() as server:
                await test(server, Path(directory) / "account")

    asyncio.run(run())


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


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
                    del self.pods[found.uid]  # never of a pod that was not there
                else:
                    assert self.pods.get(found.uid) != found, "a change that changes nothing"
                    self.pods[found.uid] = found

    def equals(self, server: ApiServer, node: str = "n1") -> bool:
        there = [read_pod(body) for body in server.pods.values() if body["spec"]["nodeName"] == node]
        return self.pods == {found.uid: found for found in there if found is not None}


def informer(client: Client, pace: Pace = FAST, page: int = 0) -> Informer[Pod]:
    selected = {"fieldSelector": "spec.nodeName=n1"}
    return Informer(client, Source("/api/v1/pods", selected, read_pod, lambda pod: pod.uid, page), pace, LOG)


@contextlib.asynccontextmanager
async def watched(
    server: ApiServer, account: Path, pace: Pace = FAST, page: int = 0
) -> AsyncIterator[tuple[Client, View]]:
    """An informer in the background."""
    view = View()
    async with Client(server.access(account), AGENT) as client:
        task = asyncio.create_task(view.follow(informer(client, pace, page)))
        try:
            yield client, view
            assert not task.done(), "the watch has ended"
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
