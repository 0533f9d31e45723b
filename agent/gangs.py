"""Numbers for the names of gangs: the arbiter knows them by keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container


class Gangs:
    """Keys of the gangs that live shares name. A key is given out once: 1, 2, 3, …; 0 is no gang."""

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}
        self._last = 0

    def key(self, name: str, live: Container[str]) -> int:
        """Return the key of a gang, 0 for no name. Those that are not among the `live` names are forgotten."""
        if not name:
            return 0
        self._keys = {known: key for known, key in self._keys.items() if known == name or known in live}
        if name not in self._keys:
            self._last += 1
            self._keys[name] = self._last
        return self._keys[name]
