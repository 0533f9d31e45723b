"""Replaces a file in one step. A reader finds the old content or the new, never a part of it, also after a crash."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
UNFINISHED: Final = ".new"
"""The suffix of a file that is being written. A crash may leave such a file, and the next write replaces it."""


def replace(path: Path, content: str | bytes, mode: int = 0o644) -> os.stat_result:
    """Replace the file at `path`, also on disk, and give it `mode`. Return the status of the new file.

    Only one process may write it at a time. Raises OSError: then the old file is still there, and no part of the new
    one is left. On a full disk such a part would take the room that the next write needs.
    """
    fresh = path.with_name(path.name + UNFINISHED)
    try:
        with open(os.open(fresh, _FLAGS, mode), "wb") as file:  # noqa: PTH123 - a descriptor
            os.fchmod(file.fileno(), mode)  # neither the umask nor an unfinished file may change the mode
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
