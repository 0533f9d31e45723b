"""Test a replica's status over HTTP: beyond the loopback only with certificates, which may be renewed meanwhile."""

import asyncio
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from cluster_world import Agent, node_body
from gates_world import World
from server_certificates import Certificates
from yarl import URL

from rig.until import eventually
from sharepod.cli.commands import pods
from sharepod.cli.errors import CliError
from sharepod.process.credentials import Credentials
from sharepod.process.errors import SettingsError
from sharepod.scheduler.explain.status_server import StatusServer
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.observer import PATIENCE_S


async def test_until_everything_is_known_it_is_alive_and_not_ready_and_explains_what_it_knows(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        for name in ("n1", "n2"):
            world.server.put_node(node_body(name, 2))
        world.create("waits", 70)
        async with world.replica() as replica, aiohttp.ClientSession(replica.url) as client:

            async def answers(path: str) -> tuple[int, str]:
                async with client.get(path) as response:
                    return response.status, await response.text()

            await eventually(lambda: "without: 2" in replica.not_ready(), "the nodes are not known")
            why = "SharePod's scheduler is starting: it waits for agents to report, nodes without: 2\n"
            assert await answers("/readyz") == (503, why)
            assert await answers("/healthz") == (200, "ok\n")
            code, text = await answers("/explain/default/waits")
            assert (code, why.strip() in text) == (200, True), "it is incomplete"
            assert await answers("/explain/default/other") == (503, why), "it may be there"
            await replica.report({"n1": Agent("n1", 2)})
            assert "without: 1" in replica.not_ready()
            late_s = time.monotonic() + PATIENCE_S
            assert not replica.observer.not_ready(late_s), "one that never reports is not waited for"
            assert await answers("/readyz") == (200, "ok\n")


async def test_a_pod_is_explained_as_the_command_shows_it_and_a_mistyped_name_is_told(tmp_path: Path) -> None:
    async with World(tmp_path, n1=2) as world:
        world.create("placed", 60)
        world.create("waits", 70, gated=False)
        async with world.replica() as replica:
            await eventually(lambda: world.is_released("placed"), "not released")
            world.run("placed")
            await eventually(lambda: replica.runs("placed"), "not seen to run")

            async def said(name: str, namespace: str = "default") -> str:
                found = await asyncio.to_thread(pods.ask, replica.url, namespace, name)
                return "\n".join(pods.lines(found, replica.url, 200))

            placed = await said("placed")
            assert "default/placed: it is bound to n1" in placed
            [device] = world.devices_of("placed")
            assert re.search(rf"container main: device \d \({device}\)\n", placed), placed
            assert "kube-scheduler places it by what nodes have left in all" in await said("waits")
            for where, name, text in (
                ("default", "wait", "did you mean waits?"),
                ("default", "other", "name a pod of that namespace"),
                ("team", "waits", "one of that name is in namespace default: add -n default"),
                ("default", "x" * 253, "name a pod of that namespace"),
            ):
                with pytest.raises(CliError, match=re.escape(f"pod {where}/{name} is not known: {text}")):
                    await said(name, where)
            async with aiohttp.ClientSession(replica.url) as client:
                for path in ("default/a%0Ab%1B%5B31m", "default/" + "x" * 5000):
                    async with client.get(URL(f"/explain/{path}", encoded=True)) as response:
                        text = await response.text()
                        assert (response.status, text.count("\n"), text.isascii()) == (404, 1, True)
                        assert "\x1b" not in text
                        assert len(text) < 700
                for verb, code in (("filter", 404), ("prioritize", 404), ("queue", 405)):
                    async with client.post(f"/{verb}", json={"NodeNames": ["n1"]}) as response:
                        assert response.status == code, "nothing is asked of it by POST"


def credentials(files: Certificates) -> Credentials:
    certificate, key, client_ca = map(str, (files.certificate, files.key, files.client_ca))
    return Credentials(certificate, key, client_ca=client_ca, what="status", reader="scheduler")


@asynccontextmanager
async def serving(files: Certificates) -> AsyncIterator[str]:
    status = StatusServer(Cluster(), not_ready=lambda: "", queue=lambda _: {}, turn=lambda *_: None)
    port = await status.start("127.0.0.1:0", credentials(files).following())
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        await status.stop()


async def reaches(url: str, context: ssl.SSLContext) -> bool:
    """Tell whether a client gets an answer from the server on a new connection."""
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.get(f"{url}/readyz") as response,
        ):
            return response.status == 200 and await response.text() == "ok\n"
    except aiohttp.ClientError:
        return False


async def test_only_who_shows_a_certificate_of_the_authority_as_it_is_now_is_answered(tmp_path: Path) -> None:
    files = Certificates(tmp_path, "127.0.0.1")
    before = files.trust(issuer=files.clients)
    async with serving(files) as url:
        assert await reaches(url, before)
        assert not await reaches(url, files.trust()), "without a certificate"
        assert not await reaches(url, files.trust(issuer=trustme.CA())), "with one of another authority"
        assert not await reaches(url, files.trust(issuer=files.authority)), "the server's own signs no clients"
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(url.replace("https", "http") + "/healthz")
        files.renew()
        assert await reaches(url, files.trust(issuer=files.clients))
        assert not await reaches(url, before), "it trusts the authority of before"
        assert not await reaches(url, files.trust()), "without a certificate"
        old, files.clients = files.clients, trustme.CA()
        files.clients.cert_pem.write_to_path(str(files.client_ca))
        assert not await reaches(url, files.trust(issuer=old)), "its authority has been replaced"
        assert await reaches(url, files.trust(issuer=files.clients))


async def test_who_resumes_a_session_has_shown_nothing(tmp_path: Path) -> None:
    """Check that no TLS session can be resumed: a resumed one would bypass the certificate and renewed authorities."""
    files = Certificates(tmp_path, "127.0.0.1")
    async with serving(files) as url:
        port = int(url.rpartition(":")[2])
        for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = files.trust(issuer=files.clients)
            context.maximum_version = newest
            assert not await asyncio.to_thread(_resumable, port, context), newest


def _resumable(port: int, context: ssl.SSLContext) -> bool:
    """Tell whether the server lets a second connection resume the session of a first one."""
    session = None
    for _ in range(2):
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection,
        ):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            session, reused = connection.session, bool(connection.session_reused)
    return reused


def test_an_authority_that_is_none_is_said(tmp_path: Path) -> None:
    files = Certificates(tmp_path, "127.0.0.1")
    files.client_ca.write_text("x")
    with pytest.raises(SettingsError, match=r"status: .*ca.crt is no authority .*: give PEM files that go together"):
        credentials(files)
