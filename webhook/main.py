"""Starts and stops the webhook: settings, certificate, server. Nothing is decided here."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from sharepod.agent import logs
from sharepod.agent.credentials import Credentials
from sharepod.agent.errors import SettingsError
from sharepod.agent.flags import EXIT_USAGE
from sharepod.webhook import gate, translate
from sharepod.webhook.server import WebhookServer
from sharepod.webhook.settings import Settings, parse_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sharepod.webhook.review import Decision, Request

log = logging.getLogger("sharepod.webhook")

COMPATIBILITY_PATH: Final = "/compatibility"
GATE_PATH: Final = "/gate"


async def _serve(settings: Settings, credentials: Credentials) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    handlers: dict[str, Callable[[Request], Decision]] = {
        COMPATIBILITY_PATH: functools.partial(translate.decide, defaults=settings.defaults),
        GATE_PATH: gate.decide,
    }
    server = WebhookServer(handlers, credentials)
    try:
        port = await server.start(settings.address, settings.port)
        log.info("webhook started", extra={"address": settings.address or "*", "port": port})
        await stopping.wait()
        log.info("webhook stopping", extra={"drain_seconds": settings.drain_seconds})
        server.drain()
        await asyncio.sleep(settings.drain_seconds)
    finally:
        await server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the webhook until SIGTERM or SIGINT. Returns the exit code."""
    try:
        settings = parse_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
        logs.set_up(settings.log_format, settings.log_level)
        credentials = Credentials(str(settings.certificate), str(settings.key), what="webhook", reader="webhook")
        asyncio.run(_serve(settings, credentials))
    except SettingsError as error:
        sys.stderr.write(f"sharepod-webhook: {error}\n")
        return EXIT_USAGE
    except OSError as error:
        sys.stderr.write(f"sharepod-webhook: cannot listen: {error.strerror}: choose another address or port\n")
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
