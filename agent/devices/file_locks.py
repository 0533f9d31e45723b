"""Finds the users that have locked a file: /proc/locks lists the processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")


def holders(file: int) -> list[int]:
    """Return the users of the processes that have locked the open file with flock, if this namespace shows them."""
    status, found = os.fstat(file), list[int]()
    with contextlib.suppress(OSError, ValueError):
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 708 08:01:13 0 EOF; the device's two parts are hexadecimal
            if "->" in words or words[1] != "FLOCK":  # one that waits for the lock, or a lock of another kind
                continue
            major, minor, inode = words[5].split(":")
            if (os.makedev(int(major, 16), int(minor, 16)), int(inode)) == (status.st_dev, status.st_ino):
                found += _users(words[4])
    return found


def _users(pid: str) -> list[int]:
    """Return the user of a process; empty if it is gone or not shown here."""
    # The owner of /proc/PID would be wrong: it is root for a process that has made itself undumpable.
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return [int(line.split()[1])]
    return []
