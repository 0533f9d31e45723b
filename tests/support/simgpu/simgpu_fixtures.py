"""Fixtures for simulated GPUs and programs on them; a test gives a program's text and judges what it prints."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import pytest

from rig.gpu import MakeSimgpu, SimulatedGpu
from rig.script import script
from sharepod.simgpu.truth import KernelTruth, Truth

MIB = 1 << 20

LOOP = """
    f, waits = kernel(start(), sys.argv[1]), sys.argv[2] == "sync"
    print("ready", flush=True)
    while True:
        ok(launch(f))
        if waits:
            ok(cuda.cuStreamSynchronize(None))
    """
"""A program that launches a kernel of this name for ever: as fast as it can ("deep"), or one at a time ("sync")."""

COUNTED = """
    result, count, raw = cuda.cuInit(0), c_int(), ctypes.create_string_buffer(16)
    cuda.cuDeviceGetCount(byref(count))
    last = []
    for n in range(count.value):
        ok(cuda.cuDeviceGetUuid_v2(raw, n))
        last.append(raw.raw.hex()[-2:])
    print(result, *last)
    """
"""A program that prints what cuInit returned, and the last digits of its devices' UUIDs."""

ANSWER = """
import json
import pynvml
from pynvml import *

def plain(value):
    "What JSON can carry of what pynvml gives back."
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if hasattr(value, "__dict__"):
        return {name: plain(item) for name, item in vars(value).items()}
    return value.decode() if isinstance(value, bytes) else value

def answer():
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            told = plain(eval(line))
        except NVMLError as error:
            told = type(error).__name__
        print(json.dumps(told), flush=True)
"""
"""The begin of a program with `answer()`, which evaluates one expression a line; an NVML error is answered by name."""


class Program:
    """A program that runs."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        return line.rstrip("\n")

    def tell(self, expression: str) -> None:
        """Send an expression to a program that answers; read the answer with `line`."""
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def ask(self, expression: str) -> Any:
        """Send an expression and return the answer."""
        self.tell(expression)
        return json.loads(self.line())

    def lines(self, returncode: int = 0) -> list[str]:
        """Wait until the program ends; return the lines that it printed."""
        output, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == returncode, errors
        return output.splitlines()

    def kill(self) -> None:
        """Kill the program, and wait until it is gone."""
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class Gpu:
    """A machine with simulated devices, the programs on it, and the simulator's truth about it."""

    simulated: SimulatedGpu
    prelude: str
    started: list[Program]

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of its programs."""
        return self.simulated.env

    def start(self, text: str, *arguments: object, within: Sequence[str] = (), **environment: str) -> Program:
        """Start a program. `within` are words before the command, such as those of `pid_namespaces.alone`."""
        pipe = subprocess.PIPE
        command = [*within, *script(self.prelude + dedent(text)), *map(str, arguments)]
        process = subprocess.Popen(command, env=self.env | environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
        self.started.append(Program(process))
        return self.started[-1]

    def ready(self, text: str, *arguments: object, within: Sequence[str] = (), **environment: str) -> Program:
        """Start a program and wait until it prints `ready`."""
        program = self.start(text, *arguments, within=within, **environment)
        assert program.line() == "ready"
        return program

    def play(self, text: str, *arguments: object, **environment: str) -> list[str]:
        """Run a program to its end, which must be a success; return the lines that it printed."""
        return self.start(text, *arguments, **environment).lines()

    def truth(self) -> Truth:
        """Return the simulator's truth about the machine at this moment."""
        return Truth(self.simulated.state)

    def kernels(self, device: int = 0) -> list[KernelTruth]:
        """Return the work that a device has done, from the device's own log."""
        with self.truth() as truth:
            return truth.kernels(device)

    def used_bytes(self) -> int:
        """Return how much of the memory of device 0 is taken."""
        with self.truth() as truth:
            return truth.devices()[0].memory_used_bytes


NewGpu = Callable[..., Gpu]


@pytest.fixture
def prelude() -> str:
    """Return the text that comes before the text of every program; a test module may have its own."""
    return "from rig.holdings import *\n"


@pytest.fixture
def new_gpu(make_simgpu: MakeSimgpu, prelude: str) -> Iterator[NewGpu]:
    """Make simulated GPUs that log their work. Unless told otherwise they have the profile `ideal`, with round times.

    Programs that still run at the end of the test are killed.
    """
    started: list[Program] = []

    def make(devices: str = "1xH200", **settings: str) -> Gpu:
        return Gpu(
            make_simgpu(devices, **{"SIMGPU_LOG_KERNELS": "200", "SIMGPU_PROFILE": "ideal"} | settings),
            prelude,
            started,
        )

    yield make
    for program in started:
        program.kill()
