"""Watches the processes that own shares, with a pidfd each: a share ends with its owner, and no pid is mistaken."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sharepod.agent.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.agent.shares.share import ShareId


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (field 22 of /proc/PID/stat); 0 when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # Field 2, the name in parentheses, may itself hold spaces and parentheses: so begin after the last parenthesis.
    state, *fields_from_4 = stat.rpartition(")")[2].split()
    return 0 if state in ("Z", "X") else int(fields_from_4[18])  # a zombie counts as gone


class Owners:
    """The owners under watch. All calls from the event loop.

    Invariant: every watched share has one open pidfd with a reader on the loop.
    """

    def __init__(self, ended: Callable[[ShareId], None]) -> None:
        """Take the callback `ended`, which is called once on the event loop when the owner of a share is gone."""
        self._ended = ended
        self._pidfds: dict[ShareId, int] = {}

    def watch(self, share: ShareId, pid: int, started_ticks: int) -> None:
        """Watch the process `pid`, which started at `started_ticks`, as the owner of a share.

        Raises InvalidInput when it is gone, or the pid is another process's by now.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            pidfd = -1
        # Compared after the pidfd is open: from here on the pid cannot pass to another process unnoticed.
        if pidfd < 0 or start_ticks(pid) != started_ticks or not started_ticks:
            if pidfd >= 0:
                os.close(pidfd)
            raise InvalidInput(f"owner {pid} is not running: give the pid of a live process, or 0 for no owner")
        self._pidfds[share] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._end, share)

    def _end(self, share: ShareId) -> None:
        """Stop watching an owner that is gone, and call `ended`. Called by the loop when its pidfd is readable."""
        self.forget(share)
        self._ended(share)

    def forget(self, share: ShareId) -> None:
        """Stop watching the owner of a share. A share without an owner is no error."""
        pidfd = self._pidfds.pop(share, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """Stop watching all."""
        for share in tuple(self._pidfds):
            self.forget(share)
