"""Tells the kind of filesystem that a path is on, by the kernel's table of mounts. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

TABLE: Final = "/proc/self/mounts"
IN_MEMORY: Final = ("tmpfs", "ramfs")
"""The kinds that are never written to a disk, but for swap."""
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path, table: str) -> str:
    """Return the kind of filesystem of an absolute path without symbolic links; empty: the table does not tell.

    `table`: the text of TABLE. The longest mount point above the path holds it; of equal ones, the last that was made.
    """
    longest, found = "", ""
    for line in table.splitlines():
        _, escaped, kind, *_ = line.split(" ")
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), escaped)  # a space, a tab, a newline or a backslash
        if path.is_relative_to(point) and len(point) >= len(longest):
            longest, found = point, kind
    return found
