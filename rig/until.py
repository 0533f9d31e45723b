"""Waiting: the one loop that polls until a condition holds."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
Says = str | Callable[[], str]

PATIENCE_S = 30.0
"""Long enough for a busy machine: a longer wait means a hang."""
POLL_S = 0.01
SELDOM_S = 0.1
PART = 20
"""A pause lasts one PARTth of the time waited so far, SELDOM_S at most: so long waits cost little."""


class NotInTimeError(AssertionError):
    """The condition did not come true in time. The text says which."""


def until(holds: Callable[[], T], what: Says = "", timeout_s: float = PATIENCE_S, *, poll_s: float = POLL_S) -> T:
    """Poll until `holds()` is true, and return its result. Raises NotInTimeError with `what` in its text.

    `what` may be a function, so that the error can show a log as it is at the end.
    """
    began = time.monotonic()
    while not (found := holds()):
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise _not_in_time(holds, what, timeout_s)
        time.sleep(_pause_s(waited_s, poll_s))
    return found


async def eventually(
    holds: Callable[[], T | Awaitable[T]], what: Says = "", timeout_s: float = PATIENCE_S, *, poll_s: float = POLL_S
) -> T:
    """Do as `until` in an event loop; `holds` may be a coroutine function."""
    began = time.monotonic()
    while True:
        found = holds()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise _not_in_time(holds, what, timeout_s)
        await asyncio.sleep(_pause_s(waited_s, poll_s))


def _pause_s(waited_s: float, poll_s: float) -> float:
    """Return how long to sleep before the condition is asked again."""
    return max(poll_s, min(waited_s / PART, SELDOM_S))


def _not_in_time(holds: object, what: Says, timeout_s: float) -> NotInTimeError:
    """Return the error for a condition that did not come true, with `what` or else the condition itself."""
    said = what if isinstance(what, str) else what()
    return NotInTimeError(f"not within {timeout_s:g} s: {said or holds}")
