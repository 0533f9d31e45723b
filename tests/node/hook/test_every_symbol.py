"""Every wrapped symbol, called with valid arguments by every route, in a share of a real agent on a simulated GPU.

The calls answer as they do without the hook and do the same work on the device. That work is the launches of the share,
and the memory that they hold is charged to it: both as the simulator saw them, not as the hook says.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hooklab import STRICT, C, compile_c, read_symbols

from rig import REPO_ROOT
from rig.gpu import SimulatedGpu
from rig.until import until
from sharepod.simgpu.truth import Truth

DRIVER = REPO_ROOT / "simgpu" / "lib"
CAP = 20 << 30
ABSENT = {
    "cuFabricCpyBatchAsync",
    "cuFabricCpyBatchAsync_ptsz",
    "cuGraphAddNode_v3",
    "cuGreenCtxDestroy",
    "cuMemBatchDecompressAsync",
    "cuMemBatchDecompressAsync_ptsz",
    "cuStreamBeginRecaptureToGraph",
    "cuStreamBeginRecaptureToGraph_ptsz",
}
"""What the simulated driver lacks: an addition to the hook's table must be simulated, or stand here."""
NOT_SIMULATED = {
    *("cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"),
    *("cuDeviceTotalMem", "cuMemAlloc", "cuMemAllocPitch", "cuMemFree", "cuMemGetInfo"),
    *("cuMemcpyAtoD", "cuMemcpyDtoA", "cuMemcpyDtoD", "cuMemcpyDtoDAsync", "cuMemcpyDtoH", "cuMemcpyHtoD"),
    *("cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"),
    *("cuMemcpy2D", "cuMemcpy2DAsync", "cuMemcpy2DUnaligned", "cuMemcpy3D", "cuMemcpy3DAsync"),
    *("cuMemsetD8", "cuMemsetD16", "cuMemsetD32", "cuMemsetD2D8", "cuMemsetD2D16", "cuMemsetD2D32"),
}
"""What it refuses: contexts of graphics APIs, and the forms of CUDA 2 with addresses and sizes of 32 bits."""
PASSED = {symbol.name for symbol in read_symbols() if symbol.action == "PASS"}
"""Launches that take no turn."""
ROUTES = ("linked", "default", "soname", "path", "gpa1", "gpa2", "gpa2-legacy", "runtime")
NEEDED = ["-Wl,--no-as-needed", "-L", str(DRIVER), "-l:libcuda.so.1"]
SHAREPOD = [sys.executable, "-m", "sharepod.cli"]


@dataclass(frozen=True)
class Node:
    """A real agent and the machine of its one device."""

    gpu: SimulatedGpu
    env: dict[str, str]

    def usage(self, share: str) -> dict[str, int]:
        """Return what ``sharepod ps`` says of a share on its device."""
        command = [*SHAREPOD, "ps", "-o", "json"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=30, check=True)
        [found] = [entry for entry in json.loads(done.stdout)["shares"] if entry["name"] == share]
        usage: dict[str, int] = found["devices"][0]
        return usage


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """An agent with one simulated device that remembers its work."""
    directory = Path(tempfile.mkdtemp(prefix="sharepod-every-", dir="/dev/shm"))
    gpu = SimulatedGpu(directory / "state", "1xH200", {"SIMGPU_LOG_KERNELS": "4096"})
    dropped = ("LD_LIBRARY_PATH", "SIMGPU_DEVICES")
    env = {name: value for name, value in gpu.env.items() if name not in dropped}
    env |= {"SHAREPOD_RUNTIME_DIRECTORY": str(directory / "agent"), "SHAREPOD_METRICS_LISTEN": "off"}
    with (directory / "log").open("wb") as log:
        agent = subprocess.Popen([*SHAREPOD, "agent", "--simulate", "1xH200"], env=env, stderr=log, stdout=log)
    try:
        until(lambda: (directory / "agent" / "agent.sock").exists() or agent.poll() is not None)
        assert agent.poll() is None, (directory / "log").read_text()
        yield Node(gpu, env)
    finally:
        agent.terminate()
        agent.wait(10)
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program, linked with the driver and not."""
    directory = tmp_path_factory.mktemp("every")
    flags = [*STRICT, "-Wno-unused-function", C / "every.c"]
    return {
        "linked": compile_c(directory / "linked", "-DLINKED", *flags, *NEEDED, "-ldl"),
        "unlinked": compile_c(directory / "unlinked", *flags, "-ldl"),
    }


class Program:
    """The program of one route, from its start to its end, step by step."""

    def __init__(self, programs: dict[str, Path], route: str, env: dict[str, str], *command: str) -> None:
        """Start it."""
        own = programs.get(route, programs["unlinked"])
        self._process = subprocess.Popen(
            [*command, str(own), route],
            env=env | {"DRIVER": str(DRIVER / "libcuda.so.1")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.answers: list[str] = []

    def read_to(self, word: str) -> None:
        """Read answers to the point at which it waits."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.strip() == word:
                return
            self.answers.append(line.strip())
        pytest.fail(f"it ended before {word!r} after {self.answers[-1:]}: {self._process.communicate()[1]}")

    def go_on(self) -> None:
        """Let it go on."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Let it go on to its end."""
        output, errors = self._process.communicate("\n", timeout=30)
        assert self._process.returncode == 0, errors
        self.answers += output.split("\n")[:-1]

    def kill(self) -> None:
        """End it if it still runs."""
        self._process.kill()
        self._process.communicate()


def work_of(gpu: SimulatedGpu, pid: int) -> list[str]:
    """Return the names of the work that a process has had done on the device, in the order of its calls."""
    with Truth(gpu.state) as truth:
        own = [kernel for kernel in truth.kernels(0) if kernel.pid == pid]
    return [kernel.name for kernel in sorted(own, key=lambda kernel: kernel.submitted_ns)]


def memory_of(gpu: SimulatedGpu) -> int:
    """Return the device's memory in use, of which the process has all."""
    with Truth(gpu.state) as truth:
        return truth.devices()[0].memory_used_bytes


@dataclass(frozen=True)
class Plain:
    """The program without the hook."""

    answers: list[str]
    work: list[str]


@pytest.fixture(scope="module")
def plain(node: Node, programs: dict[str, Path]) -> Plain:
    """Run the program on the same machine without the hook and without a share."""
    program = Program(programs, "soname", node.gpu.env)
    try:
        program.read_to("held")
        work = work_of(node.gpu, program.pid)
        program.go_on()
        program.read_to("freed")
        program.end()
    finally:
        program.kill()
    return Plain(program.answers, work)


def as_the_share_sees_it(answer: str) -> str:
    """Return a program's line as it reads where the device is as large as the cap."""
    name, result, shown = answer.split()
    return f"{name} {result} {CAP if int(shown) else 0}"


def check_route(node: Node, programs: dict[str, Path], plain: Plain, route: str) -> None:
    """Run the program by one route in a share, and compare it with the program without the hook."""
    share = f"route-{route}"
    asked = ["run", "--gpu", "50", "--memory", "20GiB", "--name", share, "--"]
    env = node.env | ({"LD_LIBRARY_PATH": str(DRIVER)} if route == "linked" else {})
    program = Program(programs, route, env, *SHAREPOD, *asked)
    try:
        program.read_to("held")
        assert work_of(node.gpu, program.pid) == plain.work, route
        launches = len(plain.work) - len(PASSED)
        until(lambda: node.usage(share)["launches"] >= launches)  # told when the idle turn is given back
        usage = node.usage(share)
        assert usage["launches"] == launches, route
        assert usage["memory_used_bytes"] == memory_of(node.gpu) > 20 << 20, route
        assert (usage["passed"], usage["faults"]) == (len(PASSED), 0), route
        program.go_on()
        program.read_to("freed")
        assert node.usage(share)["memory_used_bytes"] == memory_of(node.gpu) == 0, route
        program.end()
    finally:
        program.kill()
    assert program.answers == [as_the_share_sees_it(answer) for answer in plain.answers], route


def test_every_symbol_answers_as_ever_and_is_metered_by_every_route(
    node: Node, programs: dict[str, Path], plain: Plain
) -> None:
    for route in ROUTES:
        check_route(node, programs, plain, route)


def test_the_calls_are_valid_and_what_they_want_done_is_done(plain: Plain) -> None:
    answers = {name: result for name, result, _ in (answer.split() for answer in plain.answers)}
    assert {name for name, result in answers.items() if result == "absent"} == ABSENT
    results = {name: int(result) for name, result in answers.items() if name not in ABSENT}
    assert set(answers) == {symbol.name for symbol in read_symbols() if symbol.name.startswith("cu")}
    for name, result in results.items():
        assert result == (801 if name in NOT_SIMULATED else 0), name
    launches = [s for s in read_symbols() if s.action in {"LAUNCH", "COPY", "PASS"} and results.get(s.name) == 0]
    assert len(plain.work) == len(launches) > 50
    assert {"unit_20us", "graph", "memset", "memcpy"} == set(plain.work)


def test_every_symbol_has_a_valid_call() -> None:
    text = (C / "valid.def").read_text()
    called = set(re.findall(r"^(?:VALID|LAST)\((\w+),", text, re.MULTILINE))
    for name in re.findall(r"^COPIES\((\w+),", text, re.MULTILINE):
        called |= {name, f"{name}_v2", f"{name}_v2_ptds"}
    for variant in re.findall(r"^ARRAY_COPIES\((\w*),", text, re.MULTILINE):
        called |= {f"cuMemcpy{kind}{variant}" for kind in ("AtoA", "DtoA", "AtoD", "HtoA", "AtoH")}
    for variant in re.findall(r"^HOST_COPIES\((\w*),", text, re.MULTILINE):
        called |= {f"cuMemcpy{kind}Async{variant}" for kind in ("HtoD", "DtoH", "HtoA", "AtoH")}
    for width in re.findall(r"^SETS\((\d+),", text, re.MULTILINE):
        for name in (f"cuMemsetD{width}", f"cuMemsetD2D{width}"):
            called |= {name + variant for variant in ("", "_v2", "_v2_ptds", "Async", "Async_ptsz")}
    wrapped = {symbol.name for symbol in read_symbols() if symbol.name.startswith("cu")}
    assert sorted(wrapped - called) == [], "add a line to tests/support/hook/c/valid.def"
