"""Test whole third-party programs: in a share of a real agent each does what it does without the hook.

Kernels compute nothing on a simulated GPU. So the tests compare what the programs moved and launched: the bytes that
came back, the device's own log, and the share's account.
"""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import strangers_environment as strangers

from rig import REPO_ROOT
from rig.agent import python
from rig.gpu import LIBRARIES
from rig.loads import Terms
from rig.node import Node
from rig.until import until
from sharepod.proto import v1_pb2 as pb

pytestmark = pytest.mark.timeout(300)  # the first test installs all packages

CLIENTS = REPO_ROOT / "tests" / "support" / "hook" / "strangers"
KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Stranger:
    """A program, and what is known about its run.

    `told` is the object that it prints. `work` is its work in the device's log; "kernels" are all entries but graphs,
    copies and memsets. `moved` is the least number of bytes that go to the device and come back.
    """

    client: str
    told: Mapping[str, Any]
    work: Mapping[str, int]
    moved: tuple[int, int]
    arguments: tuple[str, ...] = ()


STRANGERS = {
    "tinygrad": Stranger(
        "tinygrad_client.py",
        {"device": "CUDA", "copied": True, "kernels": 16},
        {"kernels": 8, "graph": 7},
        (256 * KIB, 256 * KIB),
    ),
    "GsTaichi": Stranger(
        "taichi_client.py",
        {"arch": "Arch.cuda", "read": 7.0, "copied": True},
        {"kernels": 28, "memset": 9, "memcpy": 1},
        (64 * KIB, 64 * KIB),
        ("gstaichi",),
    ),
    "Quadrants": Stranger(
        "taichi_client.py",
        {"arch": "Arch.cuda", "read": 7.0, "copied": True},
        {"kernels": 31, "graph": 6, "memset": 11, "memcpy": 1},
        (64 * KIB, 64 * KIB),
        ("quadrants",),
    ),
    "Dr.Jit": Stranger("drjit_client.py", {"copied": True, "kernels": 7}, {"kernels": 7}, (64 * KIB, 64 * KIB)),
    "slangpy": Stranger(
        "slangpy_client.py",
        {"adapter": "NVIDIA H200", "copied": True},
        {"kernels": 8, "memcpy": 1},
        (16 * KIB, 16 * KIB),
        ("{scratch}",),
    ),
    "IREE": Stranger("iree_client.py", {"device": "cuda", "copied": True}, {"kernels": 5}, (80 * KIB, 80 * KIB)),
    "cuda.core": Stranger(
        "core_client.py",
        {"name": "NVIDIA H200", "copied": True, "in_order": True},
        {"kernels": 4, "graph": 4, "memcpy": 1},
        (64 * KIB, 64 * KIB),
    ),
}


@pytest.fixture(scope="session")
def installed() -> None:
    """Install the packages of the third-party programs."""
    strangers.make()


@pytest.fixture(scope="module")
def bare() -> Iterator[Node]:
    """Run a device without an agent."""
    with Node(hook=False, log_kernels=4096) as node:
        yield node


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    """Run a device with an agent."""
    with Node(log_kernels=4096) as node:
        yield node


@dataclass(frozen=True)
class Run:
    """The output of one run of a program, and its work in the device's log."""

    output: str
    work: Counter[str]
    contexts: int


def run(
    node: Node, command: Sequence[str | Path], environment: Mapping[str, str], scratch: Path, expected: int = 0
) -> Run:
    """Run a program to its end: it must return `expected` without a traceback, and leave nothing on the device."""
    scratch.mkdir()
    own = {
        "HOME": str(scratch),  # a new home for the programs' compile caches, so that each run compiles anew
        "LD_LIBRARY_PATH": f"{environment['LD_LIBRARY_PATH']}:{strangers.LIBRARIES}",
        "CUDA_PATH": str(strangers.TOOLKIT),
        "DEV": "CUDA:PTX",  # a setting of tinygrad
        "DRJIT_LIBCUDA_PATH": str(LIBRARIES / "libcuda.so.1"),
    }
    pipe = subprocess.PIPE
    words = [str(word).format(scratch=scratch) for word in command]
    with subprocess.Popen(words, env={**environment, **own}, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == expected, errors
    assert "Traceback" not in errors
    until(lambda: node.truth.devices()[0].memory_used_bytes == 0)
    work = Counter(kernel.name for kernel in node.truth.kernels() if kernel.pid == process.pid)
    return Run(output, work, sum(context.pid == process.pid for context in node.truth.contexts()))


def run_in_share(
    node: Node, name: str, command: Sequence[str | Path], scratch: Path, expected: int = 0
) -> tuple[Run, pb.Usage]:
    """Run a program in a share of its own; return the account too."""
    seen = run(node, command, node.share_environment(name, Terms(10)), scratch, expected)

    def account() -> pb.Usage:
        return node.usage()[name].devices[0].usage

    until(lambda: not account().processes)
    return seen, account()


def kinds(work: Counter[str]) -> dict[str, int]:
    """Return the numbers of graphs, copies, memsets and kernels; all other entries are kernels."""
    counts: Counter[str] = Counter()
    for name, count in work.items():
        counts[name if name in ("graph", "memcpy", "memset") else "kernels"] += count
    return dict(counts)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_does_in_a_share_what_it_does_without(name: str, bare: Node, shared: Node, tmp_path: Path) -> None:
    stranger = STRANGERS[name]
    command: list[str | Path] = [strangers.PYTHON, CLIENTS / stranger.client, *stranger.arguments]
    without = run(bare, command, bare.environment, tmp_path / "bare")
    assert json.loads(without.output.splitlines()[-1]) == stranger.told
    assert kinds(without.work) == stranger.work
    within, account = run_in_share(shared, name, command, tmp_path / "shared")
    assert json.loads(within.output.splitlines()[-1]) == stranger.told
    assert within.work == without.work
    assert account.launches >= sum(stranger.work.values())
    assert account.used_ns > 0
    assert account.host_to_device_bytes >= stranger.moved[0]
    assert account.device_to_host_bytes >= stranger.moved[1]
    assert (account.passed, account.faults, account.memory_used_bytes) == (0, 0, 0)


def test_frames_that_ffmpeg_sends_to_the_device_and_back_are_those_of_the_cpu(
    bare: Node, shared: Node, tmp_path: Path
) -> None:
    def command(*filters: str) -> list[str]:
        source = ["-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25:duration=2"]
        chain = ",".join(("format=yuv420p", *filters))
        return ["ffmpeg", "-hide_banner", "-loglevel", "error", *source, "-vf", chain, "-f", "framemd5", "-"]

    there_and_back = command("hwupload_cuda", "hwdownload", "format=yuv420p")
    plain = run(bare, command(), bare.environment, tmp_path / "plain")
    without = run(bare, there_and_back, bare.environment, tmp_path / "bare")
    within, account = run_in_share(shared, "ffmpeg", there_and_back, tmp_path / "shared")
    assert len(re.findall(r"^0,.*, [0-9a-f]{32}$", plain.output, re.MULTILINE)) == 50
    assert (plain.output, plain.contexts) == (without.output, 0)
    assert (within.output, within.contexts) == (without.output, without.contexts)
    assert without.contexts > 0
    frames_bytes = 50 * 640 * 360 * 3 // 2  # no line of any plane needs padding
    assert account.host_to_device_bytes == account.device_to_host_bytes == frames_bytes


EXHAUSTED = 1
"""hashcat's exit code when it has tried all passwords and none fits: kernels compute nothing here."""


@pytest.mark.usefixtures("installed")
def test_hashcat_tries_all_passwords_in_a_share_as_without(bare: Node, shared: Node, tmp_path: Path) -> None:
    no_other_backend = ["-D", "2", "--backend-ignore-opencl", "--self-test-disable", "--potfile-disable"]
    not_tuned = ["--force", "-n", "8", "-u", "100", "-T", "256"]  # tuning is by the clock
    task = ["-m", "0", "-a", "3", "f" * 32, "?d" * 8]
    command = ["hashcat", "--machine-readable", "--status", "--quiet", *no_other_backend, *not_tuned, *task]
    without = run(bare, command, bare.environment, tmp_path / "bare", EXHAUSTED)
    within, account = run_in_share(shared, "hashcat", command, tmp_path / "shared", EXHAUSTED)
    for seen in (without, within):
        last = seen.output.splitlines()[-1].split("\t")
        assert last[:2] == ["STATUS", "5"]
        assert last[last.index("PROGRESS") + 1 :][:2] == [str(10**8), str(10**8)]
    assert within.work == without.work
    assert account.launches >= within.work.total() > 40
    assert (account.passed, account.faults, account.memory_used_bytes) == (0, 0, 0)


HOLDER = f"""
import ctypes, sys
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
               cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]) * {MIB}))):
    assert result == 0, result
print("ready", flush=True)
sys.stdin.read()
"""
"""A program that takes the given MiB of the device and keeps them."""


@pytest.mark.usefixtures("installed")
def test_monitors_show_the_share_inside_and_the_device_outside() -> None:
    with Node() as node:
        environment = node.share_environment("monitored", Terms(50, memory_bytes=10 << 30))
        with (
            python(environment, "-c", HOLDER, "256") as (inside, _),
            python(node.environment, "-c", HOLDER, "4096") as (outside, _),
        ):
            both = {inside.pid: 256, outside.pid: 4096}
            assert gpustat(environment) == (256, 10240, {inside.pid: 256})
            assert gpustat(node.environment) == (4352, 143771, both)
            assert nvitop(environment) == ("256.0MiB / 10240MiB", {inside.pid: "256.0MiB"})
            assert nvitop(node.environment) == (
                "4352MiB / 140.4GiB",
                {inside.pid: "256.0MiB", outside.pid: "4096MiB"},
            )


def gpustat(environment: Mapping[str, str]) -> tuple[int, int, dict[int, int]]:
    """Return the used memory, the total memory, and the use of each process, in MiB."""
    (gpu,) = json.loads(monitor(environment, "gpustat", "--json"))["gpus"]
    processes = {process["pid"]: process["gpu_memory_usage"] for process in gpu["processes"]}
    return gpu["memory.used"], gpu["memory.total"], processes


def nvitop(environment: Mapping[str, str]) -> tuple[str, dict[int, str]]:
    """Return the same values as text on nvitop's screen."""
    screen = monitor(environment, "nvitop", "--once", "--ascii")
    (used,) = re.findall(r"\| +(\S+ / \S+) \|", screen)
    return used, {int(pid): size for pid, size in re.findall(r"^\| +0 +(\d+) C +\S+ +(\S+) ", screen, re.MULTILINE)}


def monitor(environment: Mapping[str, str], program: str, *arguments: str) -> str:
    """Return what a monitor prints; it must print no error."""
    command = [strangers.PYTHON.with_name(program), *arguments]
    wide = {**environment, "COLUMNS": "120"}
    done = subprocess.run(command, env=wide, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
