"""Yields all objects of one kind at the API server, then each one as it changes, for ever.

The library is not used for this (docs/adr/0026): its `Watch` does not list again after 410, and raises any exception on
a malformed line; its informer has a thread and typed objects. A caller says what is to be read from an object: a change
of anything else is not reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

from sharepod.kube.client import Answer, ApiUnavailable, Client, jittered
from sharepod.kube.objects import at

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from sharepod.kube.objects import Object

LIST_S: Final = 30.0
"""The limit for one answer to a list."""
_SILENT_MAX: Final = 5
"""After this many watches in a row that brought nothing, list again: the server may be unable to serve our version."""
_LASTED: Final = 20
"""In units of `Pace.first_s`: a watch that has lasted this long counts as a success, even if it brought nothing."""
_DOUBLINGS_MAX: Final = 16
"""A bound for the power in the pause, which has long reached its maximum by then."""

T = TypeVar("T")
Change = tuple[Literal["set", "gone"], T]


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the watch comes back after it broke. The pause doubles from `first_s` to `last_s`, with jitter."""

    first_s: float = 0.5
    last_s: float = 30.0
    watch_s: float = 300.0
    """How long the server is asked to keep a watch, plus or minus a fifth."""


@dataclass(frozen=True, slots=True)
class Source(Generic[T]):
    """The objects to watch."""

    path: str
    """The path of the list, such as /api/v1/pods."""
    parameters: Mapping[str, str]
    """Its selectors."""
    read: Callable[[object], T | None]
    """Returns what matters of an object; None: the object is not of this kind."""
    key: Callable[[T], str]
    """The identity of an object: a new object with the name of a deleted one has another key."""
    page: int = 0
    """Objects in one answer to a list; 0: all at once from the server's cache, which suits one node's objects."""


class Informer(Generic[T]):
    """Reports the objects of a source to one reader, which iterates over `changes`."""

    def __init__(self, client: Client, source: Source[T], pace: Pace, log: logging.Logger) -> None:
        self._client = client
        self._source = source
        self._pace = pace
        self._log = log
        self._listed = False
        self.failed: Callable[[], None] = lambda: None
        """Called when the API server does not answer, or not as it should."""

    @property
    def listed(self) -> bool:
        """Tell whether the reader was given all objects once and has handled them."""
        return self._listed

    async def changes(self) -> AsyncGenerator[Change[T]]:
        """Yield every object, then every change of what is read from it, for ever.

        Failures of the API server are logged and waited out. Changes that are missed meanwhile come with the next list:
        in the end the reader has all of the server's objects, and no others.
        """
        view = _View(self._source)
        backoff = _Backoff(self._source.path.rpartition("/")[2], self._pace, self._log)
        while True:
            try:
                async for change in self._list(view):
                    yield change
                self._listed = True  # the reader has handled all of them: it asks for more
                while backoff.silent_watches < _SILENT_MAX:
                    backoff.begin_watch()
                    async with contextlib.aclosing(self._watch(view, backoff)) as changes:
                        async for change in changes:
                            yield change
                    if backoff.was_silent_for_long():
                        break
                    await backoff.pause(None)
                backoff.silent_watches = 0  # watches brought nothing: list again
                view.listed = False
            except _Gone:
                view.version, view.listed = "", False
                await backoff.pause(None)
            except ApiUnavailable as error:
                self.failed()
                if error.status == 504 and not view.listed:  # the server lags behind that version, maybe for ever
                    view.version = ""
                await backoff.pause(error)

    async def _list(self, view: _View[T]) -> AsyncGenerator[Change[T]]:
        """Yield what a new list changes in the view; nothing if only a watch broke since the last list.

        The list is at least as new as the view. Raises _Gone, ApiUnavailable.
        """
        if view.listed:
            return
        parameters = dict(self._source.parameters)
        if self._source.page:
            parameters["limit"] = str(self._source.page)  # and no version: else the server would not make pages
        elif view.version:
            parameters["resourceVersion"] = view.version  # the server answers from its cache, as for kubelet
        listed: list[T] = []
        while True:
            answer = await self._client.call("GET", self._source.path, parameters=parameters, timeout_s=LIST_S)
            items, metadata = answer.body.get("items"), at(answer.body, "metadata")
            version, next_page = metadata.get("resourceVersion"), metadata.get("continue")
            if answer.status == 410:
                raise _Gone
            if answer.status != 200 or not isinstance(version, str) or not (items is None or isinstance(items, list)):
                raise self._client.refusal(answer)
            listed += [found for item in items or [] if (found := self._source.read(item)) is not None]
            if not isinstance(next_page, str) or not next_page:
                break
            parameters["continue"] = next_page
        for change in view.replaced(listed):
            yield change
        view.version, view.listed = version, True

    async def _watch(self, view: _View[T], backoff: _Backoff) -> AsyncGenerator[Change[T]]:
        """Yield the changes of one watch, from the view's version to its end. Raises _Gone, ApiUnavailable."""
        watch_s = int(self._pace.watch_s * random.uniform(0.8, 1.2)) or 1  # noqa: S311 - no secret
        parameters = dict(self._source.parameters) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": view.version,
            "timeoutSeconds": str(watch_s),
        }
        try:
            # The server ends the watch after watch_s; if it does not, the stream breaks 15 s later.
            async with contextlib.aclosing(self._client.stream(self._source.path, parameters, watch_s + 15.0)) as lines:
                async for line in lines:
                    self._check(line)
                    backoff.reset()
                    for change in view.changed(str(line.get("type")), at(line, "object")):
                        yield change
        except ApiUnavailable as error:
            if error.status == 410:
                raise _Gone from None
            raise

    def _check(self, line: Object) -> None:
        """Raise ApiUnavailable when a line of a watch is an error: a Status instead of an object."""
        if line.get("type") == "ERROR":
            status = at(line, "object")
            code = status.get("code")
            raise self._client.refusal(Answer(code if isinstance(code, int) else 0, status))


class _Gone(Exception):
    """The server has forgotten our version (410): everything must be listed again."""


class _View(Generic[T]):
    """What was yielded so far, and its version at the server. It decides which changes are new to the reader."""

    def __init__(self, source: Source[T]) -> None:
        self._source = source
        self.version = "0"  # any version that the server has in its cache: the watch from there brings the rest
        self.listed = False
        """The last list has succeeded, and watches can go on from it; False: list again."""
        self._known: dict[str, T] = {}
        """The objects that the reader has, by key."""

    def replaced(self, listed: list[T]) -> list[Change[T]]:
        """Take all objects of a new list, and return what it changes: first the objects that are gone."""
        keys = {self._source.key(item) for item in listed}
        changes: list[Change[T]] = [("gone", self._known.pop(key)) for key in list(self._known) if key not in keys]
        for item in listed:
            changes += self._set(item)
        return changes

    def changed(self, kind: str, item: Object) -> list[Change[T]]:
        """Take one line of a watch, and return what it changes. A line of `kind` BOOKMARK brings only a version."""
        version = at(item, "metadata").get("resourceVersion")
        found = self._source.read(item) if kind in ("ADDED", "MODIFIED", "DELETED") else None
        changes: list[Change[T]] = []
        if found is not None and kind == "DELETED":
            known = self._known.pop(self._source.key(found), None)
            changes = [("gone", found)] if known is not None else []
        elif found is not None:
            changes = self._set(found)
        if isinstance(version, str) and version:
            self.version = version
        return changes

    def _set(self, item: T) -> list[Change[T]]:
        """Note an object. Return the change; nothing if the reader has the object with the same values."""
        key = self._source.key(item)
        if self._known.get(key) == item:
            return []
        self._known[key] = item
        return [("set", item)]


class _Backoff:
    """Decides how long to wait before the next try. Logs once that the server fails, and once that it is back."""

    def __init__(self, what: str, pace: Pace, log: logging.Logger) -> None:
        self._what = what
        self._pace = pace
        self._log = log
        self._failures = 0
        """Pauses since the last success: each doubles the next one."""
        self._watch_began_s = 0.0
        """When the last watch began."""
        self._logged = False
        """Whether the present failure was logged."""
        self.silent_watches = 0
        """Watches that have begun since the server last sent something."""

    def begin_watch(self) -> None:
        """Note that a watch begins."""
        self._watch_began_s = time.monotonic()
        self.silent_watches += 1

    def was_silent_for_long(self) -> bool:
        """Tell whether the watch that has just ended brought nothing in at least half of `Pace.watch_s`.

        A healthy server sends a bookmark every minute. If it has begun to count its versions anew, it sends nothing
        until it reaches ours: so the caller lists again.
        """
        return self.silent_watches > 0 and time.monotonic() - self._watch_began_s >= self._pace.watch_s / 2

    def reset(self) -> None:
        """Note that the server has sent something: it has not failed, or is back."""
        self._failures = 0
        self.silent_watches = 0
        if self._logged:
            self._logged = False
            self._log.info("API server is back")

    async def pause(self, error: ApiUnavailable | None) -> None:
        """Wait after a watch or list has ended. The pauses grow until the server sends something or a watch has lasted.

        Even after a success there is a pause. `error` is what ended the watch or list; None: no failure.
        """
        if self.silent_watches and time.monotonic() - self._watch_began_s >= _LASTED * self._pace.first_s:
            self._failures = 0  # it lasted in silence: perhaps nothing has happened
        if error is not None and not self._logged and self._failures:  # not the first error: many watches end with one
            self._logged = True
            self._log.warning("%s are not watched", self._what, extra={"error": str(error)})
        pause_s = min(self._pace.first_s * 2 ** min(self._failures, _DOUBLINGS_MAX), self._pace.last_s)
        self._failures += 1
        asked_s = error.after_s if error is not None and error.after_s is not None else 0.0
        await asyncio.sleep(max(asked_s, jittered(pause_s)))
