"""Answers the API server over HTTPS: one path for each handler, and kubelet's probes. It decides nothing.

A handler is pure and quick, so it is called on the event loop. Any peer that reaches the port may send anything. A body
that is no review gets a 4xx status and one line in the log; the number of such lines is limited.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, cast

from aiohttp import web

from sharepod.process.readiness import add_probes
from sharepod.webhook.review import Decision, MalformedReview, Request, answer, read_review

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sharepod.process.credentials import Credentials
    from sharepod.webhook.metrics import WebhookMetrics

log = logging.getLogger("sharepod.webhook")

BODY_MAX: Final = 4 * 2**20
"""Bytes of a body. The API server accepts objects of up to 3 MiB."""
AT_ONCE: Final = 8
"""Bodies that are read at the same time: this bounds the memory that peers can take."""
PATIENCE_S: Final = 3.0
"""The time for a body to arrive. The API server waits for 5 s in total."""
HANDSHAKE_S: Final = 5.0
IDLE_S: Final = 120.0
"""How long a connection without a request stays open."""
LINGER_S: Final = 1.0
"""How long a connection stays open after an answer that was sent before the whole body was read: else the peer could
lose the answer."""
STOP_S: Final = 5.0
"""The time that requests under way have to finish."""
_BURST: Final = 10
"""Lines that the log may get at once about requests that are no reviews."""


class WebhookServer:
    """Serves handlers by path, until it is stopped."""

    def __init__(
        self, handlers: Mapping[str, Callable[[Request], Decision]], credentials: Credentials, metrics: WebhookMetrics
    ) -> None:
        """Serve each handler at its path, which begins with a slash. In `metrics` its name is the path without it."""
        self._metrics = metrics
        self._credentials = credentials
        self._reading = asyncio.Semaphore(AT_ONCE)
        self._complaints = _Complaints()
        self._draining = False
        self._listener: asyncio.Server | None = None
        application = web.Application(client_max_size=BODY_MAX)
        add_probes(application)
        for path, handler in handlers.items():
            application.router.add_post(path, self._route(path.removeprefix("/"), handler))
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=logging.getLogger("sharepod.webhook.http"),
            keepalive_timeout=IDLE_S,
            shutdown_timeout=STOP_S,
            lingering_time=LINGER_S,
            auto_decompress=False,  # the API server compresses nothing, and a few bytes could expand to many
        )

    async def start(self, address: str, port: int) -> int:
        """Listen at `address`, "" for all addresses, and `port`, 0 for a free one. Return the port. Raises OSError."""
        context = self._credentials.following()
        if context is None:
            raise ValueError("a webhook has a certificate")
        await self._runner.setup()
        self._listener = await asyncio.get_running_loop().create_server(
            cast("Callable[[], asyncio.Protocol]", self._runner.server),
            address or None,
            port,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def drain(self) -> None:
        """From now on close each connection after its answer: the client's next one leads to another replica."""
        self._draining = True

    async def stop(self) -> None:
        """Finish the requests under way, within a few seconds, and close."""
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    def _route(
        self, name: str, handler: Callable[[Request], Decision]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return what aiohttp calls for each request to a handler's path. `name`: the handler's name in the metrics."""

        async def serve(request: web.Request) -> web.Response:
            """Answer one request, and count it. A body that is no review gets a 4xx status."""
            began_s, result = time.monotonic(), "malformed"
            try:
                body = await self._read(request)
                review = read_review(body)
                decision = handler(review)
            except MalformedReview as error:
                response = self._refuse(request, 400, str(error))
            except web.HTTPRequestEntityTooLarge:
                response = self._refuse(request, 413, f"the body is longer than {BODY_MAX} bytes")
            except web.HTTPUnsupportedMediaType:
                response = self._refuse(request, 415, "the body is not application/json")
            except ConnectionError:  # caught, because aiohttp would log it with a trace
                response = self._refuse(request, 400, "the peer closed before its body had come")
            except TimeoutError:
                response = self._refuse(request, 408, f"the body did not arrive within {PATIENCE_S:g} s")
            else:
                _tell(review, decision)
                result = decision.result
                response = web.Response(body=answer(review, decision), content_type="application/json")
            self._metrics.answered(name, result, time.monotonic() - began_s)
            if self._draining:
                response.force_close()
            return response

        return serve

    async def _read(self, request: web.Request) -> bytes:
        """Return a request's body. Raises ConnectionError, TimeoutError, or an error of aiohttp's for a wrong body.

        While AT_ONCE other bodies are read, it waits. PATIENCE_S includes this wait.
        """
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        if (request.content_length or 0) > BODY_MAX:
            raise web.HTTPRequestEntityTooLarge(BODY_MAX, request.content_length or 0)
        async with asyncio.timeout(PATIENCE_S), self._reading:
            return await request.read()

    def _refuse(self, request: web.Request, status: int, cause: str) -> web.Response:
        """Log a request that is no review. Return its answer, after which the connection is closed."""
        self._complaints.tell(request.remote, status, cause)
        response = web.Response(status=status, text=cause + "\n")
        response.force_close()  # the rest of what the peer has sent is not read
        return response


class _Complaints:
    """Logs requests that are no reviews: _BURST lines at once, then one line a second. The others are counted."""

    def __init__(self) -> None:
        self._left = float(_BURST)
        """Lines that may be logged now: one more each second, _BURST at most."""
        self._left_at = time.monotonic()
        """When `_left` was last computed."""
        self._untold = 0
        """Requests since the last line that got none."""

    def tell(self, peer: str | None, status: int, cause: str) -> None:
        """Log a request with the status that it got and the cause, or count it for the next line.

        `peer` is its address; None: not known.
        """
        now = time.monotonic()
        self._left, self._left_at = min(float(_BURST), self._left + now - self._left_at), now
        if self._left < 1:
            self._untold += 1
            return
        self._left -= 1
        extra = {"peer": peer, "status": status, "cause": cause} | ({"untold": self._untold} if self._untold else {})
        self._untold = 0
        log.warning("request not understood", extra=extra)


def _tell(request: Request, decision: Decision) -> None:
    """Log the decision about a pod."""
    extra: dict[str, object] = {"namespace": request.namespace, "pod": request.name, "uid": request.uid}
    if request.dry_run:
        extra["dry_run"] = True
    if decision.refusal:
        log.info("pod refused", extra={**extra, "cause": decision.refusal})
    elif decision.patch:
        text = "pod gated" if decision.system == "gates" else "pod translated"
        log.info(text, extra={**extra, "system": decision.system, "warnings": list(decision.warnings)})
    else:
        log.debug("pod unchanged", extra=extra)
