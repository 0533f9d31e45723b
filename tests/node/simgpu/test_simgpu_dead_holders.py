"""What processes held when they were killed is free again, whatever they were at."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

Run = Callable[..., str]
Start = Callable[..., "subprocess.Popen[str]"]

HOLD = {
    "linear": "allocate(MIB)",
    "managed": "ok(cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(MIB), 1))",
    "array": "new_array(1024, 1024)",
    "mipmap": "ok(cuda.cuMipmappedArrayCreate(byref(c_void_p()), byref(Array3D(1024, 1024, 0, 1, 1, 0)), 3))",
    "pool": "from_pool(make_pool(), MIB)",
    "freed, but not by the pool": """
        ok(set_attribute(default_pool(), THRESHOLD, 64 * MIB))
        free_in(from_pool(default_pool(), MIB))
        ok(cuda.cuCtxSynchronize())""",
    "physical, mapped": """
        handle, address = physical(2 * MIB), reserve(2 * MIB)
        map_at(address, 2 * MIB, handle)
        ok(cuda.cuMemRelease(handle))""",
    "physical, exported": """
        fd = c_int()
        ok(cuda.cuMemExportToShareableHandle(byref(fd), physical(2 * MIB, handle_types=1), 1, c_uint64(0)))""",
    "external": """
        fd = os.memfd_create("other")
        os.truncate(fd, MIB)
        ok(cuda.cuImportExternalMemory(byref(c_void_p()), byref(External(1, fd, None, MIB, 0))))""",
}


@pytest.mark.parametrize("kind", HOLD)
def test_memory_of_a_killed_process_is_free_again(make_simgpu: MakeSimgpu, start: Start, kind: str) -> None:
    gpu = make_simgpu()
    text = f"""
        from rig.holdings import *
        start()
        {HOLD[kind].strip()}
        assert account().memory_bytes == used()
        print(used(), flush=True)
        time.sleep(60)
        """
    process = start(gpu, text)
    assert process.stdout
    held = int(process.stdout.readline())
    with Truth(gpu.state) as truth:
        assert held >= 1 << 20
        assert truth.devices()[0].memory_used_bytes == held
        process.kill()
        process.wait()
        assert truth.devices()[0].memory_used_bytes == 0
        assert truth.processes(0) == []


CHURN = """
    from rig.holdings import *
    import random
    random.seed(int(sys.argv[1]))
    start()
    stream, pool = new_stream(), make_pool(handle_types=1)
    print("ready", flush=True)

    def linear():
        ok(cuda.cuMemFree_v2(c_uint64(allocate(random.randrange(1, MIB)))))

    def array():
        ok(cuda.cuArrayDestroy(new_array(random.randrange(1, 1000), 100)))

    def pooled():
        for address in [from_pool(pool, random.randrange(1, 40 * MIB), stream) for _ in range(3)]:
            free_in(address, stream)
        ok(cuda.cuStreamSynchronize(stream))

    def virtual():
        handle, again, address, fd = physical(4 * MIB, handle_types=1), c_uint64(), reserve(4 * MIB), c_int()
        map_at(address, 4 * MIB, handle)
        ok(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_uint64(0)))
        ok(cuda.cuMemRelease(handle))
        ok(unmap(address, 4 * MIB))
        ok(cuda.cuMemImportFromShareableHandle(byref(again), c_void_p(fd.value), 1))
        os.close(fd.value)
        ok(cuda.cuMemRelease(again))
        ok(cuda.cuMemAddressFree(c_uint64(address), c_size_t(4 * MIB)))

    while True:
        random.choice([linear, array, pooled, virtual])()
    """


def test_a_process_may_be_killed_in_any_call_and_the_next_has_the_whole_device(
    make_simgpu: MakeSimgpu, start: Start, run: Run
) -> None:
    gpu, random = make_simgpu(SIMGPU_MEMORY_MIB="512"), Random(7)
    rounds = 12
    for _ in range(rounds):
        pair = [start(gpu, CHURN, str(random.randrange(1000))) for _ in range(2)]
        for process in pair:
            assert process.stdout
            assert process.stdout.readline() == "ready\n", process.communicate()
        time.sleep(random.uniform(0.0, 0.05))
        for process in pair:
            assert process.poll() is None, process.communicate()
            process.kill()
            process.wait()
        with Truth(gpu.state) as truth:
            assert truth.devices()[0].memory_used_bytes == 0
    output = run(
        gpu,
        "from rig.holdings import *\nstart()\nallocate(512 * MIB)\nprint(used() // MIB, account().memory_bytes // MIB)",
    )
    assert output == "512 512\n"


GIVER = """
    from rig.holdings import *
    start()
    peer, kept = serve(sys.argv[1]), physical(6 * MIB)
    print("ready", flush=True)
    while True:
        handle, fd = physical(4 * MIB, handle_types=1), c_int()
        ok(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_uint64(0)))
        try:
            give(peer, fds=[fd.value])
            receive(peer)
        except (AssertionError, OSError):
            time.sleep(60)
        os.close(fd.value)
        ok(cuda.cuMemRelease(handle))
    """

TAKER = """
    from rig.holdings import *
    start()
    peer, kept = visit(sys.argv[1]), physical(8 * MIB)
    print("ready", flush=True)
    while True:
        try:
            fd = receive(peer)[1]
        except (AssertionError, OSError):
            time.sleep(60)
        handle = c_uint64()
        ok(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(fd), 1))
        os.close(fd)
        ok(cuda.cuMemRelease(handle))
        try:
            give(peer)
        except OSError:
            time.sleep(60)
    """


@pytest.mark.parametrize("victim", ["giver", "taker"])
def test_what_the_dead_shared_with_the_living_is_counted_for_the_living(
    make_simgpu: MakeSimgpu, start: Start, tmp_path: Path, victim: str
) -> None:
    gpu, random = make_simgpu(), Random(11)
    for n in range(6):
        path = str(tmp_path / str(n))
        pair = {"giver": start(gpu, GIVER, path), "taker": start(gpu, TAKER, path)}
        for process in pair.values():
            assert process.stdout
            assert process.stdout.readline() == "ready\n", process.communicate()
        time.sleep(random.uniform(0.0, 0.03))
        dead = pair.pop(victim)
        (living,) = pair.values()
        dead.kill()
        dead.wait()
        time.sleep(0.05)  # the other one comes to its end of the socket
        with Truth(gpu.state) as truth:
            (process_truth,) = truth.processes(0)
            own = {"giver": 8 << 20, "taker": 6 << 20}[victim]
            assert process_truth.pid == living.pid
            assert process_truth.memory_bytes - own in {0, 4 << 20}
            assert truth.devices()[0].memory_used_bytes == process_truth.memory_bytes
            living.kill()
            living.wait()
            assert truth.devices()[0].memory_used_bytes == 0
