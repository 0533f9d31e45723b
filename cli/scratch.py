"""A directory that lives as long as its process. If the process is killed, the next command of its kind removes it.

The process holds a lock on the directory itself: the kernel releases it when the process ends, whatever ends it. The
pid in the name is for human readers. It also tells these directories from others with a similar name.
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
    """A new directory for this user only, `PREFIX.PID.RANDOM`. A context manager; `remove` ends it too."""

    def __init__(self, prefix: str, parent: str = IN_MEMORY) -> None:
        """Remove what dead processes of this user left under the prefix, then make the directory. Raises OSError."""
        for left in Path(parent).glob(f"{prefix}.[0-9]*.*"):
            _remove_unless_locked(left)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}.{os.getpid()}.", dir=parent))
            # Another process may remove it before it is locked. Then it is made again.
            try:
                self.path.chmod(0o700)  # the umask may have taken rights from it
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
        """Remove the directory and its contents. A second call does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _open(path: Path) -> int:
    """Return a descriptor of a directory, to lock it. Raises OSError, also for a file and for a symbolic link."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_unless_locked(path: Path) -> None:
    """Remove a directory of this user, unless it is locked: then the process that made it is alive."""
    try:
        lock = _open(path)
    except OSError:  # it belongs to another user, is no directory, or is gone
        return
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:  # it is locked
        pass
    finally:
        os.close(lock)
