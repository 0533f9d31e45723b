"""Test the answers to kubelet's probes."""

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from sharepod.process.readiness import add_probes


async def told(client: TestClient[web.Request, web.Application], path: str) -> tuple[int, str]:
    async with client.get(path, timeout=aiohttp.ClientTimeout(10)) as answer:
        return answer.status, await answer.text()


async def test_a_process_is_alive_from_its_first_answer_and_ready_when_it_can_serve() -> None:
    why = "the first list of pods has not come"
    application = web.Application()
    add_probes(application, lambda: why)
    async with TestClient(TestServer(application)) as client:
        assert await told(client, "/healthz") == (200, "ok\n")
        assert await told(client, "/readyz") == (503, "the first list of pods has not come\n")
        why = ""
        assert await told(client, "/readyz") == (200, "ok\n")


async def test_a_process_that_awaits_nothing_is_ready_at_once() -> None:
    application = web.Application()
    add_probes(application)
    async with TestClient(TestServer(application)) as client:
        assert await told(client, "/readyz") == (200, "ok\n")
