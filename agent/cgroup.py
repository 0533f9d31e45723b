"""Reads where processes stand in the tree of cgroup v2, and where that tree is mounted. Decides nothing."""

from __future__ import annotations

import os
import re
import select
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.agent import container
from sharepod.agent.container import UNSEEN, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sharepod.agent.share import ShareId

_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_NOT_MOUNTED: Final = "the cgroup of its container is not below a mount of cgroup v2 that the agent sees"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def cgroup_of(pid: int) -> str | None:
    """Return the cgroup of a process, as our cgroup namespace names it; None when it is gone.

    UNSEEN when it lives and may not be read, or when the machine has no cgroup v2.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError:
        return UNSEEN
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        text = ""
    finally:
        # Readable when it has ended: then the pid, and what was read of it, may be another's.
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        ended = bool(poll.poll(0))
        os.close(pidfd)
    return None if ended else unified(text)


def places(attached: Callable[[], Mapping[ShareId, set[tuple[int, int]]]]) -> dict[ShareId, Place]:
    """Return the container of each share, as a directory; `attached` tells the (pid, slot) of its processes now."""
    before = attached()
    cgroups = {pid: cgroup_of(pid) for processes in before.values() for pid, _ in processes}
    # The pid of what has lost its slot since may have been another's when its cgroup was read.
    tenants = {
        share: [found for pid, _ in before.get(share, set()) & processes if (found := cgroups[pid]) is not None]
        for share, processes in attached().items()
    }
    own = cgroup_of(os.getpid()) or UNSEEN
    return {share: _located(place) for share, place in container.places(tenants, own).items()}


def _located(place: Place) -> Place:
    if not place.container:
        return place
    directory = directory_of(place.container)
    return Place(directory) if directory else Place(cause=_NOT_MOUNTED)


def unified(text: str) -> str:
    """Return the cgroup of version 2 in the text of /proc/PID/cgroup; UNSEEN when there is none that can be told."""
    found = next((line.removeprefix("0::") for line in text.splitlines() if line.startswith("0::/")), UNSEEN)
    return UNSEEN if ".." in found.split("/") else found  # outside of what our cgroup namespace shows


def mounts(text: str) -> list[tuple[str, str]]:
    """Return (root, mount point) of each mount of cgroup v2 in the text of /proc/PID/mountinfo."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            root, point = (_ESCAPE.sub(lambda m: chr(int(m[1], 8)), field) for field in fields.split(" ")[3:5])
            found.append((root.rstrip("/"), point))
    return found


def directory_of(cgroup: str) -> str:
    """Return the directory of a cgroup, below a mount that this process sees; empty when there is none."""
    for root, point in mounts(_MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")):
        directory = Path(point + cgroup.removeprefix(root))
        if (cgroup == root or cgroup.startswith(root + "/")) and (directory / "cgroup.procs").is_file():
            return str(directory)
    return ""


def is_mounted() -> bool:
    """Tell whether this process sees a tree of cgroup v2."""
    return bool(mounts(_MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")))
