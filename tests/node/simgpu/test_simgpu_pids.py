"""Test processes in pid namespaces of their own: they are told apart, with the pids that the reader's namespace has."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from simgpu_fixtures import ANSWER, MIB, Gpu, NewGpu, Program

from rig.pid_namespaces import alone, first_of, seen

INITIAL_NAMESPACE = 0xEFFFFFFC


@pytest.fixture
def prelude() -> str:
    return f"""{ANSWER}
from rig.holdings import *

def listed(cycles=1):
    "What NVML lists on device 0, as [pid, MiB], the last time of several."
    for _ in range(cycles):
        nvmlInit()
        processes = nvmlDeviceGetComputeRunningProcesses(nvmlDeviceGetHandleByIndex(0))
        nvmlShutdown()
    return sorted([p.pid, p.usedGpuMemory // MIB] for p in processes)

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

def hold(mib):
    global address
    f = kernel(start(), "k_1ms")
    address = allocate(mib * MIB)
    ok(launch(f))
    ok(cuda.cuCtxSynchronize())
"""


Make = Callable[..., Program]


@pytest.fixture
def gpu(new_gpu: NewGpu) -> Gpu:
    return new_gpu(SIMGPU_CONTEXT_MIB="8")


@pytest.fixture
def client(gpu: Gpu) -> Make:
    """Start a client that takes this many MiB and answers: `client(100, text)`; `text` runs first.

    The client is pid 1 of its own namespace; its `pid` is the one in our namespace. With `within=()` it runs in ours.
    """

    def make(mib: int, text: str = "", within: tuple[str, ...] | None = None) -> Program:
        program = gpu.ready(f"{text}\nhold({mib})\nanswer()", within=alone() if within is None else within)
        if within is None:
            program.pid = first_of(program.process)
        return program

    return make


def listed(gpu: Gpu) -> dict[int, int]:
    """Return what NVML lists for a program in our namespace: MiB by pid."""
    (told,) = gpu.play("print(*(word for entry in listed() for word in entry))")
    numbers = [int(word) for word in told.split()]
    found = dict(zip(numbers[::2], numbers[1::2], strict=True))
    assert len(numbers) == 2 * len(found)
    return found


def test_two_processes_that_are_both_pid_1_are_two_also_when_one_has_died(gpu: Gpu, client: Make) -> None:
    first, second = client(100), client(300)
    assert first.ask("os.getpid()") == second.ask("os.getpid()") == 1
    assert first.pid != second.pid
    assert first.ask("physical(64 * MIB).value")  # physical memory belongs to no context, but counts for its process
    assert listed(gpu) == {first.pid: 172, second.pid: 308}
    with gpu.truth() as truth:
        assert {c.pid: c.memory_bytes // MIB for c in truth.contexts(0)} == {first.pid: 108, second.pid: 308}
        assert {p.pid: p.physical_bytes // MIB for p in truth.processes(0)} == {first.pid: 64, second.pid: 0}
        assert {k.pid for k in truth.kernels(0)} == {first.pid, second.pid}
        os.kill(first.pid, signal.SIGKILL)
        first.process.wait(30)
        assert [c.pid for c in truth.contexts(0) if c.alive] == [second.pid]
    assert listed(gpu) == {second.pid: 308}


def test_a_process_in_a_namespace_knows_itself_by_its_own_pid(gpu: Gpu, client: Make) -> None:
    inside, outside = client(100), client(300, within=())
    assert inside.ask("account(1).memory_bytes // MIB") == 108
    assert [1, 108] in inside.ask("listed()")
    assert outside.ask("listed()") == sorted([[inside.pid, 108], [outside.pid, 308]])


def test_a_client_that_opens_and_closes_nvml_or_has_children_is_still_told(gpu: Gpu, client: Make) -> None:
    """Check processes that close a descriptor of the pid file, which drops the locks of the process on that file."""
    second = client(300)
    first = client(100, "assert listed(2) == [[1, 308]]; nvmlInit()")  # it reads first and then becomes a client
    first.ask("nvmlShutdown()")
    assert first.ask("listed(3)") == [[1, 108], [1, 308]]  # the other process has no pid in this namespace
    descriptors = first.ask("len(os.listdir('/proc/self/fd'))")
    first.ask("listed(20)")
    assert first.ask("len(os.listdir('/proc/self/fd'))") == descriptors
    first.ask("os.waitpid(fork(lambda: listed(2)), 0)[1]")
    first.ask("__import__('subprocess').run(['true'], close_fds=True).returncode")
    assert first.ask("account(1).pid") == 1
    assert listed(gpu) == {first.pid: 108, second.pid: 308}


def test_forked_processes_of_a_namespace_are_told_each(gpu: Gpu, client: Make) -> None:
    """Check this also with a descriptor that they inherit from the parent, which has used NVML."""
    other = client(300)
    parent = gpu.ready(
        """
        ready, told = os.pipe()
        def work():
            hold(100)
            os.write(told, b"1")
            time.sleep(1000)
        listed()
        children = [fork(work) for _ in range(2)]
        for _ in children:
            os.read(ready, 1)
        answer()
        """,
        within=alone(),
    )
    pids = {there: here for here, there in seen(parent.pid).items()}
    assert listed(gpu) == {other.pid: 308, **{pids[child]: 108 for child in parent.ask("children")}}


def test_a_word_of_one_process_releases_no_kernel_of_another(client: Make) -> None:
    """Check two processes that have the word at the same address, and are both pid 1."""
    word = """
import mmap
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
    assert first.ask(f"opened({handle!r})") == 201  # the process itself has exported this handle
    assert second.ask(f"opened({handle!r})") == 400


def test_the_file_of_pids_is_for_every_user_and_only_where_it_is_needed(gpu: Gpu, client: Make) -> None:
    state = gpu.simulated.state
    pids = Path(f"{state}.pids")
    outside = client(10, within=())
    assert listed(gpu) == {outside.pid: 18}
    assert pids.exists() == (Path("/proc/self/ns/pid").stat().st_ino != INITIAL_NAMESPACE)
    state.parent.chmod(0o1777)
    for file in state.parent.iterdir():
        file.chmod(0o666)
    first = client(100, "os.umask(0o077)")
    assert pids.stat().st_mode & 0o777 == 0o666
    second = client(300, "os.setuid(65534)" if os.getuid() == 0 else "")
    assert listed(gpu) == {outside.pid: 18, first.pid: 108, second.pid: 308}


def test_who_holds_on_to_a_state_that_was_removed_is_not_taken_for_another(gpu: Gpu, client: Make) -> None:
    first = client(100)
    with gpu.truth() as before:
        gpu.simulated.state.unlink()
        second = client(300)
        with gpu.truth() as after:
            assert [c.pid for c in before.contexts(0)] == [first.pid]
            assert [c.pid for c in after.contexts(0)] == [second.pid]
    assert listed(gpu) == {second.pid: 308}
