"""Runs a test against a started double."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .server import ApiServer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def with_server(test: Callable[[ApiServer, Path], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine with a started API server and a directory for its service account."""

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="sharepod-test-") as directory:
            async with ApiServer() as server:
                await test(server, Path(directory) / "account")

    asyncio.run(run())
