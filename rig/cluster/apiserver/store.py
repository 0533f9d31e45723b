"""Keeps objects by kind and name, a version for every change, and the history of changes.

It knows no rule, no clock and no HTTP. An object that it hands out never changes afterwards: bodies are copied when
they come in, and code that wants to change one makes a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Body = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty: none) and name."""


def copied(body: Body) -> Body:
    """Return a copy that shares nothing with the body."""
    copy: Body = orjson.loads(orjson.dumps(body))
    return copy


@dataclass(frozen=True, slots=True)
class Kept:
    """An object at one version. It never changes."""

    body: Body
    version: int

    def copy(self) -> Body:
        return copied(self.body)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object."""

    version: int
    plural: str
    key: Key
    before: Kept | None
    after: Kept
    there: bool
    """False: it is gone, and `after` is its last state."""


class Compacted(Exception):
    """A version is older than the remembered ones."""


class Store:
    """All objects."""

    def __init__(self, version: int = 100) -> None:
        self.version = version
        self.floor = 0
        """Versions below this one are compacted away."""
        self.changed: set[Callable[[], None]] = set()
        """Called after every change."""
        self._objects: dict[str, dict[Key, Kept]] = {}
        self._history: list[Change] = []
        """One change for every version. Those below `floor` stay: an open watch reads on across a compaction."""

    def reset(self, version: int) -> None:
        """Forget everything, and count from this version."""
        self.version, self.floor = version, 0
        self._objects, self._history = {}, []

    def get(self, plural: str, key: Key) -> Kept | None:
        """Return an object; None: there is no such object."""
        return self._objects.get(plural, {}).get(key)

    def all(self, plural: str, namespace: str = "") -> Iterator[tuple[Key, Kept]]:
        """Yield the objects of a kind, of one namespace or of all, ordered by name."""
        return _in_order(self._objects.get(plural, {}), namespace)

    def all_at(self, plural: str, version: int, namespace: str = "") -> Iterator[tuple[Key, Kept]]:
        """Yield the objects as they were at a version. Raises Compacted."""
        if version < self.floor:
            raise Compacted
        there = self._objects.get(plural, {})
        later = self.since(version)
        if any(change.plural == plural for change in later):
            there = dict(there)
            for change in reversed(later):
                if change.plural == plural:
                    there.pop(change.key, None)
                    if change.before is not None:
                        there[change.key] = change.before
        return _in_order(there, namespace)

    def put(self, plural: str, key: Key, body: Body) -> Kept:
        """Keep a copy of an object, under the next version."""
        kept = self._next(body)
        objects = self._objects.setdefault(plural, {})
        before = objects.get(key)
        objects[key] = kept
        self._remember(Change(kept.version, plural, key, before, kept, there=True))
        return kept

    def delete(self, plural: str, key: Key) -> Kept:
        """Delete an object. Returns it with the version of its deletion."""
        before = self._objects[plural].pop(key)
        gone = self._next(before.body)
        self._remember(Change(gone.version, plural, key, before, gone, there=False))
        return gone

    def since(self, version: int) -> list[Change]:
        """Return the changes after a version."""
        if not self._history or version >= self.version:
            return []
        return self._history[max(0, version - self._history[0].version + 1) :]

    def compact(self) -> None:
        """Refuse requests for a version before this one from now on. Open watches go on."""
        self.floor = self.version

    def _next(self, body: Body) -> Kept:
        """Return a copy of the body as an object under the next version."""
        self.version += 1
        kept = copied(body)
        kept.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        return Kept(kept, self.version)

    def _remember(self, change: Change) -> None:
        """Add a change to the history, and call those that wait for changes."""
        self._history.append(change)
        for told in list(self.changed):
            told()


def _in_order(objects: dict[Key, Kept], namespace: str) -> Iterator[tuple[Key, Kept]]:
    """Yield the objects of a namespace, or of all if it is empty, ordered by namespace and name."""
    for key in sorted(objects):
        if not namespace or key[0] == namespace:
            yield key, objects[key]
