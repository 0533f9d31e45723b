"""Serves the metrics over HTTP: on loopback in the clear, to the network with TLS and a bearer token.

It knows neither metrics nor the node: it is given a function that writes the text. Every connection has a thread of its
own, which bounds its time; the handshake is made there too, so that a peer that says nothing delays nobody else.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.process.credentials import Credentials

log = logging.getLogger("sharepod.agent.metrics")

PATHS: Final = ("/metrics", "/")
CONNECTIONS_MAX: Final = 16
"""What is beyond is closed at once: strangers must not fill the agent with threads."""
PATIENCE_S: Final = 5.0
"""How long a peer may say nothing."""


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
