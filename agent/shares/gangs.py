"""Keys for the gangs that live shares name: the arbiter knows a gang by a number.

A gang's full name includes its owner. Else a user could join the gang of another user, and pause it or keep its devices
waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container


class Gangs:
    """Keys of the gangs that live shares name. A key is given out once: 1, 2, 3, …; 0 is no gang."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], int] = {}
        self._last = 0

    def key(self, owner: str, name: str, live: Container[tuple[str, str]]) -> int:
        """Return the key of an owner's gang; 0 for an empty name. A gang without a key gets the next one.

        `live`: the gangs (owner, name) that live shares name. The keys of all others, but for this one, are forgotten.
        """
        if not name:
            return 0
        gang = owner, name
        self._keys = {known: key for known, key in self._keys.items() if known == gang or known in live}
        if gang not in self._keys:
            self._last += 1
            self._keys[gang] = self._last
        return self._keys[gang]
