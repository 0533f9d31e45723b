"""Watches: changes line by line, bookmarks, and the end of a watch, orderly or not.

A watch reads the store's history from its own position. So it misses no change, however slow it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson
from aiohttp import web

from .listing import matcher, number
from .refusal import bad_request, expired

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .kinds import Place
    from .store import Change, Store

Break = Literal["end", "cut", "half"]
"""How a watch ends: in order; by an aborted connection; by one that is aborted in the middle of a line."""

_LONG_S = 1800.0
_HALF = b'{"type":"MODIFIED","object":{"kind":"Po'
_BOOKMARK_BEFORE_END_S = 2.0


@dataclass(eq=False)
class Watcher:
    """One watch. `broken` is the way in which it has to end."""

    place: Place
    matches: Callable[[Mapping[str, Any]], bool]
    bookmarks: bool
    at: int
    """The version up to which everything was sent."""
    since: int
    """The version at which it began."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    broken: Break | None = None
    bookmark_due: bool = False


class Watches:
    """All open watches of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: list[Watcher] = []
        self._cuts = 0
        self.gone_by_status = False
        """How a watch from a version that is gone is refused. True: by the answer's status. False: in the stream."""
        store.changed.add(self._wake)

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def bookmarked(self) -> bool:
        """Whether every watch was sent its bookmark."""
        return not any(watcher.bookmark_due for watcher in self._open)

    def bookmark(self) -> None:
        """Send a bookmark to every watch that takes them."""
        for watcher in self._open:
            watcher.bookmark_due = True
            watcher.wake.set()

    def cut(self, how: Break, coming: int = 0) -> None:
        """End all watches in the way `how`. The next `coming` ones are cut as soon as they begin."""
        for watcher in self._open:
            watcher.broken = how
            watcher.wake.set()
        self._cuts = coming

    def _wake(self) -> None:
        for watcher in self._open:
            watcher.wake.set()

    async def serve(self, request: web.Request, place: Place) -> web.StreamResponse:
        """Answer a watch until it ends. Raises Refusal."""
        query = request.query
        matches = matcher(place, query)
        since = number(query, "resourceVersion")
        if not since:
            raise bad_request("the double watches from a version on")
        gone = since < self._store.floor
        refusal = expired(f"too old resource version: {since} ({self._store.floor})")
        if gone and self.gone_by_status:
            raise refusal
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await response.prepare(request)
        except ConnectionError:  # the client is gone again
            return response
        if gone:
            await response.write(_line("ERROR", refusal.status))
            return response
        watcher = Watcher(place, matches, query.get("allowWatchBookmarks") in ("true", "1"), since, since)
        if self._cuts:
            self._cuts -= 1
            watcher.broken = "cut"
        self._open.append(watcher)
        try:
            with contextlib.suppress(ConnectionError):
                await self._follow(watcher, request, response, number(query, "timeoutSeconds") or _LONG_S)
        finally:
            self._open.remove(watcher)
        return response

    async def _follow(
        self, watcher: Watcher, request: web.Request, response: web.StreamResponse, seconds: float
    ) -> None:
        """Send changes when they come, until the watch is broken or `seconds` are over.

        Shortly before the end a bookmark is sent.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        bookmark_s = end_s - min(_BOOKMARK_BEFORE_END_S, seconds / 2)
        while loop.time() < end_s:
            watcher.wake.clear()
            if not await self._send(watcher, request, response):
                return
            until_s = bookmark_s if loop.time() < bookmark_s else end_s
            try:
                async with asyncio.timeout_at(until_s):
                    await watcher.wake.wait()
            except TimeoutError:
                # As the real server does: only if the version is newer than at the watch's begin.
                if until_s == bookmark_s and watcher.at > watcher.since:
                    watcher.bookmark_due = True

    async def _send(self, watcher: Watcher, request: web.Request, response: web.StreamResponse) -> bool:
        """Send the pending changes, and a bookmark if one is due. Return whether the watch goes on."""
        for change in self._store.since(watcher.at):
            if watcher.broken:
                break
            watcher.at = change.version
            line = self._line_of(watcher, change)
            if line:
                await response.write(line)
        if watcher.bookmark_due and not watcher.broken:
            watcher.bookmark_due = False
            if watcher.bookmarks and watcher.at <= self._store.version:
                await response.write(_line("BOOKMARK", _bookmark(watcher.place, watcher.at)))
        if watcher.broken == "half":
            await response.write(_HALF)
        if watcher.broken in ("cut", "half") and request.transport is not None:
            request.transport.abort()
        return watcher.broken is None

    def _line_of(self, watcher: Watcher, change: Change) -> bytes:
        """Return the line for a change; empty: the watch does not see it.

        An object that begins to match appears for the watch, and one that ceases to match vanishes.
        """
        if change.plural != watcher.place.kind.plural:
            return b""
        was = change.before is not None and watcher.matches(change.before.body)
        now = change.there and watcher.matches(change.after.body)
        if not was and not now:
            return b""
        if now:
            return self._said(watcher, "MODIFIED" if was else "ADDED", change.after.body)
        if change.before is not None and change.there:  # the watch gets the state in which it last matched
            last = change.before.copy()
            last["metadata"]["resourceVersion"] = str(change.version)
            return self._said(watcher, "DELETED", last)
        return self._said(watcher, "DELETED", change.after.body)

    def _said(self, watcher: Watcher, what: str, body: Mapping[str, Any]) -> bytes:
        """Return the line that tells of an object of the watch's kind. `what` is ADDED, MODIFIED or DELETED."""
        kind = watcher.place.kind
        return _line(what, {"kind": kind.kind, "apiVersion": kind.api_version, **body})


def _line(what: str, body: Mapping[str, Any]) -> bytes:
    """Return one event of a watch as it is sent."""
    return orjson.dumps({"type": what, "object": body}) + b"\n"


def _bookmark(place: Place, version: int) -> dict[str, Any]:
    """Return the object of a bookmark: it has nothing but its version."""
    body: dict[str, Any] = {
        "kind": place.kind.kind, "apiVersion": place.kind.api_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
    }  # fmt: skip
    if place.kind.plural == "pods":
        body |= {"spec": {"containers": None}, "status": {}}
    return body
