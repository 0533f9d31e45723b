"""Runs a node: a machine within the machine, with its own files, processes, network and control groups.

This module owns the keeper's process, the state folder and the socket to the node's first process. Nothing of the node
outlives the keeper, which ends when this side of the socket closes, however this process ends. The module knows nothing
of Kubernetes.
"""

import json
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from node_init import BRIDGE
from node_keeper import CGROUPS, NAMESPACES, own_groups

STOP_SECONDS = 60.0
REQUEST_SECONDS = 30.0
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids")
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


class NodeError(Exception):
    """A node cannot be made, or a process in it did not start."""


@dataclass(frozen=True, slots=True)
class Process:
    """The state of a process that was started in the node; its pid is the one in the node."""

    pid: int | None
    exit_status: int | None


def why_not() -> str | None:
    """Return why this machine cannot carry a node, or None."""
    if os.geteuid() != 0:
        return "a node needs root"
    if missing := [name for name in CONTROLLERS if not (CGROUPS / name / "cgroup.procs").exists()]:
        return f"a node needs the version 1 control groups {', '.join(missing)}"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "a node needs overlayfs in the kernel"
    probe = ["unshare", "--mount", "--net", "--pid", "--fork", "ip", "link", "add", "node0", "type", "bridge"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"a node needs namespaces and bridges: {done.stderr.strip()}" if done.returncode else None


class Node:
    """One node, from ``with Node() as node`` to its end. It sees the visible folders of the machine unchanged.

    It may write into those that are not read-only. Its number is its place among joined nodes, and determines its
    address.
    """

    def __init__(self, visible: Sequence[Path] = (), number: int = 1, read_only: Sequence[Path] = ()) -> None:
        self.number = number
        self.visible = [folder.resolve() for folder in visible]
        self.read_only = [folder.resolve() for folder in read_only]
        self.name = f"sharepod-e2e-{secrets.token_hex(4)}"
        self.state = Path(tempfile.gettempdir()) / self.name
        self.groups = own_groups(self.name)
        self.ended_s = math.inf  # when it ended, since the machine's boot; infinite while it runs or if others ended it
        self.pid = 0  # the pid of the node's first process on this machine
        self._keeper: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._pending = b""

    def __enter__(self) -> Self:
        self.state.mkdir(mode=0o700)
        ours, theirs = socket.socketpair()
        ours.settimeout(REQUEST_SECONDS)
        self._socket = ours
        keeper = [sys.executable, "-I", str(Path(__file__).with_name("node_keeper.py"))]
        log = self.state / "keeper.log"
        try:
            with theirs, log.open("wb") as output:
                asked = {
                    "state": str(self.state),
                    "socket": theirs.fileno(),
                    "visible": [str(folder) for folder in self.visible],
                    "read_only": [str(folder) for folder in self.read_only],
                    "number": self.number,
                }
                self._keeper = subprocess.Popen(
                    [*keeper, json.dumps(asked)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._read_answer(log)
            self.pid = self._find_first_process()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def root(self) -> Path:
        """Return the path of the node's root directory on this machine."""
        return Path(f"/proc/{self.pid}/root")

    def namespaces(self) -> dict[str, str]:
        """Return the node's namespaces by kind, with their names in ``/proc``."""
        return {
            kind: str(Path(f"/proc/{self.pid}/ns/{kind}").readlink())
            for kind in ("mnt", "net", "pid", "ipc", "uts", "cgroup")
        }

    def start(self, name: str, command: Sequence[str | Path]) -> int:
        """Start a long-lived process under a name; its output goes to ``log(name)``. Return its pid in the node."""
        request = {"command": [str(word) for word in command], "environment": ENVIRONMENT, "log": str(self.log(name))}
        return int(self._ask("start", name, **request)["pid"])

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process by name, unless it has ended."""
        self._ask("signal", name, signal=int(number))

    def look(self, name: str) -> Process:
        answer = self._ask("look", name)
        return Process(answer["pid"], answer["exit"])

    def log(self, name: str) -> Path:
        return self.state / f"{name}.log"

    def run(
        self, command: Sequence[str | Path], *, namespaces: Sequence[str] = NAMESPACES, timeout_seconds: float = 60.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the node to its end; return the result, failed or not.

        With only the namespace ``--net`` it sees the machine's files and the node's network.
        """
        command = ["nsenter", f"--target={self.pid}", *namespaces, "--", *map(str, command)]
        return subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=timeout_seconds, check=False)

    def join(self, other: Self) -> None:
        """Join the networks of two nodes by a cable. Its ends are in the nodes: the machine never has an interface."""
        ends = [(self, f"to-node{other.number}"), (other, f"to-node{self.number}")]
        (_, near), (_, far) = ends
        cable = ["add", near, "type", "veth", "peer", "name", far, "netns", str(other.pid)]
        self._link(cable)
        for node, end in ends:
            node._link(["set", end, "master", BRIDGE, "up"])

    def _link(self, words: Sequence[str]) -> None:
        done = self.run(["ip", "link", *words], namespaces=["--net"])
        if done.returncode:
            raise NodeError(f"ip link {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")

    def stop(self) -> None:
        """End everything in the node and wait until nothing is left. A second call does nothing."""
        if self._socket:
            self._socket.close()
            self._socket = None
        if self._keeper:
            keeper, self._keeper = self._keeper, None
            self._see_first_process_out(keeper)
            # Note the time before the keeper has cleaned up: from now on others may get the namespaces' numbers.
            self.ended_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            if code := keeper.wait(timeout=STOP_SECONDS):
                log = self.state / "keeper.log"
                words = log.read_text().strip() if log.exists() else ""
                raise NodeError(f"the node's keeper ended with {code}: {words}")
        elif self.state.exists():
            shutil.rmtree(self.state)

    def _see_first_process_out(self, keeper: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        while self.pid and Path(f"/proc/{self.pid}").exists() and time.monotonic() < deadline:
            if keeper.poll() is not None:
                return
            time.sleep(0.002)

    def _find_first_process(self) -> int:
        assert self._keeper
        pid = self._keeper.pid
        for _ in ("unshare", "init"):
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return pid

    def _ask(self, verb: str, name: str, **arguments: object) -> dict[str, Any]:
        if not self._socket:
            raise NodeError(f"{verb} {name}: the node is stopped")
        self._socket.sendall(json.dumps({"verb": verb, "name": name, **arguments}).encode() + b"\n")
        answer = self._read_answer(self.state / "keeper.log")
        if "error" in answer:
            raise NodeError(f"{verb} {name}: {answer['error']}")
        return answer

    def _read_answer(self, log: Path) -> dict[str, Any]:
        assert self._socket
        while b"\n" not in self._pending:
            if not (data := self._socket.recv(65536)):
                raise NodeError(f"the node ended: {log.read_text() if log.exists() else 'nothing logged'}")
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer
