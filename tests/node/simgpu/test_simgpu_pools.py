"""Memory pools: what they reserve, when they give it back, who may use them."""

from collections.abc import Callable

import pytest

from rig.gpu import MakeSimgpu

Run = Callable[..., str]


def test_a_pool_reserves_chunks_and_the_device_counts_what_is_reserved(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        pool, address, stream = default_pool(), c_uint64(), new_stream()
        for size in (1000, MIB, 100 * MIB + 1):
            ok(cuda.cuMemAllocAsync(byref(address), c_size_t(size), stream))
            counts = {used(), attribute(pool, RESERVED), account().pools_bytes, account().memory_bytes}
            print(*counts, attribute(pool, USED))
        """,
    )
    mib = 1 << 20
    assert [[int(word) for word in line.split()] for line in output.splitlines()] == [
        [32 * mib, 1024],
        [32 * mib, 1024 + mib],
        [(32 + 102) * mib, 1024 + mib + 100 * mib + 512],
    ]


@pytest.mark.parametrize("own", ["", "_ptsz"])
def test_memory_goes_back_to_the_pool_in_stream_order_and_to_the_device_at_the_next_synchronise(
    make_simgpu: MakeSimgpu, run: Run, own: str
) -> None:
    output = run(
        make_simgpu(),
        f"""
        from rig.holdings import *
        module, pool, stream, done = start(), default_pool(), new_stream(), new_event()
        for wait in (lambda: cuda.cuStreamSynchronize(stream), lambda: cuda.cuEventSynchronize(done),
                     lambda: cuda.cuCtxSynchronize()):
            address = c_uint64()
            ok(cuda.cuMemAllocAsync{own}(byref(address), c_size_t(1000), stream))
            put(address.value, b"bytes")
            moved = get(address.value, 5)
            ok(launch(kernel(module, "k_20ms"), stream))
            ok(cuda.cuMemFreeAsync{own}(address, stream))
            ok(cuda.cuEventRecord(done, stream))
            early = attribute(pool, USED), used()
            while cuda.cuStreamQuery(stream):
                time.sleep(0.001)
            free = attribute(pool, USED), used()
            ok(wait())
            print(moved, early, free, used(), account().memory_bytes)
        """,
    )
    assert output.splitlines() == [f"b'bytes' (1024, {32 << 20}) (0, {32 << 20}) 0 0"] * 3


def test_a_pool_keeps_its_release_threshold_and_no_more_than_whole_chunks_go(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        pool, stream = make_pool(), new_stream()
        ok(set_attribute(pool, THRESHOLD, 64 * MIB))
        addresses = [from_pool(pool, 30 * MIB, stream) for _ in range(4)]

        def reserved():
            assert used() == attribute(pool, RESERVED) == account().pools_bytes
            return used() // MIB

        print(reserved(), attribute(pool, THRESHOLD) // MIB)
        for address in addresses[1:]:
            free_in(address, stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(reserved())
        ok(cuda.cuMemPoolTrimTo(pool, c_size_t(40 * MIB)))
        print(reserved())
        ok(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
        print(reserved())
        free_in(addresses[0], stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(reserved(), attribute(pool, RESERVED_HIGH) // MIB, attribute(pool, USED_HIGH) // MIB)
        """,
    )
    assert output.splitlines() == ["128 64", "64", "32", "32", "32 128 120"]


def test_a_stream_has_what_it_freed_at_once_and_another_stream_when_it_is_through(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        module, pool, stream, other = start(), make_pool(), new_stream(), new_stream()
        first = from_pool(pool, 10000, stream)
        ok(launch(kernel(module, "k_50ms"), stream))
        free_in(first, stream)
        elsewhere = from_pool(pool, 10000, other)
        half, rest = from_pool(pool, 4096, stream), from_pool(pool, 4096, stream)
        print(elsewhere != first, half == first, rest == first + 4096, attribute(pool, USED))
        ok(cuda.cuStreamSynchronize(stream))
        print(attribute(pool, USED), from_pool(pool, 2048, other) == first + 8192)
        """,
    )
    assert output.splitlines() == [f"True True True {2 * 10240}", f"{10240 + 8192} True"]


def test_a_pool_takes_less_than_a_chunk_where_no_more_fits_and_then_nothing(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(SIMGPU_MEMORY_MIB="64"),
        """
        from rig.holdings import *
        start()
        stream, address, pool = new_stream(), c_uint64(), default_pool()
        allocate(33 * MIB)
        small = from_pool(pool, 1000, stream)
        print(used() // MIB, cuda.cuMemAllocAsync(byref(address), c_size_t(30 * MIB), stream), used() // MIB)
        large = from_pool(pool, 28 * MIB, stream)
        print(used() // MIB, cuda.cuMemAlloc_v2(byref(address), c_size_t(MIB + 1)), used() // MIB)
        free_in(large, stream)
        while cuda.cuStreamQuery(stream):
            time.sleep(0.001)
        print(used() // MIB)
        print(allocate(29 * MIB) > 0, used() // MIB)
        """,
    )
    # What the pool does not use goes back before an allocation fails.
    assert output.splitlines() == ["35 2 35", "63 2 63", "63", "True 64"]


def test_no_pool_grows_beyond_its_size(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        pool, address, stream = make_pool(max_bytes=6 * MIB), c_uint64(), new_stream()
        from_pool(pool, 3 * MIB, stream)
        full = cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(2 * MIB + 1), pool, stream)
        print(full, used() // MIB, from_pool(pool, 2 * MIB, stream) > 0, used() // MIB)
        """,
    )
    assert output == "2 4 True 6\n"


def test_a_destroyed_pool_lives_until_its_last_allocation_is_freed(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        pool, current, stream, address = make_pool(), c_void_p(), new_stream(), c_uint64()
        ok(cuda.cuDeviceSetMemPool(0, pool))
        ok(cuda.cuDeviceGetMemPool(byref(current), 0))
        was_current = current.value == pool.value
        one, two = from_pool(pool, 100, stream), from_pool(pool, 100, stream)
        put(one, b"kept")
        ok(cuda.cuMemPoolDestroy(pool))
        ok(cuda.cuDeviceGetMemPool(byref(current), 0))
        print(was_current, current.value == default_pool().value, used() // MIB, get(one, 4))
        print(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(1), pool, stream), cuda.cuMemPoolDestroy(pool),
              cuda.cuMemPoolDestroy(default_pool()))
        free_in(one, stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(used() // MIB)
        ok(cuda.cuMemFree_v2(c_uint64(two)))
        print(used(), cuda.cuMemFree_v2(c_uint64(two)))
        """,
    )
    assert output.splitlines() == ["True True 32 b'kept'", "1 1 1", "32", "0 1"]


def test_a_pools_memory_outlives_the_context_that_allocated_it(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        context, pool = c_void_p(), default_pool()
        ok(cuda.cuCtxCreate_v2(byref(context), 0, 0))
        module, stream = c_void_p(), new_stream()
        ok(cuda.cuModuleLoadData(byref(module), b"\\x7fELF" + bytes(64)))
        kept, going = from_pool(pool, 100, stream), from_pool(pool, 5000, stream)
        put(kept, b"kept")
        ok(launch(kernel(module, "k_500ms"), stream))
        free_in(going, stream)
        before = attribute(pool, USED)
        ok(cuda.cuCtxDestroy_v2(context))
        print(before, attribute(pool, USED), used() // MIB, get(kept, 4))
        ok(cuda.cuMemFree_v2(c_uint64(kept)))
        ok(cuda.cuCtxSynchronize())
        print(used())
        """,
    )
    assert output.splitlines() == [f"{512 + 5120} 512 32 b'kept'", "0"]


def test_marks_can_be_reset_and_access_can_be_asked_for(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu("2xH200"),
        """
        from rig.holdings import *
        start()
        pool, stream = make_pool(), new_stream()
        address = from_pool(pool, 100, stream)
        free_in(address, stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(attribute(pool, USED_HIGH), attribute(pool, RESERVED_HIGH) // MIB,
              set_attribute(pool, USED_HIGH, 7), set_attribute(pool, RESERVED, 0),
              set_attribute(pool, USED_HIGH, 0), set_attribute(pool, RESERVED_HIGH, 0),
              attribute(pool, USED_HIGH), attribute(pool, RESERVED_HIGH))
        flags, found = c_int(), []
        ok(cuda.cuMemPoolGetAttribute(pool, REUSE, byref(flags)))
        found.append(flags.value)
        ok(cuda.cuMemPoolSetAttribute(pool, REUSE, byref(c_int(0))))
        ok(cuda.cuMemPoolGetAttribute(pool, REUSE, byref(flags)))
        found.append(flags.value)
        for device in (0, 1):
            ok(cuda.cuMemPoolGetAccess(byref(flags), pool, byref(Location(DEVICE, device))))
            found.append(flags.value)
        ok(cuda.cuMemPoolSetAccess(pool, byref(Access(Location(DEVICE, 1), 3)), c_size_t(1)))
        ok(cuda.cuMemPoolGetAccess(byref(flags), pool, byref(Location(DEVICE, 1))))
        print(found, flags.value, cuda.cuMemPoolSetAccess(pool, byref(Access(Location(DEVICE, 0), 0)), c_size_t(1)))
        """,
    )
    assert output.splitlines() == ["512 32 1 1 0 0 0 0", "[1, 0, 3, 0] 3 101"]


def test_pools_of_the_host_take_no_device_memory(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        pool, same, stream, kind = c_void_p(), c_void_p(), new_stream(), c_uint()
        ok(cuda.cuMemGetDefaultMemPool(byref(pool), byref(Location(HOST, 0)), 1))
        ok(cuda.cuMemGetMemPool(byref(same), byref(Location(HOST, 0)), 1))
        address = from_pool(pool, 100 * MIB, stream)
        ok(cuda.cuPointerGetAttribute(byref(kind), 2, c_uint64(address)))
        ctypes.memmove(address, b"host", 4)
        near = allocate(4)
        ok(cuda.cuMemcpyHtoD_v2(c_uint64(near), c_void_p(address), c_size_t(4)))
        print(same.value == pool.value, kind.value, used(), attribute(pool, RESERVED) // MIB, get(near, 4))
        free_in(address, stream)
        ok(cuda.cuStreamSynchronize(stream))
        mine = make_pool()
        ok(cuda.cuMemSetMemPool(byref(Location(DEVICE, 0)), 1, mine))
        ok(cuda.cuMemGetMemPool(byref(same), byref(Location(DEVICE, 0)), 1))
        wrong = cuda.cuMemSetMemPool(byref(Location(HOST, 0)), 1, mine)
        print(attribute(pool, RESERVED), same.value == mine.value, wrong)
        """,
    )
    assert output.splitlines() == ["True 1 4 100 b'host'", "0 True 1"]


def test_a_loop_that_never_waits_stays_within_one_chunk(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        f, stream, pool = kernel(start(), "k_1ms"), new_stream(), default_pool()
        for _ in range(200):
            address = from_pool(pool, 20 * MIB, stream)
            ok(launch(f, stream))
            free_in(address, stream)
        print(attribute(pool, RESERVED_HIGH) // MIB, attribute(pool, USED_HIGH) // MIB)
        """,
    )
    assert output == "32 20\n"


def test_nvml_sees_what_a_process_holds_beside_its_contexts(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(SIMGPU_CONTEXT_MIB="7", SIMGPU_MODULE_KIB="1024"),
        """
        from rig.holdings import *
        import pynvml
        start()
        allocate(MIB)
        from_pool(default_pool(), 1)
        physical(4 * MIB)
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        whole = pynvml.nvmlDeviceGetMemoryInfo(handle).used // MIB
        print(process.pid == os.getpid(), process.usedGpuMemory // MIB, whole)
        """,
    )
    assert output == f"True {7 + 1 + 1 + 32 + 4} {7 + 1 + 1 + 32 + 4}\n"


def test_threads_use_one_pool_at_the_same_time(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        import random, threading
        start()
        context, pool, wrong = c_void_p(), make_pool(), []
        ok(cuda.cuCtxGetCurrent(byref(context)))

        def work(seed):
            choose = random.Random(seed)
            ok(cuda.cuCtxSetCurrent(context))
            stream = new_stream()
            for n in range(60):
                marks = [bytes([seed, n, m]) for m in range(4)]
                addresses = [from_pool(pool, choose.randrange(3, 5 * MIB), stream) for _ in marks]
                for address, mark in zip(addresses, marks):
                    put(address, mark)
                wrong.extend(mark for address, mark in zip(addresses, marks) if get(address, 3) != mark)
                for address in addresses:
                    free_in(address, stream)
                if not n % 7:
                    ok(cuda.cuStreamSynchronize(stream))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ok(cuda.cuCtxSynchronize())
        print(wrong, attribute(pool, USED), attribute(pool, RESERVED), used(), account().memory_bytes)
        """,
    )
    assert output == "[] 0 0 0 0\n"
