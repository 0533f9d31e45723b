"""Physical memory that is mapped at reserved addresses."""

from collections.abc import Callable

from rig.gpu import MakeSimgpu

Run = Callable[..., str]


def test_physical_memory_counts_from_its_making_until_no_reference_and_no_mapping_is_left(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
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
        """,
    )
    assert output.splitlines() == ["b'twice'", "1", "0 6 6 6 6 0 True"]


def test_the_last_byte_of_a_device_can_be_had_and_not_one_more(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(SIMGPU_MEMORY_MIB="64"),
        """
        from rig.holdings import *
        start()
        first, handle, prop = physical(62 * MIB), c_uint64(), Prop(1, 0, Location(DEVICE, 0))
        for size in (4, 2, 2):
            print(cuda.cuMemCreate(byref(handle), c_size_t(size * MIB), byref(prop), c_uint64(0)), used() // MIB)
        ok(cuda.cuMemRelease(first))
        print(used() // MIB)
        """,
    )
    assert output.splitlines() == ["2 62", "0 64", "2 64", "2"]


def test_pools_give_way_to_physical_memory(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(SIMGPU_MEMORY_MIB="64"),
        """
        from rig.holdings import *
        start()
        stream, pool = new_stream(), default_pool()
        ok(set_attribute(pool, THRESHOLD, 64 * MIB))
        free_in(from_pool(pool, 1000, stream), stream)
        ok(cuda.cuStreamSynchronize(stream))
        before = used() // MIB
        physical(64 * MIB)
        print(before, account().pools_bytes, account().physical_bytes // MIB)
        """,
    )
    assert output == "32 0 64\n"


def test_physical_memory_of_the_host_is_not_device_memory(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        address, size, kinds = reserve(8 * MIB), c_size_t(), []
        for n, kind in enumerate((HOST, HOST_NUMA, HOST_NUMA_CURRENT)):
            handle, where = physical(2 * MIB, kind), c_uint()
            map_at(address + 2 * n * MIB, 2 * MIB, handle)
            put(address + 2 * n * MIB, b"host")
            ok(cuda.cuPointerGetAttribute(byref(where), 2, c_uint64(address + 2 * n * MIB)))
            kinds.append((get(address + 2 * n * MIB, 4), where.value))
        ok(cuda.cuMemGetAllocationGranularity(byref(size), byref(Prop(1, 0, Location(DEVICE, 0))), 0))
        print(set(kinds), used(), account().memory_bytes, size.value // MIB)
        """,
    )
    assert output == "{(b'host', 1)} 0 0 2\n"


def test_several_mappings_go_in_one_call_but_never_a_part_of_one(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        address = reserve(16 * MIB)
        handles = [physical(4 * MIB) for _ in range(3)]
        for n, handle in enumerate(handles):
            map_at(address + 4 * n * MIB, 4 * MIB, handle)
            ok(cuda.cuMemRelease(handle))
        put(address + 2 * MIB, bytes(range(256)) * 16384)
        print(get(address + 6 * MIB - 256, 256) == bytes(range(256)), used() // MIB)
        print(unmap(address, 2 * MIB), unmap(address + 4 * MIB, 6 * MIB), unmap(address, 16 * MIB), used() // MIB)
        print(cuda.cuMemAddressFree(c_uint64(address), c_size_t(16 * MIB)))
        print(unmap(address, 8 * MIB), used() // MIB, unmap(address + 8 * MIB, 4 * MIB), used())
        print(cuda.cuMemAddressFree(c_uint64(address), c_size_t(8 * MIB)),
              cuda.cuMemAddressFree(c_uint64(address), c_size_t(16 * MIB)))
        """,
    )
    assert output.splitlines() == ["True 12", "1 1 1 12", "1", "0 4 0 0", "1 0"]


def test_what_is_wrong_is_refused_and_memory_without_access_cannot_be_copied(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu("2xH200"),
        """
        from rig.holdings import *
        start()
        handle, other, prop = physical(4 * MIB), c_uint64(), Prop(1, 0, Location(DEVICE, 0))
        address, flags = reserve(8 * MIB), c_uint64()

        def mapped(at, size, offset=0):
            return cuda.cuMemMap(c_uint64(at), c_size_t(size), c_size_t(offset), handle, c_uint64(0))

        def access(device):
            ok(cuda.cuMemGetAccess(byref(flags), byref(Location(DEVICE, device)), c_uint64(address)))
            return flags.value

        print(cuda.cuMemCreate(byref(other), c_size_t(MIB), byref(prop), c_uint64(0)),
              cuda.cuMemCreate(byref(other), c_size_t(2 * MIB), byref(Prop(1, 0, Location(DEVICE, 2))), c_uint64(0)),
              cuda.cuMemCreate(byref(other), c_size_t(2 * MIB), byref(Prop(1, 0, Location(0, 0))), c_uint64(0)))
        print(mapped(address + 6 * MIB, 4 * MIB), mapped(address, 4 * MIB, 2 * MIB), mapped(address, 6 * MIB),
              mapped(address, 4 * MIB), mapped(address + 2 * MIB, 4 * MIB))
        data = ctypes.create_string_buffer(4)
        wanted = Access(Location(DEVICE, 1), 3)
        print(cuda.cuMemcpyHtoD_v2(c_uint64(address), data, c_size_t(4)), access(0), access(1),
              cuda.cuMemSetAccess(c_uint64(address), c_size_t(8 * MIB), byref(wanted), c_size_t(1)))
        ok(cuda.cuMemSetAccess(c_uint64(address), c_size_t(4 * MIB), byref(wanted), c_size_t(1)))
        print(cuda.cuMemcpyHtoD_v2(c_uint64(address), data, c_size_t(4)), access(0), access(1),
              cuda.cuMemFree_v2(c_uint64(address)), used() // MIB)
        found = Prop()
        ok(cuda.cuMemGetAllocationPropertiesFromHandle(byref(found), handle))
        print(found.type, found.location.type, found.location.id)
        """,
    )
    assert output.splitlines() == ["1 101 1", "1 1 1 0 1", "1 0 0 1", "0 0 3 1 4", "1 1 0"]


def test_addresses_without_memory_cannot_be_copied_and_memory_may_go_under_work_in_flight(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        module, stream, address = start(), new_stream(), reserve(4 * MIB)
        data, near = ctypes.create_string_buffer(64), allocate(64)
        size = c_size_t(64)
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
        """,
    )
    assert output.splitlines() == ["1 1 1", "0 0", "b'kept'"]


def test_a_thousand_pieces_make_one_range(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        address = reserve(2000 * MIB)
        for n in range(1000):
            handle = physical(2 * MIB)
            map_at(address + 2 * n * MIB, 2 * MIB, handle)
            ok(cuda.cuMemRelease(handle))
        ok(cuda.cuMemsetD8_v2(c_uint64(address), 0, c_size_t(2000 * MIB)))
        put(address + 999 * MIB, b"here")
        print(used() // MIB, get(address + 999 * MIB, 4), len(os.listdir("/proc/self/fd")) < 100)
        ok(unmap(address, 2000 * MIB))
        print(used())
        """,
    )
    assert output.splitlines() == ["2000 b'here' True", "0"]
