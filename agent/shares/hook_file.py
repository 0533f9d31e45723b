"""Serves the hook to programs: a copy in the hook directory, with its version and a digest of its content in the name.

A served file is never overwritten: running programs have it mapped, and pass its path to their children. An upgrade
serves a new file beside it. The old ones are removed when no share is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.agent.errors import AgentUnavailable
from sharepod.process import files

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTORY_NAME: Final = "hook"


def may_execute(directory: Path) -> bool:
    """Tell whether programs may map code from `directory`: some hosts mount /run or /dev/shm with noexec."""
    return not os.statvfs(directory).f_flag & os.ST_NOEXEC


def serve(
    source: Path, place: Path, version: str, executable: Callable[[Path], bool] = may_execute
) -> tuple[Path, str]:
    """Return the path of the hook for programs, and the reason if that is `source` itself; empty: a copy in `place`.

    `version` becomes part of the copy's name. `executable` tells whether programs may map code from `place`. The caller
    holds the host's lock, so no other agent writes there. Raises AgentUnavailable; no partial file is left.
    """
    try:
        content = source.read_bytes()
    except OSError as error:
        raise AgentUnavailable(
            f"hook {source}: {error.strerror}: build it with `make build`, or reinstall sharepod"
        ) from None
    if not executable(place):
        return source, f"{place} is mounted noexec"
    directory = place / DIRECTORY_NAME
    path = directory / f"libsharepod-{version}-{hashlib.sha256(content).hexdigest()[:12]}.so"
    try:
        directory.mkdir(mode=0o711, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            # This replaces the name of a damaged file at most: a program that has a file mapped keeps it.
            files.replace(path, content)
    except OSError as error:
        raise AgentUnavailable(
            f"hook {path}: {error.strerror}: put it right (space for {len(content)} bytes), "
            "or choose another --hook-directory"
        ) from None
    return path, ""


def remove(place: Path, keep: Path | None = None) -> None:
    """Remove the served hooks except `keep`; without `keep` also their directory. No share may be left."""
    directory = place / DIRECTORY_NAME
    with contextlib.suppress(OSError):
        for path in directory.glob("libsharepod-*"):
            if path != keep:
                path.unlink()
        if keep is None:
            directory.rmdir()
