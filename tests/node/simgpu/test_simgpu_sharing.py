"""Memory that several processes use, and memory of other APIs: counted once, and everyone sees the bytes."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

Run = Callable[..., str]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def pair(start: Start, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Run two programs that know the same socket; return what they printed. The first may be killed by the second."""

    def both(gpu: object, first: str, second: str, killed: bool = False) -> tuple[str, str]:
        path = str(tmp_path / "socket")
        processes = [start(gpu, text, path) for text in (first, second)]
        outputs = []
        for process, may_die in zip(processes, (killed, False), strict=True):
            output, errors = process.communicate(timeout=60)
            assert process.returncode == (-9 if may_die else 0), errors
            outputs.append(output)
        return outputs[0], outputs[1]

    return both


def test_linear_memory_is_opened_by_another_process_and_counted_once(
    make_simgpu: MakeSimgpu, pair: Callable[..., tuple[str, str]]
) -> None:
    gpu = make_simgpu()
    first, second = pair(
        gpu,
        """
        from rig.holdings import *
        start()
        spare, address, handle = allocate(100), allocate(3 * MIB), IpcHandle()
        put(address, b"before")
        put(address + 2 * MIB, b"far")
        ok(cuda.cuIpcGetMemHandle(byref(handle), c_uint64(address)))
        own = cuda.cuIpcOpenMemHandle_v2(byref(c_uint64()), handle, 1)
        put(address + 3, b"ween")
        peer = serve(sys.argv[1])
        give(peer, bytes(handle))
        receive(peer)
        print(get(address, 7), own, cuda.cuIpcGetMemHandle(byref(handle), c_uint64(address + 512)))
        ok(cuda.cuMemsetD8_v2(c_uint64(address), 0, c_size_t(3 * MIB)))
        ok(cuda.cuCtxSynchronize())
        give(peer)
        receive(peer)
        """,
        """
        from rig.holdings import *
        start()
        peer, address, again = visit(sys.argv[1]), c_uint64(), c_uint64()
        handle = IpcHandle.from_buffer_copy(receive(peer)[0])
        ok(cuda.cuIpcOpenMemHandle_v2(byref(address), handle, 1))
        ok(cuda.cuIpcOpenMemHandle(byref(again), handle, 1))
        print(get(address.value, 7), get(address.value + 2 * MIB, 3), again.value == address.value,
              used(), account().memory_bytes, cuda.cuMemFree_v2(address))
        put(address.value, b"AFTER")
        give(peer)
        receive(peer)
        print(get(address.value, 7), get(address.value + 2 * MIB, 3))
        ok(cuda.cuIpcCloseMemHandle(address))
        print(get(address.value, 1))
        ok(cuda.cuIpcCloseMemHandle(address))
        print(cuda.cuIpcCloseMemHandle(address), used())
        give(peer)
        """,
    )
    taken = 100 + (3 << 20)
    assert first == "b'AFTERen' 201 1\n"
    assert second.splitlines() == [
        f"b'befween' b'far' True {taken} 0 1",
        r"b'\x00\x00\x00\x00\x00\x00\x00' b'\x00\x00\x00'",
        r"b'\x00'",
        f"1 {taken}",
    ]
    with Truth(gpu.state) as truth:
        assert truth.devices()[0].memory_used_bytes == 0


def test_physical_memory_goes_by_descriptor_and_stays_for_whoever_holds_it(
    make_simgpu: MakeSimgpu, pair: Callable[..., tuple[str, str]]
) -> None:
    gpu = make_simgpu()
    first, second = pair(
        gpu,
        """
        from rig.holdings import *
        start()
        handle, fd, same, address = physical(4 * MIB, handle_types=1), c_int(), c_uint64(), reserve(4 * MIB)
        map_at(address, 4 * MIB, handle)
        put(address + MIB, b"exported")
        ok(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_uint64(0)))
        print(cuda.cuMemExportToShareableHandle(byref(c_int()), physical(2 * MIB), 1, c_uint64(0)))
        ok(cuda.cuMemImportFromShareableHandle(byref(same), c_void_p(fd.value), 1))
        print(same.value == handle.value, account().physical_bytes // MIB)
        ok(cuda.cuMemRelease(same))
        peer = serve(sys.argv[1])
        give(peer, str(os.getpid()).encode(), [fd.value])
        receive(peer)
        print(get(address, 8), account().physical_bytes // MIB)
        ok(unmap(address, 4 * MIB))
        ok(cuda.cuMemRelease(handle))
        print(account().physical_bytes // MIB, flush=True)
        give(peer)
        receive(peer)
        """,
        """
        from rig.holdings import *
        import signal
        start()
        peer, handle, address, found = visit(sys.argv[1]), c_uint64(), reserve(4 * MIB), Prop()
        (pid, fd) = receive(peer)
        ok(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(fd), 1))
        ok(cuda.cuMemGetAllocationPropertiesFromHandle(byref(found), handle))
        map_at(address, 4 * MIB, handle)
        print(get(address + MIB, 8), used() // MIB, account().physical_bytes, found.handle_types, found.location.type)
        put(address, b"imported")
        give(peer)
        receive(peer)
        print(used() // MIB, account().physical_bytes // MIB)
        os.kill(int(pid), signal.SIGKILL)
        while used() != 4 * MIB:
            time.sleep(0.01)
        print(get(address, 8), account().physical_bytes // MIB)
        ok(unmap(address, 4 * MIB))
        ok(cuda.cuMemRelease(handle))
        print(used())
        ok(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(fd), 1))
        map_at(address, 4 * MIB, handle)
        print(used() // MIB, get(address, 8))
        """,
        killed=True,
    )
    assert first.splitlines() == ["1", "True 6", "b'imported' 6", "2"]
    assert second.splitlines() == [
        "b'exported' 6 0 1 1",
        "6 4",
        "b'imported' 4",
        "0",
        "4 b'imported'",  # the descriptor had kept the bytes: they count again
    ]
    with Truth(gpu.state) as truth:
        assert truth.devices()[0].memory_used_bytes == 0


def test_the_exporter_of_physical_memory_has_it_on_its_account_until_it_lets_go(
    make_simgpu: MakeSimgpu, pair: Callable[..., tuple[str, str]]
) -> None:
    first, second = pair(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        handle, fd = physical(4 * MIB, handle_types=1), c_int()
        print(account().physical_bytes // MIB, used() // MIB)
        ok(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_uint64(0)))
        peer = serve(sys.argv[1])
        give(peer, fds=[fd.value])
        receive(peer)
        print(account().physical_bytes // MIB, used() // MIB)
        ok(cuda.cuMemRelease(handle))
        print(account().physical_bytes // MIB, used() // MIB)
        give(peer)
        receive(peer)
        """,
        """
        from rig.holdings import *
        start()
        peer, handle = visit(sys.argv[1]), c_uint64()
        ok(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(receive(peer)[1]), 1))
        print(account().physical_bytes // MIB)
        give(peer)
        receive(peer)
        print(account().physical_bytes // MIB)
        give(peer)
        """,
    )
    assert first.splitlines() == ["4 4", "4 4", "0 4"]
    assert second.splitlines() == ["0", "4"]


def test_a_pools_allocations_go_to_another_process(
    make_simgpu: MakeSimgpu, pair: Callable[..., tuple[str, str]]
) -> None:
    gpu = make_simgpu()
    first, second = pair(
        gpu,
        """
        from rig.holdings import *
        start()
        pool, stream, fd = make_pool(handle_types=1), new_stream(), c_int()
        addresses = [from_pool(pool, 5000, stream) for _ in range(2)]
        for n, address in enumerate(addresses):
            put(address, b"allocation %d" % n)
        ok(cuda.cuMemPoolExportToShareableHandle(byref(fd), pool, 1, c_uint64(0)))
        print(cuda.cuMemPoolExportToShareableHandle(byref(c_int()), default_pool(), 1, c_uint64(0)))
        names = b""
        for address in addresses:
            name = ctypes.create_string_buffer(64)
            ok(cuda.cuMemPoolExportPointer(name, c_uint64(address)))
            names += name.raw
        peer = serve(sys.argv[1])
        give(peer, names, [fd.value])
        receive(peer)
        print(get(addresses[1], 8), used() // MIB, account().pools_bytes // MIB)
        """,
        """
        from rig.holdings import *
        start()
        peer, pool, address = visit(sys.argv[1]), c_void_p(), c_uint64()
        names, fd = receive(peer)
        ok(cuda.cuMemPoolImportFromShareableHandle(byref(pool), c_void_p(fd), 1, c_uint64(0)))
        seen = []
        for n in range(2):
            name = names[64 * n : 64 * n + 64]
            ok(cuda.cuMemPoolImportPointer(byref(address), pool, name))
            seen.append(get(address.value, 12))
        put(address.value, b"answered")
        print(seen, used() // MIB, account().memory_bytes, cuda.cuMemPoolImportPointer(byref(c_uint64()), pool, name),
              cuda.cuMemAllocFromPoolAsync(byref(c_uint64()), c_size_t(1), pool, None))
        ok(cuda.cuMemPoolDestroy(pool))
        print(get(address.value, 8))
        ok(cuda.cuMemFreeAsync(address, None))
        ok(cuda.cuCtxSynchronize())
        print(cuda.cuMemFreeAsync(address, None), account().memory_bytes)
        give(peer)
        """,
    )
    assert first.splitlines() == ["1", "b'answered' 32 32"]
    assert second.splitlines() == ["[b'allocation 0', b'allocation 1'] 32 0 1 1", "b'answered'", "1 0"]
    with Truth(gpu.state) as truth:
        assert truth.devices()[0].memory_used_bytes == 0


def test_external_memory_counts_from_import_to_destruction_and_is_the_same_bytes(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    output = run(
        make_simgpu(SIMGPU_MEMORY_MIB="4"),
        """
        from rig.holdings import *
        start()

        def imported(size, length):
            fd, memory = os.memfd_create("other"), c_void_p()
            os.truncate(fd, length)
            os.pwrite(fd, b"theirs", 5000)
            result = cuda.cuImportExternalMemory(byref(memory), byref(External(1, fd, None, size, 0)))
            return result, memory, fd

        print(imported(4 * MIB + 1, 8 * MIB)[0], imported(4 * MIB, MIB)[0], used())
        fd, memory = os.memfd_create("other"), c_void_p()
        keep = os.dup(fd)
        os.truncate(fd, 3 * MIB)
        os.pwrite(fd, b"theirs", 5000)
        ok(cuda.cuImportExternalMemory(byref(memory), byref(External(1, fd, None, 3 * MIB, 0))))
        print(used() // MIB, account().external_bytes // MIB, os.path.exists(f"/proc/self/fd/{fd}"))
        address, whole, level = c_uint64(), c_void_p(), c_void_p()
        ok(cuda.cuExternalMemoryGetMappedBuffer(byref(address), memory, byref(Buffer(5000, MIB))))
        print(get(address.value, 6), used() // MIB)
        put(address.value, b"ours")
        mapped = MappedMipmap(4996, Array3D(16, 4, 0, 1, 1, 0), 2)
        ok(cuda.cuExternalMemoryGetMappedMipmappedArray(byref(whole), memory, byref(mapped)))
        ok(cuda.cuMipmappedArrayGetLevel(byref(level), whole, 0))
        back = ctypes.create_string_buffer(10)
        ok(cuda.cuMemcpyAtoH_v2(back, level, c_size_t(0), c_size_t(10)))
        print(back.raw, os.pread(keep, 6, 5000), used() // MIB,
              cuda.cuExternalMemoryGetMappedBuffer(byref(c_uint64()), memory, byref(Buffer(3 * MIB, 1))))
        ok(cuda.cuMemFree_v2(address))
        ok(cuda.cuMipmappedArrayDestroy(whole))
        print(used() // MIB)
        ok(cuda.cuDestroyExternalMemory(memory))
        print(used(), cuda.cuDestroyExternalMemory(memory))
        """,
    )
    assert output.splitlines() == [
        "2 1 0",
        "3 3 False",
        "b'theirs' 3",
        r"b'\x00\x00\x00\x00oursrs' b'oursrs' 3 1",
        "3",
        "0 400",
    ]
