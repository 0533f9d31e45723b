"""Work that never ends of itself: a loop that does is a fault, and is not gone on without."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def for_ever(work: Coroutine[None, None, None]) -> None:
    """Await what never ends of itself. Raises RuntimeError when it does: the process is to end, not to go on without.

    That includes what a library cancels within it, which a TaskGroup takes for a quiet end.
    """
    try:
        await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    raise RuntimeError(f"{getattr(work, '__qualname__', work)} ended")
