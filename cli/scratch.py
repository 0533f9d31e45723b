"""A directory for as long as its process lives, also where that is killed: the next one of its kind takes it away.

The lock on the directory itself is what tells: the kernel gives it back with its process, whatever ends that. The pid
in the name is for people, and for telling these directories from all others of a like name.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

IN_MEMORY: Final = "/dev/shm"  # noqa: S108 - each has a directory of its own there, private and of a new name


class Scratch:
    """A new directory of this user alone, `PREFIX.PID.RANDOM`; a context manager, or ended by `remove`."""

    def __init__(self, prefix: str, parent: str = IN_MEMORY) -> None:
        """Make it, after taking away those of the same prefix and user whose process is gone. Raises OSError."""
        for left in Path(parent).glob(f"{prefix}.[0-9]*.*"):
            _remove_unless_held(left)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}.{os.getpid()}.", dir=parent))
            # Another process may find it before it is locked, and take it away: then it is made again.
            try:
                self.path.chmod(0o700)  # whatever the umask took
                self._lock = _open(self.path)
            except FileNotFoundError:
                continue
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with all that is in it; a second time nothing happens."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_unless_held(path: Path) -> None:
    try:
        lock = _open(path)
    except OSError:  # another user's, no directory, or gone by now
        return
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:  # its process lives
        pass
    finally:
        os.close(lock)
