"""All that cuda-bindings calls of the hook's table, and programs of a runtime: they answer as ever and are metered."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from rig import REPO_ROOT
from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu, SimulatedGpu
from sharepod.agent.share import Usage
from sharepod.hook.coverage import plain_name, read_actions
from sharepod.simgpu.truth import KernelTruth, Truth

HERE = REPO_ROOT / "tests" / "support" / "hook"
NOT_SUPPORTED = 801
H200_BYTES = 143771 << 20
CAP = 1 << 30
PER_THREAD = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}


@dataclass(frozen=True)
class InShare:
    """A simulated GPU of which a program gets a share, whose memory is capped."""

    gpu: SimulatedGpu
    env: dict[str, str]
    usage: Callable[[], Usage]

    def work(self) -> list[KernelTruth]:
        """Return what the device was given to do, in that order."""
        with Truth(self.gpu.state) as truth:
            return sorted(truth.kernels(0), key=lambda kernel: kernel.submitted_ns)

    def memory(self) -> int:
        """Return the memory that is in use on the device."""
        with Truth(self.gpu.state) as truth:
            return truth.devices()[0].memory_used_bytes

    def settled(self) -> Usage:
        """Return the account when the last turn has been given back, and with it the last counts."""
        deadline = time.monotonic() + 5
        while self.usage().launches < len(self.work()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.usage()


@pytest.fixture
def share(make_simgpu: MakeSimgpu, tmp_path: Path) -> Iterator[InShare]:
    """A share of half an H200."""
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="1000")
    with Arbiter() as arbiter:
        own = arbiter.share(tmp_path, memory_bytes=CAP)
        yield InShare(gpu, gpu.env | own.env, own.usage)


class Calls:
    """A run of bindings_calls.py, step by step."""

    def __init__(self, env: dict[str, str]) -> None:
        """Run it to where it holds memory."""
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "bindings_calls.py")],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self._read()
        if not line:
            pytest.fail(self._process.communicate()[1])
        answer: dict[str, Any] = json.loads(line)
        self.results: dict[str, int] = answer["results"]
        self.shown: list[int] = answer["shown"]

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def free(self) -> None:
        """Let it give its memory back."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._read() == "freed\n"

    def end(self) -> None:
        """Let it reset the device and end."""
        output, errors = self._process.communicate("\n", timeout=30)
        assert self._process.returncode == 0, errors
        self.results["cuDevicePrimaryCtxReset"] = int(output)


@pytest.mark.parametrize("own", [{}, PER_THREAD], ids=["legacy stream", "per-thread stream"])
def test_every_function_of_cuda_bindings_answers_as_ever_and_is_metered(
    make_simgpu: MakeSimgpu, share: InShare, own: dict[str, str]
) -> None:
    bare = Calls(make_simgpu().env | own)
    bare.free()
    bare.end()
    metered = Calls(share.env | own)
    actions = {plain_name(name): action for name, action in read_actions().items()}
    done = [actions[name] for name, result in bare.results.items() if result == 0]
    launches, passed = done.count("LAUNCH") + done.count("COPY"), done.count("PASS")
    assert launches > 25
    assert share.settled().launches == launches
    assert len(share.work()) == launches + passed
    assert share.usage().memory_used_bytes == share.memory() > 16 << 20
    metered.free()
    assert share.usage().memory_used_bytes == share.memory() == 0
    metered.end()
    assert metered.results == bare.results
    for name, result in bare.results.items():
        assert result == (0 if name in simulated_names() else NOT_SUPPORTED), name
    assert (bare.shown, metered.shown) == ([H200_BYTES] * 2, [CAP] * 2)
    assert (share.usage().passed, share.usage().faults) == (passed, 0)


ATTRIBUTES = """
import ctypes
cuda, value, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
asked = ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuGetProcAddress_v2(b"cuDeviceGetAttribute", ctypes.byref(asked), 12000, 0, None) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value)
for ask in (cuda.cuDeviceGetAttribute, ctypes.CFUNCTYPE(*[ctypes.c_int] + [ctypes.c_void_p] * 3)(asked.value)):
    for attribute in range(-1, 300):
        value.value = -7
        print(attribute, ask(ctypes.byref(value), attribute, 0), value.value)
"""


def test_every_attribute_of_the_device_reads_in_a_share_as_without_one(make_simgpu: MakeSimgpu, share: InShare) -> None:
    def run(env: dict[str, str]) -> list[str]:
        command = [sys.executable, "-c", ATTRIBUTES]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.split("\n")

    bare, metered = run(make_simgpu().env), run(share.env)
    assert (bare[0], metered[0]) == (str(H200_BYTES), str(CAP))
    assert metered[1:] == bare[1:]
    told = {int(line.split()[0]): int(line.split()[2]) for line in bare[1:-1] if line.split()[1] == "0"}
    assert {int(attribute) for attribute in bindings.CUdevice_attribute} <= set(told)
    assert told[int(bindings.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)] == 132


def simulated_names() -> set[str]:
    """Return the functions of which the simulated driver has some variant, without their variants."""
    text = (REPO_ROOT / "simgpu" / "symbols.def").read_text()
    rows = re.findall(r"^[XO]\(\w+, \d+, ([\w, ]+)\)$", text, re.MULTILINE)
    left_out = set(re.findall(r"^X\((\w+)\)", (REPO_ROOT / "simgpu" / "unsupported.def").read_text(), re.MULTILINE))
    return {plain_name(name) for names in rows for name in names.split(", ") if name not in left_out}


def test_every_wrapped_function_that_cuda_bindings_and_the_simulated_driver_have_is_called() -> None:
    wrapped = {plain_name(name) for name in read_actions()}
    wanted = {name for name in wrapped & simulated_names() if hasattr(bindings, name)}
    text = "".join(path.read_text() for path in (HERE / "bindings_calls.py", HERE / "bindings_graphs.py"))
    called = set(re.findall(r'"(cu[A-Z]\w+)": ', text))
    called |= {"cuDevicePrimaryCtxReset"}
    called |= {f"cuMemset{kind}{width}{way}" for kind in ("D", "D2D") for width in (8, 16, 32) for way in ("", "Async")}
    assert sorted(wanted - called) == [], "add a call to tests/clients/bindings_calls.py or bindings_graphs.py"


@pytest.fixture(scope="module")
def build_axpy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compile the program on the stand-in for the runtime."""
    directory = tmp_path_factory.mktemp("runtime")

    def build(*flags: str) -> Path:
        program = directory / f"axpy{len(flags)}"
        warnings = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
        sources = [str(HERE / "c" / name) for name in ("axpy.c", "runtime.c")]
        subprocess.run(["cc", *warnings, *flags, "-o", str(program), *sources, "-ldl", "-lpthread"], check=True)
        return program

    return build


@pytest.mark.parametrize("flags", [[], ["-DPER_THREAD"]], ids=["legacy stream", "per-thread stream"])
def test_a_program_on_a_runtime_of_its_own_is_metered(
    make_simgpu: MakeSimgpu, share: InShare, build_axpy: Callable[..., Path], flags: list[str]
) -> None:
    def run(env: dict[str, str], then: Callable[[], None] = lambda: None) -> dict[str, Any]:
        running = subprocess.Popen(
            [program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert running.stdout
            line = running.stdout.readline()
            then()
        finally:
            _, errors = running.communicate(timeout=30)
        assert running.returncode == 0, errors
        seen: dict[str, Any] = json.loads(line)
        assert seen.pop("elapsed_ms") >= 9.9  # twice ten kernels of 500 us
        return seen

    def check_account() -> None:
        work = [kernel.name for kernel in share.work()]
        assert sorted(work) == ["axpy_500us"] * 20 + ["memcpy"] * 2 + ["memset"]
        account = share.settled()
        assert account.launches == len(work)
        assert account.used_ns >= 0.97 * 10_000_000
        assert (account.passed, account.faults) == (0, 0)

    program = build_axpy(*flags)
    bare = run(make_simgpu().env)
    assert bare == {"copied": True, "total": H200_BYTES, "leaked": 0, "unknown": 98, "too_much": 2}
    assert run(share.env, check_account) == bare | {"total": CAP}
