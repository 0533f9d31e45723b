"""One agent per host: a file lock on the runtime directory, and a name per device in the kernel's socket namespace.

Both fall with the process, however it ends. The second agent gets one line with the first one's pid and the remedy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from typing import TYPE_CHECKING, Final, Self

from sharepod.agent.errors import AgentUnavailable

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

NAME: Final = "agent.lock"
ALREADY_RUNS: Final = "an agent already runs in"
"""How the error of the second agent begins; `sharepod run --private` waits for the first one then."""


class HostLock:
    """The place of the one agent; a context manager. The file is removed on the way out."""

    def __init__(self, runtime_directory: Path) -> None:
        self._path = runtime_directory / NAME
        self._file = -1
        self._names: list[socket.socket] = []

    def __enter__(self) -> Self:
        """Take the place. Raises AgentUnavailable when another agent has it, OSError when there is no directory."""
        while self._file < 0:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.pread(file, 32, 0).decode("ascii", "replace").strip()
                os.close(file)
                # The other one may have the lock and not have said yet who it is.
                which = f" (pid {pid}): use it, or stop it with `kill {pid}`" if pid else ", just started: use it"
                raise AgentUnavailable(f"{ALREADY_RUNS} {self._path.parent}{which}") from None
            # The holder may have removed the file between our open and our lock: then the lock is on nothing.
            if self._is_current(file):
                self._file = file
            else:
                os.close(file)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode("ascii"), 0)
        return self

    def _is_current(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except FileNotFoundError:
            return False

    def claim_device(self, key: str, index: int) -> None:
        """Claim a device for this agent, whatever its runtime directory. Raises AgentUnavailable."""
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            name.bind(b"\0sharepod/device/" + key.encode()[-88:])
        except OSError:
            name.close()
            raise AgentUnavailable(
                f"device {index} belongs to another agent on this host: use that one, or stop it"
            ) from None
        self._names.append(name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the place back, and the directory when nothing is in it."""
        for name in self._names:
            name.close()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()
        os.close(self._file)
