"""Test memory pools: what they reserve, when they give it back, and which processes may use them."""

import pytest
from simgpu_fixtures import MIB, NewGpu


def test_a_pool_reserves_chunks_and_the_device_counts_what_is_reserved(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        pool, address, stream = default_pool(), c_uint64(), new_stream()
        for size in (1000, MIB, 100 * MIB + 1):
            ok(cuda.cuMemAllocAsync(byref(address), c_size_t(size), stream))
            counts = {used(), attribute(pool, RESERVED), account().pools_bytes, account().memory_bytes}
            print(counts, attribute(pool, USED))
        """)
    reserved = {32 * MIB: [1024, 1024 + MIB], (32 + 128) * MIB: [1024 + MIB + 100 * MIB + 512]}
    assert lines == [f"{{{taken}}} {size}" for taken, sizes in reserved.items() for size in sizes]


@pytest.mark.parametrize("own", ["", "_ptsz"])
def test_memory_goes_back_to_the_pool_in_stream_order_and_to_the_device_at_the_next_synchronise(
    new_gpu: NewGpu, own: str
) -> None:
    lines = new_gpu().play(f"""
        module, pool, stream, done = start(), default_pool(), new_stream(), new_event()
        for wait in (lambda: cuda.cuStreamSynchronize(stream), lambda: cuda.cuEventSynchronize(done),
                     lambda: cuda.cuCtxSynchronize()):
            address = c_uint64()
            ok(cuda.cuMemAllocAsync{own}(byref(address), c_size_t(1000), stream))
            put(address.value, b"bytes")
            moved = get(address.value, 5)
            release = hold(stream)
            ok(cuda.cuMemFreeAsync{own}(address, stream))
            ok(cuda.cuEventRecord(done, stream))
            early = attribute(pool, USED), used()
            release()
            while cuda.cuStreamQuery(stream):
                time.sleep(0.001)
            free = attribute(pool, USED), used()
            ok(wait())
            print(moved, early, free, used(), account().memory_bytes)
        """)
    assert lines == [f"b'bytes' (1024, {32 * MIB}) (0, {32 * MIB}) 0 0"] * 3


def test_a_pool_keeps_its_release_threshold_and_no_more_than_whole_chunks_go(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        pool, stream = make_pool(), new_stream()
        ok(set_attribute(pool, THRESHOLD, 64 * MIB))
        addresses = [from_pool(pool, 30 * MIB, stream) for _ in range(4)]

        def reserved():
            assert used() == attribute(pool, RESERVED) == account().pools_bytes
            return used() // MIB

        def marks():
            return attribute(pool, USED_HIGH) // MIB, attribute(pool, RESERVED_HIGH) // MIB

        print(reserved(), attribute(pool, THRESHOLD) // MIB)
        for address in addresses[1:]:
            free_in(address, stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(reserved())
        for keep in (40 * MIB, 0):
            ok(cuda.cuMemPoolTrimTo(pool, c_size_t(keep)))
            print(reserved())
        free_in(addresses[0], stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(reserved(), marks())
        # The marks can be reset, to nothing but zero; what is reserved cannot be set.
        print(set_attribute(pool, USED_HIGH, 7), set_attribute(pool, RESERVED, 0),
              set_attribute(pool, USED_HIGH, 0), set_attribute(pool, RESERVED_HIGH, 0), marks())
        """)
    assert lines == ["128 64", "64", "32", "32", "32 (120, 128)", "1 1 0 0 (0, 32)"]


def test_a_stream_has_what_it_freed_at_once_and_another_stream_when_it_is_through(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        module, pool, stream, other = start(), make_pool(), new_stream(), new_stream()
        first = from_pool(pool, 10000, stream)
        release = hold(stream)
        free_in(first, stream)
        elsewhere = from_pool(pool, 10000, other)
        half, rest = from_pool(pool, 4096, stream), from_pool(pool, 4096, stream)
        print(elsewhere != first, half == first, rest == first + 4096, attribute(pool, USED))
        release()
        ok(cuda.cuStreamSynchronize(stream))
        print(attribute(pool, USED), from_pool(pool, 2048, other) == first + 8192)
        """)
    assert lines == [f"True True True {2 * 10240}", f"{10240 + 8192} True"]


def test_a_pool_grows_by_whole_chunks_or_not_at_all_and_gives_way_before_an_allocation_fails(new_gpu: NewGpu) -> None:
    lines = new_gpu(SIMGPU_MEMORY_MIB="64").play("""
        start()
        stream, address, pool = new_stream(), c_uint64(), default_pool()
        ok(set_attribute(pool, THRESHOLD, 64 * MIB))

        def ask(size):
            return cuda.cuMemAllocAsync(byref(address), c_size_t(size), stream)

        linear = allocate(33 * MIB)
        print(ask(1), used() // MIB)
        ok(cuda.cuMemFree_v2(c_uint64(linear)))
        linear, small = allocate(30 * MIB), from_pool(pool, 1000, stream)
        print(used() // MIB, ask(33 * MIB), used() // MIB)
        free_in(from_pool(pool, 31 * MIB, stream), stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(used() // MIB, cuda.cuMemAlloc_v2(byref(address), c_size_t(2 * MIB + 1)), used() // MIB)
        free_in(small, stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(used() // MIB, allocate(34 * MIB) > 0, used() // MIB)
        ok(cuda.cuMemFree_v2(c_uint64(linear)))
        print(ask(1), used() // MIB)
        """)
    assert lines == ["2 33", "62 2 62", "62 2 62", "62 True 64", "2 34"]


def test_physical_memory_has_what_a_pool_does_not_use(new_gpu: NewGpu) -> None:
    lines = new_gpu(SIMGPU_MEMORY_MIB="64").play("""
        start()
        stream, pool = new_stream(), default_pool()
        ok(set_attribute(pool, THRESHOLD, 64 * MIB))
        free_in(from_pool(pool, 1000, stream), stream)
        ok(cuda.cuStreamSynchronize(stream))
        print(account().pools_bytes // MIB)
        physical(34 * MIB)
        print(account().pools_bytes, used() // MIB)
        """)
    assert lines == ["32", "0 34"]


def test_a_destroyed_pool_lives_until_its_last_allocation_is_freed(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
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
        """)
    assert lines == ["True True 32 b'kept'", "1 1 1", "32", "0 1"]


def test_a_pools_memory_outlives_the_context_that_allocated_it(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        context, module, pool = c_void_p(), c_void_p(), default_pool()
        ok(cuda.cuCtxCreate_v2(byref(context), 0, 0))
        ok(cuda.cuModuleLoadData(byref(module), b"\\x7fELF" + bytes(64)))
        stream = new_stream()
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
        """)
    assert lines == [f"{512 + 5120} 512 32 b'kept'", "0"]


def test_threads_use_one_pool_at_the_same_time(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
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
        """)
    assert lines == ["[] 0 0 0 0"]
