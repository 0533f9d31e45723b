"""NVML inside a share: the share's memory, its own processes, by every way that a program has to the library."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from nvml_programs import HERE, Ask, Use

from rig import REPO_ROOT
from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu, SimulatedGpu
from rig.script import script
from sharepod.hook import LIBRARY
from sharepod.simgpu.truth import Truth

MIB = 1 << 20
CAP = 4096 * MIB
H200 = 143771 * MIB
A10 = 23028 * MIB
GPU = "GPU-53474750-0000-0000-8000-0000000000"
KINDS = ("Compute", "Graphics", "MPSCompute")
LISTS = (
    *(f"{kind}RunningProcesses{version}" for kind in KINDS for version in ("", "_v2", "_v3")),
    "AccountingPids",
    "RunningProcessDetailList",
    "ProcessUtilization",
    "ProcessesUtilizationInfo",
)
SUCCESS, NOT_FOUND, INSUFFICIENT = 0, 6, 7


@pytest.fixture
def machine(make_simgpu: MakeSimgpu) -> SimulatedGpu:
    return make_simgpu("2xH200,1xA10")


Shares = Callable[..., dict[str, str]]


@pytest.fixture
def share(tmp_path: Path) -> Iterator[Shares]:
    """Make a share: ``share(caps)``; caps by device. Gives what its programs need in their environment."""
    made = itertools.count()
    with Arbiter() as arbiter:
        yield (
            lambda caps: arbiter.share(tmp_path / f"share-{next(made)}", tuple(caps), request=20, memory_bytes=caps).env
        )


@dataclass(frozen=True)
class Seen:
    """What smi.c printed of one device."""

    total: int
    used: int
    free: int
    lists: dict[str, list[str]]
    v2: list[int]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build smi.c, linked with the library lazily and at once, and not linked."""
    directory = tmp_path_factory.mktemp("smi")
    (directory / "libnvidia-ml.so").symlink_to(REPO_ROOT / "simgpu" / "lib" / "libnvidia-ml.so.1")
    strict = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    ways = {
        "lazy": ["-DLINKED", "-Wl,-z,lazy", f"-L{directory}", "-lnvidia-ml"],
        "now": ["-DLINKED", "-Wl,-z,now", "-fno-plt", f"-L{directory}", "-lnvidia-ml"],
        "unlinked": ["-ldl"],
    }
    built = {way: directory / f"smi-{way}" for way in ways}
    for way, flags in ways.items():
        subprocess.run(["cc", *strict, "-o", built[way], HERE / "smi.c", *flags], check=True)
    return built


def smi(program: Path, route: str, env: dict[str, str]) -> list[Seen]:
    done = subprocess.run([program, route], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "touched" not in done.stdout
    assert "errno" not in done.stdout
    seen: list[Seen] = []
    for line in done.stdout.splitlines():
        name, *words = line.split()
        if name.startswith("GPU-"):
            numbers = [int(word) for word in words]
            seen.append(Seen(*numbers[:3], {}, numbers[3:]))
        else:
            seen[-1].lists[name] = words
    return seen


def said(pids: list[int], bound: int | None = None) -> list[str]:
    """Return what smi.c prints of a list that holds these processes; `bound`: what samples say without room."""
    count, samples = len(pids), bound is not None
    if not count:
        without = [NOT_FOUND, 0] if bound == 0 else [INSUFFICIENT, bound] if samples else [SUCCESS, 0]
        return [str(word) for word in (*without, NOT_FOUND if samples else SUCCESS)]
    without = [INSUFFICIENT, bound if samples else count]
    words = (*without, SUCCESS, *pids, "less", INSUFFICIENT, count, 1, "exact", SUCCESS)
    return [str(word) for word in words]


ROUTES = [
    ("lazy", "linked"),
    ("now", "linked"),
    ("unlinked", "libnvidia-ml.so.1"),
    ("unlinked", str(REPO_ROOT / "simgpu" / "lib" / "libnvidia-ml.so.1")),
    ("unlinked", "deepbind:libnvidia-ml.so.1"),
    ("unlinked", "default"),
]


@pytest.mark.parametrize(("program", "route"), ROUTES)
def test_a_program_that_never_uses_cuda_sees_its_share_by_every_route(
    machine: SimulatedGpu, share: Shares, use: Use, programs: dict[str, Path], program: str, route: str
) -> None:
    ours, theirs = share({0: CAP, 2: 0}), share({0: 2 * CAP})
    first = use(0, 1000, 9000, 512 * MIB, **ours)
    second = use(0, 1000, 9000, 256 * MIB, **ours)
    other = use(0, 1000, 9000, 1024 * MIB, **theirs)
    elsewhere = use(1, 1000, 9000, 128 * MIB, **theirs)
    shown, beside, uncapped = smi(programs[program], route, machine.env | ours)
    assert (shown.total, shown.used, shown.free) == (CAP, 768 * MIB, CAP - 768 * MIB)
    assert shown.v2 == [CAP, 768 * MIB, CAP - 768 * MIB, 0]
    assert (beside.total, beside.used) == (H200, 128 * MIB)  # not a device of the share: its memory as it is
    assert (uncapped.total, uncapped.used, uncapped.free) == (A10, 0, A10)
    for name in LISTS:
        samples = "Utilization" in name
        none = name.startswith(("Graphics", "MPS"))  # nobody draws here, and no server of MPS is there
        own = [] if none else [first.pid, second.pid]
        assert shown.lists[name] == said(own, 64 if samples else None), name
        assert beside.lists[name] == said([], 64 if samples else None), name  # nobody's but ours are shown there
        assert uncapped.lists[name] == said([], 0 if samples else None), name
    bare = smi(programs[program], route, machine.env)[0]
    assert (bare.total, bare.used) == (H200, 1792 * MIB)
    assert bare.lists["ComputeRunningProcesses_v3"] == said([first.pid, second.pid, other.pid])
    assert elsewhere.poll() is None


def test_where_mps_serves_a_share_sees_its_own_clients_and_not_the_server(
    machine: SimulatedGpu, share: Shares, use: Use, programs: dict[str, Path]
) -> None:
    ours, theirs = share({0: CAP}), share({0: CAP})
    own = [use(0, 1000, 9000, 256 * MIB, **ours).pid for _ in range(2)]
    other = use(0, 1000, 9000, 128 * MIB, **theirs)
    with Truth(machine.env["SIMGPU_STATE"]) as truth:
        truth.serve_by_mps(0, os.getpid())
        shown = smi(programs["unlinked"], "libnvidia-ml.so.1", machine.env | ours)[0]
        bare = smi(programs["unlinked"], "libnvidia-ml.so.1", machine.env)[0]
    for version in ("", "_v2", "_v3"):
        for kind, served in (("Compute", [os.getpid()]), ("MPSCompute", [])):
            name = f"{kind}RunningProcesses{version}"
            assert bare.lists[name] == said([*own, other.pid, *served]), name
            assert shown.lists[name] == said(own), name


def test_a_program_in_a_slot_sees_itself(share: Shares, machine: SimulatedGpu, use: Use) -> None:
    ours, theirs = share({0: CAP}), share({0: CAP})
    use(0, 1000, 9000, 64 * MIB, **theirs)
    code = f"""
import os, pynvml
start()
allocate({512 * MIB})
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
for memory in pynvml.nvmlDeviceGetMemoryInfo(gpu), pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2):
    assert (memory.total, memory.used, memory.free) == ({CAP}, {512 * MIB}, {CAP - 512 * MIB}), memory
assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)] == [os.getpid()]
assert [p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)] == [{512 * MIB}]
free, total = c_size_t(), c_size_t()
ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
assert (free.value, total.value) == (memory.free, memory.total)
child = os.fork()
if not child:  # not in a slot, and asks all the same
    os._exit([p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)] != [os.getppid()])
assert os.waitpid(child, 0)[1] == 0
"""
    env = machine.env | ours
    done = subprocess.run(script(code), env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_the_cap_of_a_share_that_is_larger_than_the_device_is_the_device(
    machine: SimulatedGpu, share: Shares, programs: dict[str, Path]
) -> None:
    shown = smi(programs["unlinked"], "libnvidia-ml.so.1", machine.env | share({2: 2 * A10}))[2]
    assert (shown.total, shown.used, shown.free) == (A10, 0, A10)


def cut_short(directory: Path) -> None:
    os.truncate(directory / "slots", 100)


def another_abi(directory: Path) -> None:
    with (directory / "terms").open("r+b") as terms:
        terms.seek(8)
        terms.write(b"\2")


@pytest.mark.parametrize("ruin", [cut_short, another_abi, lambda directory: (directory / "terms").unlink(), None])
def test_without_a_usable_region_the_librarys_answers_pass(
    machine: SimulatedGpu, share: Shares, use: Use, programs: dict[str, Path], ruin: Callable[[Path], None] | None
) -> None:
    ours = share({0: CAP})
    other = use(0, 1000, 9000, 64 * MIB)
    if ruin is None:
        ours |= {"SHAREPOD_REGION": "/nowhere"}
    else:
        ruin(Path(ours["SHAREPOD_REGION"]))
    shown = smi(programs["unlinked"], "libnvidia-ml.so.1", machine.env | ours)[0]
    assert (shown.total, shown.used) == (H200, 64 * MIB)
    assert shown.lists["ComputeRunningProcesses_v3"] == said([other.pid])


def test_errors_of_the_library_are_the_programs(machine: SimulatedGpu, share: Shares) -> None:
    code = """
import ctypes, pynvml
nvml = ctypes.CDLL("libnvidia-ml.so.1")
count, memory = ctypes.c_uint(3), (ctypes.c_uint64 * 8)()
ask = nvml.nvmlDeviceGetComputeRunningProcesses_v3
print(nvml.nvmlDeviceGetMemoryInfo(None, memory), ask(None, ctypes.byref(count), None))
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print(ask(gpu, None, None), ask(gpu, ctypes.byref(count), None), ask(None, ctypes.byref(ctypes.c_uint(0)), None))
print(nvml.nvmlDeviceGetMemoryInfo(gpu, None), nvml.nvmlDeviceGetMemoryInfo_v2(gpu, memory))
versions = (ctypes.c_uint * 6)(9 << 24)
structures = nvml.nvmlDeviceGetRunningProcessDetailList, nvml.nvmlDeviceGetProcessesUtilizationInfo
print(*(ask(gpu, versions) for ask in structures))
print(*(ask(gpu, None) for ask in structures))
"""
    command = [sys.executable, "-c", code]
    bare = subprocess.run(command, env=machine.env, capture_output=True, text=True, timeout=30, check=True)
    ours = machine.env | share({0: CAP})
    inside = subprocess.run(command, env=ours, capture_output=True, text=True, timeout=30, check=True)
    assert inside.stdout == bare.stdout == "1 1\n2 2 2\n2 25\n25 25\n2 2\n"


def test_many_processes_of_others_do_not_show(machine: SimulatedGpu, share: Shares, ask: Ask, use: Use) -> None:
    theirs = share({0: CAP})
    users = [use(0, 1000, 20000, MIB, **theirs) for _ in range(4)]
    assert len(ask("nvmlDeviceGetComputeRunningProcesses(gpu(0))")) == len(users)
    code = """
import ctypes, pynvml
pynvml.nvmlInit()
gpu, count = pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint(0)
ask = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetComputeRunningProcesses_v3
print(ask(gpu, ctypes.byref(count), None), count.value)
"""
    ours = machine.env | share({0: CAP})
    done = subprocess.run(
        [sys.executable, "-c", code], env=ours, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "0 0\n"


def test_without_the_library_a_wrapper_says_uninitialized(tmp_path: Path) -> None:
    program, source = tmp_path / "driverless", tmp_path / "driverless.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <errno.h>\n#include <stdio.h>\n"
        "int main(void) { unsigned n = 0; errno = 77;"
        ' int (*f)(void *, unsigned *, void *) = dlsym(RTLD_DEFAULT, "nvmlDeviceGetComputeRunningProcesses_v3");'
        ' int (*g)(void *, void *) = dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo"); int a = f(0, &n, 0), b = g(0, 0);'
        ' return printf("%d %d errno %d\\n", a, b, errno) < 0; }\n'
    )
    subprocess.run(["cc", "-o", program, source, "-ldl"], check=True)
    env = {"LD_PRELOAD": str(LIBRARY), "SHAREPOD_REGION": "/nowhere", "PATH": os.environ["PATH"]}
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "1 1 errno 77\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_a_crowded_machine_is_looked_through_to_its_end(share: Shares, tmp_path: Path, kind: str, version: str) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, HERE / "crowded_nvml.c"]
    subprocess.run(command, check=True)
    ours = share({0: CAP})
    with (Path(ours["SHAREPOD_REGION"]) / "slots").open("r+b") as slots:
        slots.write(b"\1\1")
        for slot, pid in enumerate((1999, 3)):
            slots.seek(64 + slot * (64 + 16 * (128 + 64)) + 4)
            slots.write(pid.to_bytes(4, "little"))
    words = 6 if version else 4  # of an entry
    code = f"""
import ctypes
ask, count = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGet{kind}RunningProcesses{version}, ctypes.c_uint(0)
print(ask(None, ctypes.byref(count), None), count.value)
entries = (ctypes.c_uint * {2 * words})()
print(ask(None, ctypes.byref(count), entries), count.value, entries[0], entries[{words}])
"""
    env = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path), **ours}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "7 2\n0 2 3 1999\n"
