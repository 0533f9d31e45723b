"""Finds processes by what they have open, a locked file or a socket, and tells the user of a process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")


def holders(status: os.stat_result) -> dict[int, int]:
    """Return the users, by pid, of the processes that have locked a file with flock, as far as they are shown here.

    `status`: that of the file.
    """
    found: dict[int, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 708 08:01:13 0 EOF; the device's two parts are hexadecimal
            if "->" in words or words[1] != "FLOCK":  # one that waits for the lock, or a lock of another kind
                continue
            major, minor, inode = words[5].split(":")
            if (os.makedev(int(major, 16), int(minor, 16)), int(inode)) == (status.st_dev, status.st_ino):
                user = user_of(int(words[4]))
                found |= {} if user is None else {int(words[4]): user}
    return found


def with_socket(inode: int) -> int | None:
    """Return the pid of the process that has a socket; None: it is of another user, or not shown here."""
    wanted = f"socket:[{inode}]"
    return next((pid for pid in map(int, _pids()) if wanted in open_files(pid)), None)


def open_files(pid: int) -> set[str]:
    """Return the paths of a process's open files; empty if they may not be read."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(entry.readlink()))
    return found


def _pids() -> list[str]:
    """Return the pids of all processes that are shown here, as text."""
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def user_of(pid: int) -> int | None:
    """Return the user id of a process; None when it is gone."""
    # The owner of /proc/PID would be wrong: it is root for a process that has made itself undumpable.
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:")), None)
