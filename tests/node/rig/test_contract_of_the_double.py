"""Test that the double of the API server keeps Kubernetes' promises, and makes the faults that a test asks for."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from contract import *  # noqa: F403 - every promise is a test here
from contract.connection import MERGE, Client, Connection
from contract.there import Connected

from rig.cluster.apiserver import ApiServer, pod


@contextlib.asynccontextmanager
async def double() -> AsyncIterator[Connection]:
    with tempfile.TemporaryDirectory(prefix="sharepod-test-") as directory:
        async with ApiServer() as server:

            async def compact() -> None:
                server.store.compact()

            yield Connection(server.access(Path(directory)), compact=compact)


@pytest.fixture
def connected() -> Connected:
    return double


async def test_faults_happen_or_tests_of_races_would_pass_for_nothing(tmp_path: Path) -> None:
    async with ApiServer() as server, Client(Connection(server.access(tmp_path))) as client:
        path = "/api/v1/namespaces/default/pods/a"
        server.put(pod("a"))
        server.faults.lose("patch pods")
        with pytest.raises(aiohttp.ClientError):
            await client.ask("PATCH", path, {"metadata": {"annotations": {"x": "y"}}}, media=MERGE)
        server.faults.delay(1.5, "get nodes")
        began_s = time.monotonic()
        nodes = asyncio.create_task(client.ask("GET", "/api/v1/nodes"))
        answer = await client.ask("GET", path)
        assert answer.body["metadata"]["annotations"] == {"x": "y"}, "a patch with a lost answer is done"
        assert not nodes.done(), "only the answers about nodes are late"
        await nodes
        assert time.monotonic() - began_s >= 1.5
