"""Replaces a file in one step. A reader finds the old content or the new, never a part, also after a crash."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
UNFINISHED: Final = ".new"
"""Ends the name of what is being written. A crash may leave such a file; the next write replaces it."""


def replace(path: Path, content: str | bytes, mode: int = 0o644) -> os.stat_result:
    """Replace the file at `path`, also on disk; return what it is then. One process writes it at a time.

    Raises OSError, after which the old file is there and no part of the new one: on a full disk a part of it would keep
    the room that the next one needs.
    """
    fresh = path.with_name(path.name + UNFINISHED)
    try:
        with open(os.open(fresh, _FLAGS, mode), "wb") as file:  # noqa: PTH123 - a descriptor
            os.fchmod(file.fileno(), mode)  # whatever the umask took, and whatever a crash left
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
            found = os.fstat(file.fileno())
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    return found
