"""Waiting: the one loop that asks again and again until something holds."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
Says = str | Callable[[], str]

PATIENCE_S = 30.0
"""For a machine that has much else to do; what waits longer hangs."""
POLL_S = 0.01
SELDOM_S = 0.1
PART = 20
"""Each pause is one in so many parts of the time waited so far, SELDOM_S at most: to wait for long costs little."""


class NotInTimeError(AssertionError):
    """What was waited for did not come true; the text says what it was."""


def until(holds: Callable[[], T], what: Says = "", timeout_s: float = PATIENCE_S, *, poll_s: float = POLL_S) -> T:
    """Ask until `holds()` is true, and return what it returned. Raises NotInTimeError that says `what`.

    `what` may be a function, so that the error holds a log as it is at the end.
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
    return max(poll_s, min(waited_s / PART, SELDOM_S))


def _not_in_time(holds: object, what: Says, timeout_s: float) -> NotInTimeError:
    said = what if isinstance(what, str) else what()
    return NotInTimeError(f"not within {timeout_s:g} s: {said or holds}")
