"""Test one request to an API server that is slow, refuses, moves away, or is something else."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from watching import AGENT, watched

from rig.cluster.apiserver import ApiServer, pod
from rig.cluster.apiserver.keys import AUTHORITY, server_context
from rig.until import eventually
from sharepod.kube.access import in_cluster
from sharepod.kube.client import Answer, ApiUnavailable, Client

POD = "/api/v1/namespaces/default/pods/a"


async def test_an_api_server_that_stumbles_is_asked_again_in_time_and_through_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with ApiServer() as server:
        server.put(pod("a"))
        async with Client(server.access(tmp_path), AGENT) as client:
            server.faults.refuse(503, 2)
            server.faults.refuse(429, 1, after="1")
            answer = await client.patiently(POD, 10.0, 0.01)
            assert answer.status == 200
            assert server.requests["get pods"] == 4


async def test_an_api_server_that_does_not_answer_is_unavailable_in_time(tmp_path: Path) -> None:
    async with ApiServer() as server, Client(server.access(tmp_path), AGENT) as client:
        server.faults.lag_s = 3
        started = time.monotonic()
        with pytest.raises(ApiUnavailable, match=r"no answer within .* s: see that it runs"):
            await client.patiently(POD, 0.5, 0.01)
        server.faults.lag_s = 0
        await server.stop()
        with pytest.raises(ApiUnavailable, match="see that it runs"):
            await client.patiently(POD, 0.5, 0.01)
        assert time.monotonic() - started < 8


async def test_what_is_not_allowed_says_which_role_is_missing_and_is_not_asked_again(tmp_path: Path) -> None:
    async with ApiServer() as server, Client(server.access(tmp_path), AGENT) as client:
        server.faults.refuse(403)
        with pytest.raises(ApiUnavailable, match="403 told to say 403: give our service account the role"):
            await client.patiently(POD, 10.0, 0.01)
        assert server.requests["get pods"] == 1
        for body in ({}, {"message": ""}, {"message": 7}):
            assert str(client.refusal(Answer(418, body))).endswith(": 418 no reason given: it is asked again")


async def test_a_token_that_is_rotated_is_read_again(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.put(pod("a"))
        async with watched(server, tmp_path) as (client, view):
            await eventually(lambda: view.equals(server), "the first list")
            server.token = "second"  # noqa: S105
            with pytest.raises(ApiUnavailable, match="401 Unauthorized: see that our token is mounted"):
                await client.call("GET", POD, timeout_s=5.0)
            server.put(pod("b"))
            server.watches.cut("cut")
            server.account(tmp_path)
            assert (await client.call("GET", POD, timeout_s=5.0)).status == 200
            await eventually(lambda: view.equals(server), "the watch goes on with the new token")


async def test_an_authority_that_is_replaced_is_read_again_and_a_watch_goes_on(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.put(pod("a"))
        async with watched(server, tmp_path) as (client, view):
            await eventually(lambda: server.watches.open == 1, "the watch")
            (tmp_path / "ca.crt").write_text("no certificate", encoding="ascii")
            with pytest.raises(ApiUnavailable, match=r"certificates for https://127\.0\.0\.1:\d+: .*: put them right"):
                await client.call("GET", POD, timeout_s=5.0)
            server.account(tmp_path)
            assert (await client.call("GET", POD, timeout_s=5.0)).status == 200
            server.put(pod("b"))
            await eventually(lambda: view.equals(server), "the watch that began before")
            assert server.requests["watch pods"] == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"text": "<html>", "status": 404}, "no JSON object: see what answers there"),
        ({"text": "[" * 100_000}, "no JSON object: see what answers there"),
        ({"status": 307, "headers": {"Location": "/elsewhere"}}, "sends us elsewhere (307)"),
    ],
    ids=["page", "deep", "redirect"],
)
async def test_what_answers_in_place_of_the_api_server_is_not_believed(
    tmp_path: Path, answer: dict[str, Any], text: str
) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(**answer)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(clients=False)).start()
    (tmp_path / "token").write_text("secret", encoding="ascii")
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    port = str(runner.addresses[0][1])
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}, tmp_path)
    try:
        async with Client(access, AGENT) as client:
            with pytest.raises(ApiUnavailable, match=re.escape(text)):
                await client.call("GET", POD, timeout_s=5.0)
    finally:
        await runner.cleanup()
    assert asked == [POD]
