"""Serves the metrics over HTTP: on loopback in the clear, to the network with TLS and a bearer token.

It knows neither metrics nor the node: it is given a function that writes the text. Every connection has a thread of its
own, which bounds its time; the handshake is made there too, so that a peer that says nothing delays nobody else.
"""

from __future__ import annotations

import hmac
import logging
import socket
import socketserver
import ssl
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.errors import AgentUnavailable, SettingsError
from sharepod.agent.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sharepod.agent.metrics")

PATHS: Final = ("/metrics", "/")
CONNECTIONS_MAX: Final = 16
"""What is beyond is closed at once: strangers must not fill the agent with threads."""
PATIENCE_S: Final = 5.0
"""How long a peer may say nothing."""
TOKEN_MIN: Final = 16
_TOKEN_READ_MAX: Final = 4096


def read_token(path: str) -> bytes:
    """Return the token of a file, without the white space around it. Raises OSError or ValueError (what is wrong)."""
    with Path(path).open("rb") as file:
        token = file.read(_TOKEN_READ_MAX).strip()
    if len(token) < TOKEN_MIN or not all(0x21 <= byte <= 0x7E for byte in token):
        raise ValueError(f"it is no token: write one word of at least {TOKEN_MIN} printable ASCII characters")
    return token


def read_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return what TLS needs. Raises OSError; ssl.SSLError is one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key, password="")  # without it OpenSSL asks on the terminal
    return context


class Credentials:
    """What the agent shows to those who scrape it (certificate and key) and what they show to it (the token).

    Empty paths: no TLS, no token. The files are read again when they change, so that certificates can be renewed; what
    cannot be read then is told once, and the last that could stays.
    """

    def __init__(self, certificate: str = "", key: str = "", token_file: str = "") -> None:
        """Read the files. Raises SettingsError."""
        self._certificate, self._key, self._token_file = certificate, key, token_file
        self._paths = [path for path in (certificate, key, token_file) if path]
        self._stamp = self._look()
        self.context: ssl.SSLContext | None = None
        self._token: bytes | None = None
        if cause := self._read():
            raise SettingsError(f"metrics: {cause}")

    def refresh(self) -> None:
        """Read the files again if they have changed. For the thread that accepts connections."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            if cause := self._read():
                log.error("credentials of the metrics not read again", extra={"cause": cause})
            else:
                log.info("credentials of the metrics read again", extra={"files": self._paths})

    def accept(self, authorization: str) -> bool:
        """Tell whether the header of that name has the token, in a time that does not depend on where it is wrong."""
        if self._token is None:
            return True
        scheme, _, token = authorization.partition(" ")
        return hmac.compare_digest(token.strip().encode(), self._token) and scheme.lower() == "bearer"

    def _read(self) -> str:
        """Read all files; return what is wrong, after which nothing has changed."""
        try:
            for path in self._paths:  # OpenSSL does not say which one it cannot read
                Path(path).open("rb").close()
            context = read_context(self._certificate, self._key) if self._certificate else None
            token = read_token(self._token_file) if self._token_file else None
        except ssl.SSLError as error:
            reason = (error.reason or "unreadable").lower().replace("_", " ")
            files = f"{self._certificate} and {self._key}"
            return f"{files} are no certificate with its key ({reason}): give PEM files that go together"
        except OSError as error:
            return f"{error.filename}: {error.strerror}: name a file that the agent can read"
        except ValueError as error:
            return f"{self._token_file}: {error}"
        self.context, self._token = context, token
        return ""

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        info = Path(path).stat()
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


class _Server(socketserver.ThreadingTCPServer):
    """Accepts connections and gives each to a thread."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, host: str, port: int, text: Callable[[], str], credentials: Credentials) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.text = text
        self.credentials = credentials
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept one; the handshake is made by the first read, on its thread."""
        connection, peer = super().get_request()
        self.credentials.refresh()
        context = self.credentials.context
        if context is None:
            return connection, peer
        connection.settimeout(PATIENCE_S)
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), peer

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread, or close the connection when there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of peers that leave or speak no TLS."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("scrape failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        """Answer with the metrics, or with why not."""
        if not self.server.credentials.accept(self.headers.get("Authorization", "")):
            self._answer(HTTPStatus.UNAUTHORIZED, "the bearer token of metrics_token_file is asked for\n")
        elif self.path.partition("?")[0] not in PATHS:
            self._answer(HTTPStatus.NOT_FOUND, "the metrics are at /metrics\n")
        else:
            self._answer(HTTPStatus.OK, self.server.text())

    def do_HEAD(self) -> None:
        """Answer likewise, without the text."""
        self.do_GET()

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE if status == HTTPStatus.OK else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Name what answers, without versions."""
        return "sharepod"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log no requests."""


def serve(text: Callable[[], str], address: str, credentials: Credentials) -> Callable[[], None]:
    """Serve `text()` on `address` ("127.0.0.1:9464") from a thread; return what stops it. Raises AgentUnavailable."""
    host, _, port = address.rpartition(":")
    try:
        server = _Server(host.strip("[]"), int(port), text, credentials)
    except OSError as error:
        raise AgentUnavailable(
            f"metrics address {address}: {error.strerror}: choose another with --metrics-listen, or off"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
