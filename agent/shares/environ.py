"""Reads what a process's environment says of its share and of MPS. The text is a tenant's: bounded, and printable."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_REGION: Final = b"SHAREPOD_REGION="
_MPS: Final = b"CUDA_MPS_PIPE_DIRECTORY="
_CAPABILITIES: Final = "security.capability"
_HIDDEN: Final = (
    "its mount namespace hides the share's files (bubblewrap, Apptainer, unshare): bind the directories of its region "
    "and of the hook into it, and start it anew"
)
_SHED: Final = (
    "its program gains rights at its start (set-user-ID, file capabilities), and the loader drops the hook then: start "
    "a copy of its file without them (setcap -r, chmod u-s)"
)
_READ_BYTES: Final = 1 << 18
"""Only this much of an environment is read, bytes."""
_REGION_BYTES: Final = 255
"""The longest directory that the hook takes: sp_region.directory of region/region.h."""


def environment_of(pid: int) -> bytes:
    """Return the environment with which the process started; empty if it may not be read.

    The kernel reads it from the process's memory, which may take long: do not call this on the event loop.
    """
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            return file.read(_READ_BYTES)
    except OSError:
        return b""


def region_in(environment: bytes) -> str:
    """Return the value of SHAREPOD_REGION, the directory of a region; empty if there is none.

    It is empty, too, if the value is too long for a hook, or not printable and so not fit for a log.
    """
    for entry in environment.split(b"\0"):
        if entry.startswith(_REGION):
            value = entry.removeprefix(_REGION)
            text = value.decode("utf-8", "replace") if len(value) <= _REGION_BYTES else ""
            return text if text.isprintable() else ""
    return ""


def names_mps(environment: bytes) -> bool:
    """Tell whether the environment sends its program to an MPS daemon."""
    return any(entry.startswith(_MPS) and len(entry) > len(_MPS) for entry in environment.split(b"\0"))


def without_hook(pid: int, region: str, proc: Path = Path("/proc")) -> str:
    """Return why a process that names the region of a share cannot have the hook; empty if no reason is found.

    `region` is what its environment names; `proc` is another directory only in tests. Only root can find the reason for
    a process of another user.
    """
    try:
        if not (proc / str(pid) / "root" / region.lstrip("/") / "terms").exists():
            return _HIDDEN
        status = (proc / str(pid) / "exe").stat()
        gains = status.st_mode & (stat.S_ISUID | stat.S_ISGID) or os.getxattr(proc / str(pid) / "exe", _CAPABILITIES)
    except OSError:
        return ""  # the process may not be inspected, or its file has no capabilities
    return _SHED if gains else ""
