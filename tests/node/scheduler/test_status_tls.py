"""The status server beyond the loopback: which clients it lets in, and files that are renewed while it runs."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
import trustme

from sharepod.process.credentials import Credentials
from sharepod.process.errors import SettingsError
from sharepod.scheduler.cluster import Cluster
from sharepod.scheduler.status_server import StatusServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Files:
    """What a Secret's volume has: the server's certificate and key, and the authority of its clients."""

    def __init__(self, directory: Path) -> None:
        self.paths = [directory / name for name in ("tls.crt", "tls.key", "ca.crt")]
        self.renew()

    def renew(self) -> None:
        """Write all of them anew, of new authorities."""
        self.servers, self.clients = trustme.CA(), trustme.CA()
        issued = self.servers.issue_cert("127.0.0.1")
        blobs = issued.cert_chain_pems[0], issued.private_key_pem, self.clients.cert_pem
        for path, blob in zip(self.paths, blobs, strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(blob.bytes())
            fresh.replace(path)

    def credentials(self) -> Credentials:
        certificate, key, client_ca = map(str, self.paths)
        return Credentials(certificate, key, client_ca=client_ca, what="status", reader="scheduler")

    def client(self, issuer: trustme.CA | None, servers: trustme.CA | None = None) -> ssl.SSLContext:
        """Return what a client has that trusts an authority and shows a certificate of an issuer, or none."""
        context = ssl.create_default_context()
        (servers or self.servers).configure_trust(context)
        if issuer is not None:
            issuer.issue_cert("client").configure_cert(context)
        return context


@asynccontextmanager
async def serving(files: Files) -> AsyncIterator[str]:
    status = StatusServer(Cluster(), not_ready=lambda: "", queue=lambda _: {}, turn=lambda *_: None)
    port = await status.start("127.0.0.1:0", files.credentials().following())
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        await status.stop()


async def reaches(url: str, context: ssl.SSLContext) -> bool:
    """Tell whether a client gets an answer of the server, by a connection of its own."""
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.get(f"{url}/readyz") as response,
        ):
            return response.status == 200 and await response.text() == "ok\n"
    except aiohttp.ClientError:
        return False


def test_only_who_shows_a_certificate_of_the_authority_is_answered(tmp_path: Path) -> None:
    async def check() -> None:
        files = Files(tmp_path)
        async with serving(files) as url:
            assert await reaches(url, files.client(files.clients))
            assert not await reaches(url, files.client(None)), "without a certificate"
            assert not await reaches(url, files.client(trustme.CA())), "with one of another authority"
            assert not await reaches(url, files.client(files.servers)), "the server's own authority signs no clients"
            async with aiohttp.ClientSession() as session:
                with pytest.raises(aiohttp.ClientError):
                    await session.get(url.replace("https", "http") + "/healthz")

    asyncio.run(check())


def test_who_resumes_a_session_has_shown_nothing(tmp_path: Path) -> None:
    """A session lets its client in without a certificate: there is none to resume, so renewed authorities hold."""

    async def check() -> None:
        files = Files(tmp_path)
        async with serving(files) as url:
            port = int(url.rpartition(":")[2])
            for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = files.client(files.clients)
                context.maximum_version = newest
                assert not await asyncio.to_thread(_resumable, port, context), newest

    asyncio.run(check())


def _resumable(port: int, context: ssl.SSLContext) -> bool:
    """Tell whether the server lets a second connection go on with the session of a first one."""
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


def test_renewed_files_hold_from_the_next_connection_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        files = Files(tmp_path)
        before = files.client(files.clients)
        async with serving(files) as url:
            assert await reaches(url, before)
            files.renew()
            assert await reaches(url, files.client(files.clients))
            assert not await reaches(url, before), "it trusts the authority of before"
            assert not await reaches(url, files.client(None)), "without a certificate"
            old, files.clients = files.clients, trustme.CA()
            files.clients.cert_pem.write_to_path(str(files.paths[2]))
            assert not await reaches(url, files.client(old)), "its authority has been replaced"
            assert await reaches(url, files.client(files.clients))
            caplog.clear()
            with caplog.at_level(logging.ERROR):
                files.paths[2].write_text("half written")
                for _ in range(3):
                    assert await reaches(url, files.client(files.clients)), "the last that could be read stays"
            assert [record.getMessage() for record in caplog.records] == ["credentials of the status not read again"]

    asyncio.run(check())


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_files_that_are_none_are_said(tmp_path: Path, broken: int) -> None:
    files = Files(tmp_path)
    files.paths[broken].write_text("x")
    with pytest.raises(SettingsError, match=r"status: .*give PEM files that go together") as caught:
        files.credentials()
    assert str(files.paths[broken]) in str(caught.value)
    files.paths[broken].unlink()
    with pytest.raises(SettingsError, match="No such file or directory: name a file that the scheduler can read"):
        files.credentials()
