"""Runs c/every.c, which calls every wrapped symbol with valid arguments, in a share of a real agent.

The calls must answer as they do without the hook, and do the same work on the device. The share must be billed for that
work as its launches, and charged for the memory. The simulator's record is the measure, not what the hook says.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hooklab import STRICT, C, read_symbols
from simgpu_fixtures import Program

from rig.agent import RunningAgent, usage
from rig.gpu import LIBRARIES, SimulatedGpu, inherited
from rig.until import until
from sharepod.hook import LIBRARY
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

CAP = 20 << 30
SYMBOLS = read_symbols()
PASSED = {symbol.name for symbol in SYMBOLS if symbol.action == "PASS"}
"""Launches that take no turn."""
EVERY: list[str | Path] = [*STRICT, "-Wno-unused-function", C / "every.c", "-ldl"]
LINKED: list[str | Path] = ["-DLINKED", *EVERY, "-Wl,--no-as-needed", "-L", LIBRARIES, "-l:libcuda.so.1"]


@dataclass(frozen=True)
class Programs:
    """The program, once linked with the driver and once not, and as a plugin that is linked with the driver."""

    linked: Path
    unlinked: Path
    plugin: Path


def start(command: Sequence[str | Path], env: Mapping[str, str]) -> Program:
    """Start the program; the test then leads it step by step to its end."""
    pipe, environment = subprocess.PIPE, {**env, "DRIVER": str(LIBRARIES / "libcuda.so.1")}
    return Program(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True))


def answers_to(word: str, running: Program) -> list[str]:
    """Return the program's answers up to the point at which it waits."""
    return list(iter(running.line, word))


def end(running: Program) -> tuple[list[str], str]:
    """Let the program go on to its end; return its last answers, and what it wrote to stderr."""
    output, errors = running.process.communicate("\n", timeout=30)
    assert running.process.returncode == 0, errors
    return output.splitlines(), errors


@dataclass
class Node:
    """A real agent with one device, and the results of the program without the hook, which other runs must equal."""

    agent: RunningAgent
    gpu: SimulatedGpu
    answers: list[str] = field(default_factory=list)
    work: list[str] = field(default_factory=list)
    """The names of the work that the run without the hook did on the device, in the order of its calls."""
    held: int = 0
    """The most memory that the run without the hook holds."""

    def work_of(self, pid: int) -> list[str]:
        """Return the work of a process."""
        with Truth(self.gpu.state) as truth:
            own = [kernel for kernel in truth.kernels(0) if kernel.pid == pid]
        return [kernel.name for kernel in sorted(own, key=lambda kernel: kernel.submitted_ns)]

    def memory(self) -> int:
        """Return the device's memory in use, all of which belongs to one process."""
        with Truth(self.gpu.state) as truth:
            return truth.devices()[0].memory_used_bytes

    def run_without_the_hook(self, program: Path) -> None:
        """Run the program without a share."""
        running = start([program, "soname"], self.gpu.env)
        try:
            answers = answers_to("held", running)
            self.work, self.held = self.work_of(running.pid), self.memory()
            assert self.held > 20 << 20
            running.tell("")
            answers += answers_to("freed", running)
            self.answers = answers + end(running)[0]
        finally:
            running.kill()

    def check_run(
        self,
        *command: str | Path,
        preload: Sequence[str | Path] = (LIBRARY,),
        metered: bool = True,
        elsewhere: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run the program in a share and compare it with the run without the hook; return what it wrote to stderr.

        A run that is not `metered` goes past the hook: it does the same work, and none of it counts for the share. A
        run `elsewhere` is emulated, on a simulated device of the emulated machine, which cannot be seen from here.
        """
        share = self.agent.register(50, name="every", device="0", memory=CAP)
        paths = {"LD_PRELOAD": ":".join(map(str, preload)), "LD_LIBRARY_PATH": str(LIBRARIES)}
        running = start(command, inherited() | dict(share.environment) | paths | dict(env or {}))
        launches, passed = (len(self.work) - len(PASSED), len(PASSED)) if metered else (0, 0)
        try:
            answers = answers_to("held", running)
            assert elsewhere or (self.work_of(running.pid), self.memory()) == (self.work, self.held)
            # The agent learns of the launches when the idle turn is given back.
            until(lambda: usage(self.agent, "every").launches >= launches)
            account = usage(self.agent, "every")
            assert account.memory_used_bytes == (self.held if metered else 0)
            assert (account.launches, account.faults) == (launches, 0)
            # On a busy host the gate may lose patience (2 ms without progress) and let more of them pass.
            assert account.passed >= passed if metered else account.passed == 0
            running.tell("")
            answers += answers_to("freed", running)
            assert usage(self.agent, "every").memory_used_bytes == 0
            assert elsewhere or self.memory() == 0
            last, errors = end(running)
        finally:
            running.kill()
            self.agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="every"))
        # For a function that the simulator lacks, a call returns 801, but cuGetProcAddress returns an older version.
        answers = [answer.replace(" another ", " 801 ") for answer in answers + last]
        assert answers == [as_the_share_sees_it(answer) if metered else answer for answer in self.answers]
        return errors


def as_the_share_sees_it(answer: str) -> str:
    """Return a program's line as it reads on a device that is as large as the cap."""
    name, result, shown = answer.split()
    return f"{name} {result} {CAP if int(shown) else 0}"
