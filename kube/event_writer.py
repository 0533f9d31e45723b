"""Writes Events to the API server in the background: no caller waits for an Event, and no call raises."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import TYPE_CHECKING, Final, Self

from sharepod.kube.client import MERGE, Answer, ApiUnavailable, Client
from sharepod.kube.events import EventBook, Subject, Writing, event_namespace, notice

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger("sharepod.kube.events")

EVENT_S: Final = 5.0
"""The limit for one try to write an Event."""
EVENT_TRIES: Final = 3
_QUEUE_MAX: Final = 256
"""The most Events that wait to be written."""


class EventWriter:
    """Writes the Events of one component; an asynchronous context manager. At its end it still writes for a moment."""

    def __init__(self, client: Client, host: str, component: str, first_s: float = 0.5) -> None:
        """The Events say that `component` on `host` reports. `first_s` sets the pauses between tries: see `_write`."""
        self._client = client
        self._first_s = first_s
        self._book = EventBook(host, component)
        self._writings: asyncio.Queue[Writing] = asyncio.Queue(_QUEUE_MAX)
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write_events(), name="sharepod events")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the pending Events, for half of EVENT_S at most, then end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._writings.join(), EVENT_S / 2)
        if self._writer is not None:
            self._writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writer

    @property
    def waiting(self) -> int:
        """Return how many Events are still to be written. When there are too many, new ones are dropped."""
        return self._writings.qsize()

    def tell(self, subject: Subject, reason: str, message: str, *, warning: bool) -> None:
        """Count an Event. Queue it to be written, unless enough was written about its subject (EventBook).

        `reason` is one word for programs, `message` a line for users. If _QUEUE_MAX Events are queued, this one is
        dropped, and the log says so.
        """
        about = notice(subject, reason, message, warning=warning)
        writing = self._book.take(about, time.monotonic(), time.time())
        if writing is None:
            return
        try:
            self._writings.put_nowait(writing)
        except asyncio.QueueFull:
            self._book.forget(writing)
            log.warning("event dropped", extra={"pod": f"{subject.namespace}/{subject.name}", "reason": about.reason})

    async def _write_events(self) -> None:
        """Write what is queued, one Event after the other, for ever."""
        while True:
            writing = await self._writings.get()
            try:
                await self._write(writing)
            except Exception:
                log.exception("event failed", extra={"reason": writing.notice.reason})
            finally:
                self._writings.task_done()

    async def _write(self, writing: Writing) -> None:
        """Write one Event, in up to EVENT_TRIES tries. If all fail, the Event is dropped, and the log says so.

        The pause before the second try is at most 4 times `first_s`, before the third 16 times.
        """
        why = ""
        for attempt in range(EVENT_TRIES):
            if attempt:
                await asyncio.sleep(self._first_s * 4**attempt * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            try:
                answer = await self._send(writing)
            except ApiUnavailable as error:
                why = str(error)
                if error.final:
                    break
                continue
            if 200 <= answer.status < 300:
                return
            why = str(self._client.refusal(answer))
            if answer.status == 409 and writing.create and attempt:
                return  # the answer to an earlier try was lost, but that try has succeeded
            # 409 for a new Event: its name is taken. 404 for a change: the Event has expired. Both are created anew.
            if answer.status != (409 if writing.create else 404):
                break
            writing = self._book.again(writing, time.time())
        self._book.forget(writing)
        subject = writing.notice.subject
        log.warning(
            "event not written",
            extra={"pod": f"{subject.namespace}/{subject.name}", "reason": writing.notice.reason, "error": why},
        )

    async def _send(self, writing: Writing) -> Answer:
        """Send one write. Return the answer, which may be a refusal about the Event. Raises ApiUnavailable."""
        path = f"/api/v1/namespaces/{event_namespace(writing.notice.subject)}/events"
        if writing.create:
            return await self._client.call("POST", path, body=writing.body, timeout_s=EVENT_S)
        path += f"/{writing.name}"
        return await self._client.call("PATCH", path, body=writing.body, media=MERGE, timeout_s=EVENT_S)
