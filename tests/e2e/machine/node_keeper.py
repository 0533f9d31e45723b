"""Keeps a node: makes its control groups and namespaces, waits for its end, and removes what would stay.

The keeper is a process of its own outside the node, so that a test run that is interrupted or killed still leaves
nothing. The node's first process ends when the other end of its socket closes, and with it the kernel ends everything
else in the node. Only control groups and the state folder are left, and the keeper removes them. It ends only what it
made.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup")
REMOVAL_SECONDS = 10.0


def own_groups(name: str) -> dict[str, Path]:
    """Return for each mounted hierarchy of version 1 the folder of the node's group, below this process's group."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        hierarchy = CGROUPS / controllers.removeprefix("name=")
        if controllers and hierarchy.is_dir():
            groups[controllers] = hierarchy / path.lstrip("/") / name
    return groups


def enter(groups: dict[str, Path]) -> None:
    """Make the groups and move this process into them, so that its children start there."""
    for controllers, group in groups.items():
        group.mkdir()
        if "cpuset" in controllers.split(","):
            for setting in ("cpuset.cpus", "cpuset.mems"):
                (group / setting).write_text((group.parent / setting).read_text())
        (group / "cgroup.procs").write_text(str(os.getpid()))


def leave(groups: dict[str, Path]) -> None:
    """Move this process back to its earlier groups, and remove the node's groups with all below them."""
    for group in groups.values():
        if group.exists():
            (group.parent / "cgroup.procs").write_text(str(os.getpid()))
    deadline = time.monotonic() + REMOVAL_SECONDS
    for group in groups.values():
        # A group's last process may still be ending, and a memory group stays busy a moment longer.
        while group.exists():
            for folder, _, _ in os.walk(group, topdown=False):
                try:
                    Path(folder).rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
            time.sleep(0.02)


def main() -> int:
    asked = json.loads(sys.argv[1])
    state, socket = Path(asked["state"]), int(asked["socket"])
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups = own_groups(state.name)
    try:
        enter(groups)
        wanted = json.dumps({**asked, "hierarchies": list(groups)})
        init = [sys.executable, "-I", str(Path(__file__).with_name("node_init.py")), wanted]
        isolated = ["unshare", *NAMESPACES, "--propagation", "private", "--fork", "--kill-child=SIGKILL", "--"]
        with subprocess.Popen([*isolated, *init], pass_fds=[socket]) as node:
            os.close(socket)
            code = node.wait()
    finally:
        leave(groups)
        shutil.rmtree(state)
    return code


if __name__ == "__main__":
    sys.exit(main())
