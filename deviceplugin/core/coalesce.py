"""A look at somebody who is asked by many at once: they share what he answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Answer = TypeVar("Answer")


class Look(Generic[Answer]):
    """Whoever asks while a call is under way shares the next one.

    Not the one under way, which may have looked before what he wants to know about happened.
    """

    def __init__(self, ask: Callable[[], Awaitable[Answer]]) -> None:
        self._ask = ask
        self._current: asyncio.Task[Answer] | None = None
        self._next: asyncio.Task[Answer] | None = None

    async def take(self) -> Answer:
        """Return what is answered to a call that begins now or a moment later. Raises what that call raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._ask_after(self._current))
            # Those who asked may all have gone when it fails.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def end(self) -> None:
        """Give up what is asked."""
        tasks = [task for task in (self._current, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_after(self, before: asyncio.Task[Answer] | None) -> Answer:
        if before is not None:
            await asyncio.wait([before])
        self._current, self._next = self._next, None
        return await self._ask()
