"""What a process's environment says of its share and of MPS. A tenant's text: bounded, and printable or nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_REGION: Final = b"SHAREPOD_REGION="
_MPS: Final = b"CUDA_MPS_PIPE_DIRECTORY="
_CAPABILITIES: Final = "security.capability"
_HIDDEN: Final = (
    "its mount namespace hides the share's files (bubblewrap, Apptainer, unshare): bind its region's directory and the "
    "hook's into it"
)
_SHED: Final = (
    "its program gains rights at its start (set-user-ID, file capabilities), and the loader drops the hook then"
)
_READ_BYTES: Final = 1 << 18
"""So much of an environment is read; what stands behind is not looked for."""
_REGION_BYTES: Final = 255
"""The longest directory that the hook takes: sp_region.directory of region/region.h."""


def environment_of(pid: int) -> bytes:
    """Return the environment with which the process started; empty when it may not be read.

    It reads the process's memory, which may take long: not for the event loop.
    """
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            return file.read(_READ_BYTES)
    except OSError:
        return b""


def region_in(environment: bytes) -> str:
    """Return the value of SHAREPOD_REGION; empty when there is none that a hook would take and a log may show."""
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
    """Say why a process of a share, which names its region, cannot have the hook; empty where nothing shows.

    Of another user's process only root sees that.
    """
    try:
        if not (proc / str(pid) / "root" / region.lstrip("/") / "terms").exists():
            return _HIDDEN
        status = (proc / str(pid) / "exe").stat()
        gains = status.st_mode & (stat.S_ISUID | stat.S_ISGID) or os.getxattr(proc / str(pid) / "exe", _CAPABILITIES)
    except OSError:
        return ""
    return _SHED if gains else ""
