"""What a process's environment says of its share. The text is the tenant's: bounded, and printable or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_VARIABLE: Final = b"SHAREPOD_REGION="
_READ_BYTES: Final = 1 << 18
"""So much of an environment is read; what stands behind is not looked for."""
_REGION_BYTES: Final = 255
"""The longest directory that the hook takes: sp_region.directory of hook/region.h."""


def region_of(pid: int) -> str:
    """Return what SHAREPOD_REGION was when the process started; empty when it is not set or may not be read.

    It reads the process's memory, which may take long: not for the event loop.
    """
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            return region_in(file.read(_READ_BYTES))
    except OSError:
        return ""


def region_in(environment: bytes) -> str:
    """Return the value of SHAREPOD_REGION; empty when there is none that a hook would take and a log may show."""
    for entry in environment.split(b"\0"):
        if entry.startswith(_VARIABLE):
            value = entry.removeprefix(_VARIABLE)
            text = value.decode("utf-8", "replace") if len(value) <= _REGION_BYTES else ""
            return text if text.isprintable() else ""
    return ""
