"""Runs work that may take long on a thread of its own, for the event loop. The agent's end does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


async def on_thread(name: str, work: Callable[[], Result]) -> Result:
    """Call `work` on a new thread called `name`; return what it returns, or raise what it raises.

    If the caller is cancelled, the work goes on, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def deliver(result: Result | Exception) -> None:
        """Hand the result to the caller, on the event loop."""
        if answer.done():  # the caller has been cancelled
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def run() -> None:
        """Do the work, on its thread."""
        result: Result | Exception
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            result = error
        with contextlib.suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(deliver, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await answer
