"""Finds what an ended node has left on this machine, which should be nothing. It changes nothing."""

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from node import Node

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def started_s(process: Path) -> float:
    """Return when a process was started, in seconds since the machine's boot."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[19]) / TICKS_PER_S


def holders(namespaces: dict[str, str], before_s: float = math.inf) -> list[str]:
    """Return the processes that are in one of the namespaces and were started before a time.

    The time is needed because the number of a removed namespace goes to the next new namespace.
    """
    held = []
    for process in Path("/proc").glob("[0-9]*"):
        for kind, name in namespaces.items():
            try:
                if str((process / "ns" / kind).readlink()) == name and started_s(process) < before_s:
                    held.append(f"{process.name} {(process / 'comm').read_text().strip()} {kind}")
            except OSError:
                continue
    return held


def paths_below(top: Path) -> Iterator[Path]:
    """Yield all paths below a directory, like `rglob("*")`, while others may remove directories."""
    for directory, subdirectories, files in os.walk(top):
        yield from (Path(directory, name) for name in (*subdirectories, *files))


def leftovers(node: Node, namespaces: dict[str, str]) -> list[str]:
    """Return everything of an ended node that is still on this machine."""
    groups = [str(path) for path in paths_below(Path("/sys/fs/cgroup")) if path.name.startswith(node.name)]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if node.name in line]
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    interfaces = [line for line in links.splitlines() if line.startswith("node0")]
    files = [str(node.state)] if node.state.exists() else []
    return groups + mounts + interfaces + files + holders(namespaces, node.ended_s)
