"""Coalesces calls: callers that ask the same service at the same time share one answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Answer = TypeVar("Answer")


class Look(Generic[Answer]):
    """Makes one call at a time. Callers that ask while a call is under way share the next call.

    They can't share the present one: it may have looked before the event that the caller wants to know about.
    """

    def __init__(self, ask: Callable[[], Awaitable[Answer]]) -> None:
        """`ask` makes the call to the service."""
        self._ask = ask
        self._current: asyncio.Task[Answer] | None = None
        """The last call that began; None: none has begun yet."""
        self._next: asyncio.Task[Answer] | None = None
        """The call that waits for the end of the current one; None: nobody has asked for it."""

    async def take(self) -> Answer:
        """Return the answer to a call that begins now or a moment later. Raises what that call raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._ask_after(self._current))
            # All callers may be gone by the time the call fails: mark its exception as retrieved.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)  # a caller that is cancelled does not end the others' call

    async def end(self) -> None:
        """Cancel the calls that are under way."""
        tasks = [task for task in (self._current, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_after(self, before: asyncio.Task[Answer] | None) -> Answer:
        """Await the end of the call `before`, make this task the current call, and ask. Raises what that raises."""
        if before is not None:
            await asyncio.wait([before])
        self._current, self._next = self._next, None
        return await self._ask()
