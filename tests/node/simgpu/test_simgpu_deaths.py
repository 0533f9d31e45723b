"""Test processes that die, fork or lose their device: what they held is freed, and the other processes go on."""

import os
import signal
import time
from random import Random

from simgpu_fixtures import MIB, NewGpu

from rig.until import until

HOLD_EVERYTHING = """
    start()
    allocate(MIB)
    ok(cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(MIB), 1))
    new_array(1024, 1024)
    ok(cuda.cuMipmappedArrayCreate(byref(c_void_p()), byref(Array3D(1024, 1024, 0, 1, 1, 0)), 3))
    from_pool(make_pool(), MIB)
    ok(set_attribute(default_pool(), THRESHOLD, 64 * MIB))
    free_in(from_pool(default_pool(), MIB))  # which the pool keeps
    ok(cuda.cuCtxSynchronize())
    mapped, address, fd, other = physical(2 * MIB), reserve(2 * MIB), c_int(), os.memfd_create("other")
    map_at(address, 2 * MIB, mapped)
    ok(cuda.cuMemRelease(mapped))
    ok(cuda.cuMemExportToShareableHandle(byref(fd), physical(2 * MIB, handle_types=1), 1, c_uint64(0)))
    os.truncate(other, MIB)
    ok(cuda.cuImportExternalMemory(byref(c_void_p()), byref(External(1, other, None, MIB, 0))))
    assert account().memory_bytes == used()
    print("ready", flush=True)
    time.sleep(60)
    """


def test_memory_of_every_kind_is_free_again_when_its_process_is_killed(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    holder = gpu.ready(HOLD_EVERYTHING)
    with gpu.truth() as truth:
        (held,) = truth.processes(0)
        kinds = (held.contexts_bytes, held.pools_bytes, held.physical_bytes, held.external_bytes)
        mipmap = 1024 * 1024 + 512 * 512 + 256 * 256
        assert kinds == (3 * MIB + mipmap, 64 * MIB, 4 * MIB, MIB)
        holder.kill()
        assert truth.devices()[0].memory_used_bytes == 0
        assert truth.processes(0) == []


CHURN = """
    import random
    random.seed(int(sys.argv[1]))
    f, stream, pool = kernel(start(), "k_5us"), new_stream(), make_pool(handle_types=1)
    print("ready", flush=True)

    def work():
        for _ in range(random.randrange(50)):
            ok(launch(f, stream))
        ok(cuda.cuStreamSynchronize(stream))

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
        random.choice([work, linear, array, pooled, virtual])()
    """


def test_a_process_may_be_killed_in_any_call_and_the_next_has_the_whole_device(new_gpu: NewGpu) -> None:
    gpu, random = new_gpu(SIMGPU_MEMORY_MIB="512"), Random(7)
    for _ in range(12):
        pair = [gpu.ready(CHURN, random.randrange(1000)) for _ in range(2)]
        time.sleep(random.uniform(0.0, 0.05))
        for program in pair:
            assert program.process.poll() is None, program.process.communicate()
            program.kill()
        assert gpu.used_bytes() == 0
    lines = gpu.play("""
        f = kernel(start(), "k_1ms")
        allocate(512 * MIB)
        ok(launch(f))
        ok(cuda.cuCtxSynchronize())
        print(used() // MIB, account().memory_bytes // MIB)
        """)
    assert lines == ["512 512"]
    with gpu.truth() as truth:
        contexts = truth.contexts(0)
        assert len(contexts) == 25
        assert not [c for c in contexts if c.alive]
        busy_ns = truth.devices()[0].busy_ns
        assert sum(c.busy_ns for c in contexts) == busy_ns
        time.sleep(0.02)
        assert truth.devices()[0].busy_ns == busy_ns


def test_a_forked_child_cannot_use_the_driver_and_its_parent_goes_on(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    lines = gpu.play("""
        f = kernel(start(), "k_1ms")
        child = os.fork()
        if not child:
            print(cuda.cuInit(0), launch(f), cuda.cuCtxSynchronize(), cuda.cuCtxGetCurrent(byref(f)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(launch(f), cuda.cuCtxSynchronize())
        """)
    assert lines == ["3 3 3 3", "0 0"]
    assert [kernel.busy_ns for kernel in gpu.kernels()] == [1_000_000]


def test_a_context_dies_with_its_process_even_if_a_forked_child_lives_on(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    parent = gpu.start("""
        import signal
        start()
        child = os.fork()
        if not child:
            for descriptor in range(3):
                os.close(descriptor)
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """)
    child = int(parent.line())
    parent.lines(returncode=-signal.SIGKILL)
    try:
        with gpu.truth() as truth:
            until(lambda: [c.alive for c in truth.contexts(0)] == [False])
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lost_device_fails_its_contexts_and_recovers_for_new_ones(new_gpu: NewGpu) -> None:
    gpu = new_gpu("2xH200")
    victim = gpu.ready("""
        f = kernel(start(1), "k_1ms")
        print("ready", flush=True)
        while not (result := launch(f) or cuda.cuCtxSynchronize()):
            pass
        print(result)
        """)
    with gpu.truth() as truth:
        truth.inject_xid(1, 79)
        assert victim.lines() == ["46"]
        again = "ok(cuda.cuInit(0)); print(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 1))"
        assert gpu.play(again) == ["46"]
        truth.recover(1)
        assert gpu.play(again) == ["0"]
