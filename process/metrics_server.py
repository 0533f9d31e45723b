"""Serves a collector's metrics over HTTP: unencrypted on loopback, beyond it with TLS and a bearer token.

prometheus_client's own server is not used. It knows no token and keeps its first certificate. It also makes the
handshake in the thread that accepts, where a silent peer blocks all others (ADR 24). Here each connection has a thread
of its own, which makes the handshake and limits its time.
"""

from __future__ import annotations

import functools
import gzip
import logging
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import exposition
from prometheus_client.openmetrics import exposition as openmetrics

from sharepod.process.errors import CannotStart
from sharepod.process.metrics_page import Page

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.process.credentials import Credentials
    from sharepod.process.metrics_page import Collector

log = logging.getLogger("sharepod.metrics")

PATHS: Final = ("/metrics", "/")
CONNECTIONS_MAX: Final = 16
"""Connections beyond these are closed at once: peers must not fill the process with threads."""
PATIENCE_S: Final = 5.0
"""How long a peer may be silent."""
_ALL: Final = "::"
"""All addresses of this host, IPv6 and IPv4."""
GZIP_LEVEL: Final = 1
"""A hundred shares take 36 KB and 1.2 ms. At level 9, which prometheus_client uses, they take 25 KB and 11 ms."""


class Pages:
    """A collector's metrics in the formats that Prometheus asks for."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._text = Page(exposition.generate_latest)
        # Our names need no escaping. ALLOWUTF8 gives the encoder the least work.
        self._openmetrics = Page(functools.partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8))

    def answer(self, accept: str) -> tuple[str, bytes]:
        """Return the present metrics in the format that an Accept header asks for, after their content type."""
        _, content_type = exposition.choose_encoder(accept)
        if content_type.startswith("application/openmetrics-text"):
            return openmetrics.CONTENT_TYPE_LATEST, self._openmetrics.text(self._collector)
        return exposition.CONTENT_TYPE_PLAIN_0_0_4, self._text.text(self._collector)


class _Server(socketserver.ThreadingTCPServer):
    """Accepts connections and gives each to a thread."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, host: str, port: int, pages: Pages, credentials: Credentials) -> None:
        """Listen on an address of this host, without brackets. Raises OSError.

        "::" are all addresses of both families. If the kernel has no IPv6, they are those of IPv4.
        """
        if host == _ALL and not socket.has_dualstack_ipv6():
            host = "0.0.0.0"  # noqa: S104 - all addresses were asked for
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self.credentials = credentials
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind the socket. If it is for all addresses, it takes IPv4 connections too. Raises OSError."""
        if self.server_address[0] == _ALL:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept one connection, and return it with its peer's address. Raises OSError.

        A TLS handshake is not made here: the first read makes it, on the connection's own thread.
        """
        connection, peer = super().get_request()
        self.credentials.refresh()
        context = self.credentials.context
        if context is None:
            return connection, peer
        connection.settimeout(PATIENCE_S)
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), peer

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread that answers the connection. If there are CONNECTIONS_MAX already, close it instead."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the connection, on its thread; then make room for another one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the present exception, unless it is an OSError: that comes from a peer that left or speaks no TLS."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("scrape failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        """Answer with the metrics, or with the reason for refusing them."""
        if not self.server.credentials.accept(self.headers.get("Authorization", "")):
            self._answer(
                HTTPStatus.UNAUTHORIZED, "text/plain", b"the bearer token of metrics_token_file is asked for\n"
            )
        elif self.path.partition("?")[0] not in PATHS:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"the metrics are at /metrics\n")
        else:
            self._answer(*self._page())

    def _page(self) -> tuple[HTTPStatus, str, bytes]:
        """Return the answer's status, content type and text; status 500 if the collector raises OSError."""
        try:
            return HTTPStatus.OK, *self.server.pages.answer(self.headers.get("Accept", ""))
        except OSError:  # caught here, because handle_error would take it for an error of the connection
            log.exception("metrics not collected")
            return HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", b"the metrics cannot be collected: see the log\n"

    def do_HEAD(self) -> None:
        """Answer as GET does, without the text."""
        self.do_GET()

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        """Send an answer. Metrics are compressed if the client accepts that. The answer to HEAD has no body."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if status == HTTPStatus.OK and exposition.gzip_accepted(self.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, GZIP_LEVEL)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the server's name without versions."""
        return "sharepod"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log no requests."""


def serve(collector: Collector, address: str, credentials: Credentials) -> Callable[[], None]:
    """Serve a collector on `address`, such as "127.0.0.1:9464", from a thread. Return the function that stops it.

    Raises CannotStart if the address cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    try:
        server = _Server(host.strip("[]"), int(port), Pages(collector), credentials)
    except OSError as error:
        raise CannotStart(
            f"metrics address {address}: {error.strerror}: choose another with --metrics-listen, or off"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        """Stop listening, and wait for the thread that accepts. Those of connections under way go on."""
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
