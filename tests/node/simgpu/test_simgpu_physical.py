"""Test physical memory that is mapped at reserved addresses."""

import pytest
from simgpu_fixtures import NewGpu


def test_physical_memory_counts_from_its_making_until_no_reference_and_no_mapping_is_left(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        counts = []

        def count():
            assert used() == account().physical_bytes == account().memory_bytes
            counts.append(used() // MIB)

        address = reserve(64 * MIB)
        count()
        handle, again = physical(6 * MIB), c_uint64()
        count()
        map_at(address, 6 * MIB, handle)
        map_at(address + 32 * MIB, 6 * MIB, handle)
        count()
        put(address + MIB, b"twice")
        print(get(address + 33 * MIB, 5))
        ok(cuda.cuMemRelease(handle))
        print(cuda.cuMemRelease(handle))
        ok(unmap(address, 6 * MIB))
        count()
        ok(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(address + 33 * MIB)))
        ok(unmap(address + 32 * MIB, 6 * MIB))
        count()
        ok(cuda.cuMemRelease(again))
        count()
        ok(cuda.cuMemAddressFree(c_uint64(address), c_size_t(64 * MIB)))
        print(*counts, again.value == handle.value)
        """)
    assert lines == ["b'twice'", "1", "0 6 6 6 6 0 True"]


def test_several_mappings_go_in_one_call_but_never_a_part_of_one(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        address, least = reserve(16 * MIB), c_size_t()
        ok(cuda.cuMemGetAllocationGranularity(byref(least), byref(Prop(1, 0, Location(1, 0))), 0))
        for n in range(3):
            handle = physical(4 * MIB)
            map_at(address + 4 * n * MIB, 4 * MIB, handle)
            ok(cuda.cuMemRelease(handle))
        put(address + 2 * MIB, bytes(range(256)) * 16384)
        print(get(address + 6 * MIB - 256, 256) == bytes(range(256)), used() // MIB, least.value // MIB)
        print(unmap(address, 2 * MIB), unmap(address + 4 * MIB, 6 * MIB), unmap(address, 16 * MIB), used() // MIB)
        print(cuda.cuMemAddressFree(c_uint64(address), c_size_t(16 * MIB)))
        print(unmap(address, 8 * MIB), used() // MIB, unmap(address + 8 * MIB, 4 * MIB), used())
        print(cuda.cuMemAddressFree(c_uint64(address), c_size_t(8 * MIB)),
              cuda.cuMemAddressFree(c_uint64(address), c_size_t(16 * MIB)))
        """)
    assert lines == ["True 12 2", "1 1 1 12", "1", "0 4 0 0", "1 0"]


def test_addresses_without_memory_cannot_be_copied_and_memory_may_go_under_work_in_flight(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        module, stream, address = start(), new_stream(), reserve(4 * MIB)
        data, near, size = ctypes.create_string_buffer(64), allocate(64), c_size_t(64)
        print(cuda.cuMemcpyHtoD_v2(c_uint64(address), data, size), cuda.cuMemcpyDtoH_v2(data, c_uint64(address), size),
              cuda.cuMemsetD8_v2(c_uint64(address + MIB), 1, size))
        handle = physical(2 * MIB)
        map_at(address, 2 * MIB, handle)
        put(address, b"kept")
        ok(launch(kernel(module, "k_20ms"), stream))
        ok(cuda.cuMemcpyDtoDAsync_v2(c_uint64(address), c_uint64(near), size, stream))
        print(unmap(address, 2 * MIB), cuda.cuStreamSynchronize(stream))
        map_at(address, 2 * MIB, handle)
        print(get(address, 4))
        """)
    assert lines == ["1 1 1", "0 0", "b'kept'"]


@pytest.mark.early
def test_a_thousand_pieces_make_one_range_and_take_few_descriptors(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        address = reserve(2000 * MIB)
        for n in range(1000):
            handle = physical(2 * MIB)
            map_at(address + 2 * n * MIB, 2 * MIB, handle)
            ok(cuda.cuMemRelease(handle))
        ok(cuda.cuMemsetD8_v2(c_uint64(address), 0, c_size_t(2000 * MIB)))
        print(used() // MIB, len(os.listdir("/proc/self/fd")) < 100)
        ok(unmap(address, 2000 * MIB))
        print(used())
        """)
    assert lines == ["2000 True", "0"]
