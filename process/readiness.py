"""Answers kubelet's probes: GET /healthz while the process serves, GET /readyz once it can answer its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable


def add_probes(application: web.Application, not_ready: Callable[[], str] = str) -> None:
    """Serve both probes in the application.

    `not_ready` returns why the process cannot answer its clients yet; empty text: it can. The default: it always can.
    """

    async def healthy(_: web.Request) -> web.Response:
        """Answer 200: kubelet asks only whether the process answers."""
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        """Answer 200, or 503 with the reason while the process cannot answer its clients."""
        why = not_ready()
        return web.Response(status=503 if why else 200, text=(why or "ok") + "\n")

    application.router.add_get("/healthz", healthy)
    application.router.add_get("/readyz", ready)
