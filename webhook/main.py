"""Starts and stops the webhook: settings, certificate, server. Nothing is decided here."""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Final

from sharepod.process import metrics_server
from sharepod.process.credentials import Credentials
from sharepod.process.run import drained, listening, run
from sharepod.webhook import gate, translate
from sharepod.webhook.metrics import WebhookMetrics
from sharepod.webhook.server import WebhookServer
from sharepod.webhook.settings import OPTIONS, Settings

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from sharepod.webhook.review import Decision, Request

log = logging.getLogger("sharepod.webhook")

COMPATIBILITY_PATH: Final = "/compatibility"
GATE_PATH: Final = "/gate"


def _serve_metrics(settings: Settings, collector: WebhookMetrics) -> Callable[[], None]:
    """Serve a collector at the address in the settings, unless it is off. Return the function that ends that.

    Raises CannotStart.
    """
    if settings.metrics_listen == "off":
        return lambda: None
    files = settings.metrics_tls_certificate, settings.metrics_tls_key, settings.metrics_token_file
    return metrics_server.serve(collector, settings.metrics_listen, Credentials(*files, reader="webhook"))


async def _serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Serve until `stopping` is set, and for `drain_seconds` more. Raises CannotStart."""
    credentials = Credentials(str(settings.certificate), str(settings.key), what="webhook", reader="webhook")
    handlers: dict[str, Callable[[Request], Decision]] = {
        COMPATIBILITY_PATH: functools.partial(translate.decide, defaults=settings.defaults),
        GATE_PATH: gate.decide,
    }
    collector = WebhookMetrics()
    server = WebhookServer(handlers, credentials, collector)

    def drain() -> None:
        """Begin the drain: from now on clients are sent to other replicas."""
        log.info("webhook stopping", extra={"drain_seconds": settings.drain_seconds})
        server.drain()

    stop_metrics = _serve_metrics(settings, collector)
    try:
        with listening():
            port = await server.start(settings.address, settings.port)
        log.info("webhook started", extra={"address": settings.address or "*", "port": port})
        await drained(stopping, settings.drain_seconds, drain)
    finally:
        await server.stop()
        stop_metrics()


if __name__ == "__main__":
    sys.exit(run(OPTIONS.program, OPTIONS.start(), _serve))
