"""The demo's stage: an agent in a directory of its own, and programs in shares. Afterwards nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.agent.settings import SOCKET_NAME
from sharepod.cli.connection.connect import connect, listens
from sharepod.cli.demo.account import Reading
from sharepod.cli.ending import command_that_ends_with_us, undisturbed
from sharepod.cli.errors import EXIT_NO_AGENT, CliError
from sharepod.cli.render.messages import is_simulated
from sharepod.cli.scratch import Scratch

if TYPE_CHECKING:
    from sharepod.cli.connection.client import Client
    from sharepod.proto import v1_pb2 as pb

PROGRAM: Final = Path(__file__).with_name("program.py")
_STOP_S: Final = 5.0
"""The time that a process has to stop before it is killed."""
_FIRST_LAUNCH_S: Final = 15.0
"""The time that a program has until its first launch."""
_START_S: Final = 30.0
"""The time that the agent has until it listens."""
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Part:
    """One program of the demo."""

    name: str
    gpu_percent: int
    kernel_us: int


class Stage:
    """A running agent and the programs started on it."""

    def __init__(self, directory: Path, client: Client) -> None:
        """Take the agent's runtime directory, which also gets the programs' logs, and a connection to the agent."""
        self._directory = directory
        self.client = client
        self.node: pb.GetNodeResponse = client.node()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, part: Part, seconds: float) -> None:
        """Start a program in its share, exactly as a user would, and wait for its first launch.

        Raises CliError if the first launch takes too long, or if any program of the demo ends meanwhile.
        """
        program = [sys.executable, str(PROGRAM), "--seconds", f"{seconds:.1f}", "--kernel-us", str(part.kernel_us)]
        share = ["--gpu", str(part.gpu_percent), "--name", part.name, "--device", "0"]
        command = [*command_that_ends_with_us(), "run", "--socket", self._socket, *share, "--", *program]
        self._running[part.name] = _start_process(command, self._log(part.name))
        deadline = time.monotonic() + _FIRST_LAUNCH_S
        while not any(s.name == part.name and s.devices[0].usage.used_ns for s in self.client.list_shares().shares):
            self.check()
            if time.monotonic() > deadline:
                raise CliError(f"{part.name} has launched nothing for {_FIRST_LAUNCH_S:.0f} s: try `sharepod doctor`")
            time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raise CliError if a program has ended before its time."""
        for name, child in self._running.items():
            if child.poll() is not None:
                why = _last_line(self._log(name)).removeprefix("error: ") or f"exit code {child.returncode}"
                raise CliError(f"{name} ended early: {why}")

    def read(self) -> Reading:
        """Return the device time used so far: the simulator's ground truth; on a real GPU what the agent has billed."""
        state = self.node.environment.get("SIMGPU_STATE")
        if not is_simulated(self.node) or state is None:
            snapshot = self.client.list_shares()
            return Reading(snapshot.now_ns, {share.name: share.devices[0].usage.used_ns for share in snapshot.shares})
        from sharepod.simgpu.truth import Truth

        busy_ns = dict.fromkeys(self._running, 0)
        names = {child.pid: name for name, child in self._running.items()}
        with Truth(state) as truth:
            contexts, now_ns = truth.contexts(0), truth.now_ns()
        for context in contexts:
            if context.pid in names:
                busy_ns[names[context.pid]] += context.busy_ns
        return Reading(now_ns, busy_ns)

    def stop_programs(self) -> None:
        """End the programs: ask them first, and kill those that do not end."""
        for child in self._running.values():
            child.terminate()
        for child in self._running.values():
            _end(child)
        self._running.clear()

    @property
    def _socket(self) -> str:
        """The agent's socket."""
        return str(self._directory / SOCKET_NAME)

    def _log(self, name: str) -> Path:
        """Return the file that takes the output of the program `name`."""
        return self._directory / f"{name}.log"


@contextmanager
def open_stage(simulate: str | None) -> Iterator[Stage]:
    """Yield a stage. However the block is left, the stage's programs, agent and files are gone then.

    `simulate` names the simulated devices; None: the real ones. Raises CliError when the agent does not start.
    """
    with Scratch("sharepod-demo") as scratch, ExitStack() as stack:
        directory = scratch.path
        flags = ["--runtime-directory", str(directory), "--log-level", "warning", "--metrics-listen", "off"]
        flags += ["--simulate", simulate] if simulate else []
        command = [*command_that_ends_with_us(), "agent", *flags]
        with _environment({"SIMGPU_STATE": str(directory / "simgpu")} if simulate else {}), undisturbed():
            agent = _start_process(command, directory / "agent.log")
            stack.callback(_end, agent)
        _await_agent(agent, directory)
        with connect(str(directory / SOCKET_NAME)) as client:
            stage = Stage(directory, client)
            try:
                yield stage
            finally:
                stage.stop_programs()


def _start_process(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that writes to `log`, in a process group of its own.

    So Ctrl-C reaches only the demo, which then ends its processes in order.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, process_group=0
        )


def _await_agent(agent: subprocess.Popen[bytes], directory: Path) -> None:
    """Wait until the agent listens. Raises CliError if it ends before, or takes too long."""
    deadline = time.monotonic() + _START_S
    while not listens(str(directory / SOCKET_NAME)):
        if agent.poll() is not None or time.monotonic() > deadline:
            why = _last_line(directory / "agent.log").removeprefix("sharepod agent: ")
            raise CliError(f"the agent does not start: {why or f'nothing within {_START_S:.0f} s'}", EXIT_NO_AGENT)
        time.sleep(_LOOK_S)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask a process to stop and wait for its end. If it does not end, kill it."""
    child.terminate()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _last_line(log: Path) -> str:
    """Return the last line of a log; empty: there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


@contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
    """Add variables to this process's environment for a block. Processes that it starts inherit them."""
    before = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
