"""Processes in pid namespaces of their own: told apart, and told with the pid that the reader knows them by."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rig.gpu import MakeSimgpu, SimulatedGpu
from rig.pid_namespaces import alone, first_of, seen
from sharepod.simgpu.truth import Truth

MIB = 1 << 20
INITIAL_NAMESPACE = 0xEFFFFFFC
Run = Callable[..., str]
Start = Callable[..., "subprocess.Popen[str]"]

# A program that evaluates what it is asked, a line each.
CLIENT = """
import json, os, pynvml
from rig.holdings import *

def listed(cycles=1):
    "What NVML lists on device 0, as [pid, bytes], the last time of several."
    for _ in range(cycles):
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        pynvml.nvmlShutdown()
    return sorted([p.pid, p.usedGpuMemory] for p in processes)

def shared(address):
    handle = IpcHandle()
    ok(cuda.cuIpcGetMemHandle(byref(handle), c_uint64(address)))
    return bytes(handle).hex()

def opened(handle):
    address = c_uint64()
    return cuda.cuIpcOpenMemHandle_v2(byref(address), IpcHandle.from_buffer_copy(bytes.fromhex(handle)), 1)

def fork(work):
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return child

def answer():
    for line in sys.stdin:
        print(json.dumps(eval(line)), flush=True)
"""
USER = """
start()
address = allocate(int(sys.argv[1]) * MIB)
ok(launch(kernel(start(), "k_1ms")))
ok(cuda.cuCtxSynchronize())
print("ready", flush=True)
answer()
"""


@dataclass(frozen=True)
class Client:
    """A program that answers."""

    process: "subprocess.Popen[str]"

    def ask(self, expression: str) -> Any:
        """Have the program evaluate an expression."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    @property
    def pid(self) -> int:
        """The pid by which we know a program that calls itself 1."""
        return first_of(self.process)


Make = Callable[..., Client]


@pytest.fixture
def gpu(make_simgpu: MakeSimgpu) -> SimulatedGpu:
    return make_simgpu(SIMGPU_CONTEXT_MIB="8", SIMGPU_LOG_KERNELS="64")


@pytest.fixture
def client(gpu: SimulatedGpu, start: Start) -> Make:
    """Start a client that takes so many MiB: `client(100, text)`; `text` runs first. With `within=()` it is in ours."""

    def make(mib: int, text: str = "", within: tuple[str, ...] | None = None, of: str = USER) -> Client:
        process = start(gpu, CLIENT + text + of, str(mib), within=alone() if within is None else within)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "ready\n", process.communicate()[1]
        return Client(process)

    return make


def listed(gpu: SimulatedGpu, run: Run) -> dict[int, int]:
    """Return what NVML lists to a program in our namespace: MiB by pid."""
    found = json.loads(run(gpu, CLIENT + "print(json.dumps(listed()))"))
    assert len(found) == len({pid for pid, _ in found})
    return {pid: size // MIB for pid, size in found}


def test_two_processes_that_are_both_pid_1_are_two(gpu: SimulatedGpu, client: Make, run: Run) -> None:
    first, second = client(100), client(300)
    assert first.ask("os.getpid()") == second.ask("os.getpid()") == 1
    assert first.pid != second.pid
    assert second.ask("used()") == 416 * MIB
    assert listed(gpu, run) == {first.pid: 108, second.pid: 308}
    with Truth(gpu.state) as truth:
        assert {c.pid: c.memory_bytes // MIB for c in truth.contexts(0)} == {first.pid: 108, second.pid: 308}
        assert {p.pid: p.memory_bytes // MIB for p in truth.processes(0)} == {first.pid: 108, second.pid: 308}
        assert {k.pid for k in truth.kernels(0)} == {first.pid, second.pid}


def test_memory_beside_contexts_is_on_the_account_of_its_process(gpu: SimulatedGpu, client: Make, run: Run) -> None:
    first, second = client(100), client(100)
    assert first.ask("physical(64 * MIB).value")
    assert listed(gpu, run) == {first.pid: 172, second.pid: 108}
    with Truth(gpu.state) as truth:
        assert {p.pid: p.physical_bytes // MIB for p in truth.processes(0)} == {first.pid: 64, second.pid: 0}


def test_a_process_that_dies_is_gone_and_the_other_is_still_told(gpu: SimulatedGpu, client: Make, run: Run) -> None:
    first, second = client(100), client(300)
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait(30)
    with Truth(gpu.state) as truth:
        assert [c.pid for c in truth.contexts(0) if c.alive] == [second.pid]
    assert listed(gpu, run) == {second.pid: 308}


def test_a_process_in_a_namespace_knows_itself_by_its_own_pid(gpu: SimulatedGpu, client: Make) -> None:
    inside, outside = client(100), client(300, within=())
    assert inside.ask("account(1).memory_bytes // MIB") == 108
    assert [1, 108 * MIB] in inside.ask("listed()")
    assert outside.ask("listed()") == sorted([[inside.pid, 108 * MIB], [outside.process.pid, 308 * MIB]])


def test_a_client_that_opens_and_closes_nvml_is_still_told(gpu: SimulatedGpu, client: Make, run: Run) -> None:
    first, second = client(100, "pynvml.nvmlInit()\n"), client(300)
    first.ask("pynvml.nvmlShutdown()")
    assert first.ask("listed(3)") == [[1, 108 * MIB], [1, 308 * MIB]]  # the other has no pid there
    descriptors = first.ask("len(os.listdir('/proc/self/fd'))")
    first.ask("listed(20)")
    assert first.ask("account(1).pid") == 1
    assert first.ask("len(os.listdir('/proc/self/fd'))") == descriptors
    assert listed(gpu, run) == {first.pid: 108, second.pid: 308}


def test_a_reader_in_a_namespace_that_becomes_a_client_is_told(gpu: SimulatedGpu, client: Make, run: Run) -> None:
    other = client(300)
    late = client(100, "assert listed(2) == [[1, 308 * MIB]]\n")
    assert late.ask("listed(2)") == [[1, 108 * MIB], [1, 308 * MIB]]
    assert listed(gpu, run) == {late.pid: 108, other.pid: 308}


def test_forked_processes_of_a_namespace_are_told_each(gpu: SimulatedGpu, client: Make, run: Run) -> None:
    """Also with a descriptor that they have from the parent, which has looked through NVML."""
    other = client(300)
    forks = """
ready, told = os.pipe()
def work():
    start()
    allocate(100 * MIB)
    os.write(told, b"1")
    time.sleep(1000)
listed()
children = [fork(work) for _ in range(2)]
for _ in children:
    os.read(ready, 1)
print("ready", flush=True)
answer()
"""
    parent = client(0, of=forks)
    children = parent.ask("children")
    pids = {there: here for here, there in seen(parent.process.pid).items()}
    assert listed(gpu, run) == {other.pid: 308, **{pids[child]: 108 for child in children}}


def test_a_child_that_ends_takes_nothing_from_its_parent(gpu: SimulatedGpu, client: Make, run: Run) -> None:
    parent = client(100)
    parent.ask("os.waitpid(fork(lambda: listed(2)), 0)[1]")
    parent.ask("__import__('subprocess').run(['true'], close_fds=True).returncode")
    assert listed(gpu, run) == {parent.pid: 108}


def test_a_word_of_one_process_releases_no_kernel_of_another(client: Make) -> None:
    """Both have it at the same address, and both are pid 1."""
    word = """
import ctypes, mmap
libc, here = ctypes.CDLL(None), 0x600000000000
libc.mmap.restype = c_void_p
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100000  # MAP_FIXED_NOREPLACE
assert libc.mmap(c_void_p(here), c_size_t(4096), 3, private, -1, ctypes.c_long(0)) == here
module = start()
ok(cuda.cuMemHostRegister_v2(c_void_p(here), c_size_t(4096), 0))
stream, other = new_stream(), new_stream()
spin = lambda: launch(kernel(module, "spin_until"), stream, word=here)
write = lambda: cuda.cuStreamWriteValue32_v2(other, c_uint64(here), 1, 0) or cuda.cuStreamSynchronize(other)
"""
    first, second = client(1, word), client(1, word)
    assert first.ask("spin()") == second.ask("spin()") == 0
    assert second.ask("write()") == 0
    assert second.ask("cuda.cuStreamSynchronize(stream)") == 0
    assert first.ask("cuda.cuStreamQuery(stream)") == 600
    assert first.ask("write() or cuda.cuStreamSynchronize(stream)") == 0


def test_shared_memory_is_found_where_its_process_is_seen(client: Make) -> None:
    first, second, outside = client(100), client(100), client(10, within=())
    handle = first.ask("shared(address)")
    assert outside.ask(f"opened({handle!r})") == 0
    assert first.ask(f"opened({handle!r})") == 201  # its own
    assert second.ask(f"opened({handle!r})") == 400


def test_the_file_of_pids_is_for_every_user_and_only_where_it_is_needed(
    gpu: SimulatedGpu, client: Make, run: Run
) -> None:
    pids = Path(f"{gpu.state}.pids")
    outside = client(10, within=())
    assert listed(gpu, run) == {outside.process.pid: 18}
    assert pids.exists() == (Path("/proc/self/ns/pid").stat().st_ino != INITIAL_NAMESPACE)
    gpu.state.parent.chmod(0o1777)
    for file in gpu.state.parent.iterdir():
        file.chmod(0o666)
    first = client(100, "os.umask(0o077)\n")
    assert pids.stat().st_mode & 0o777 == 0o666
    second = client(300, "os.setuid(65534)\n" if os.getuid() == 0 else "")
    assert listed(gpu, run) == {outside.process.pid: 18, first.pid: 108, second.pid: 308}


def test_who_holds_on_to_a_state_that_was_removed_is_not_taken_for_another(
    gpu: SimulatedGpu, client: Make, run: Run
) -> None:
    first = client(100)
    with Truth(gpu.state) as before:
        gpu.state.unlink()
        second = client(300)
        with Truth(gpu.state) as after:
            assert [c.pid for c in before.contexts(0)] == [first.pid]
            assert [c.pid for c in after.contexts(0)] == [second.pid]
    assert listed(gpu, run) == {second.pid: 308}
