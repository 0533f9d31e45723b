"""Runs programs as pid 1, as programs in containers are, each in a pid namespace of its own."""

import functools
import subprocess
from pathlib import Path

import pytest

_ENTER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@functools.cache
def alone() -> tuple[str, ...]:
    """Return the words in front of a command that make it pid 1 of its own namespace.

    Skips the test where no namespace can be made.
    """
    try:
        refused = subprocess.run([*_ENTER, "true"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        pytest.skip(f"pid namespaces cannot be made here: {error}")
    if refused.returncode:
        pytest.skip(f"pid namespaces cannot be made here: {refused.stderr}")
    return _ENTER


def _status(pid: int) -> dict[str, list[str]]:
    """Return the fields of a process's status in /proc, each as its words; empty: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # the process has ended meanwhile
        return {}
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}


def seen(pid: int) -> dict[int, int]:
    """Return the processes below `pid` in a namespace below ours: their pids here, mapped to their pids there."""
    found: dict[int, int] = {}
    by_pid = {int(path.name): _status(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    family = {pid}
    while grown := {child for child, status in by_pid.items() if int(status.get("PPid", ["0"])[0]) in family} - family:
        family |= grown
    for child in family:
        pids = by_pid.get(child, {}).get("NSpid", [])  # one for each namespace, ours first, its own last
        if len(pids) > 1:
            found[int(pids[0])] = int(pids[-1])
    return found


def first_of(process: "subprocess.Popen[str]") -> int:
    """Return our pid of the process that was started with `alone()` and has pid 1 in its own namespace."""
    [pid] = [here for here, there in seen(process.pid).items() if there == 1]
    return pid
