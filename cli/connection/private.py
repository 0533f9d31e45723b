"""A private agent: the node's backend for as long as it has shares. `sharepod run --private` starts it.

Run as `python -m sharepod.cli.connection.private SOCKET [DEVICES]`. It detaches itself, then runs the agent's own main
in this process. A thread looks for directories of shares. When there are none any more, it stops the agent by SIGTERM,
as an operator would.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

_FIRST_SHARE_S: Final = 100.0
"""How long to wait for the first share if the command that wants it is still there: it waits 75 s for the agent."""
_ENDS_WITH_GROUP: Final = (
    "this private agent is in the control group of the session, service or job that started it ({}): when that ends, "
    "the agent ends too, and the other programs run on unmetered: for these start `sharepod agent` elsewhere"
)
_LOOK_S: Final = 0.5
_EMPTY_LOOKS: Final = 4
"""The agent ends after this many looks in a row without a share, so that programs in sequence share one agent."""


def main() -> int:
    """Detach and serve until no share is left; return the agent's exit code."""
    socket_path, *simulate = sys.argv[1:]
    launcher = os.pidfd_open(os.getppid())
    group = cgroup()
    troubles = [_ENDS_WITH_GROUP.format(group)] if group != "/" and group == cgroup(os.getppid()) else []
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    from sharepod.agent.main import run_agent
    from sharepod.agent.settings import OPTIONS, SHARES_NAME

    runtime = Path(socket_path).parent
    threading.Thread(target=_stop_when_empty, args=(runtime / SHARES_NAME, launcher), daemon=True).start()
    flags = ["--runtime-directory", str(runtime), "--log-level", "warning", "--metrics-listen", "off"]
    return run_agent(
        OPTIONS.start([*flags, *(["--simulate", simulate[0]] if simulate else [])]), private=True, troubles=troubles
    )


def cgroup(pid: int | str = "self") -> str:
    """Return the control group with which systemd or a job's manager would end a process; "/" if there is none."""
    lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    groups = dict(line.split(":", 2)[1:] for line in lines)
    return groups.get("name=systemd", groups.get("", "/"))


def _stop_when_empty(shares: Path, launcher: int) -> None:
    """End this process when `_EMPTY_LOOKS` looks in a row find no directory in `shares`.

    Before the first share a look counts only if the process of the pidfd `launcher` has ended, or `_FIRST_SHARE_S` are
    over.
    """
    first_deadline = time.monotonic() + _FIRST_SHARE_S
    empty = 0
    while empty < _EMPTY_LOOKS:
        time.sleep(_LOOK_S)
        if shares.is_dir() and any(shares.iterdir()):
            first_deadline, empty = 0.0, 0  # 0.0 is in the past: from now on every look counts
        elif time.monotonic() > first_deadline or select.select([launcher], [], [], 0)[0]:
            empty += 1
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
