"""Test memory of several processes and of other APIs: it counts once, and every process sees the bytes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from simgpu_fixtures import Gpu, NewGpu

Pair = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture
def pair(new_gpu: NewGpu, tmp_path: Path) -> Pair:
    """Run two programs that know each other as `peer`; return their output. The second may kill the first.

    After their end no memory of the device must be in use.
    """

    def both(first: str, second: str, killed: bool = False) -> tuple[list[str], list[str]]:
        gpu: Gpu = new_gpu()
        ways = (("serve", first), ("visit", second))
        programs = [gpu.start(f"start()\npeer = {way}(sys.argv[1])\n{text}", tmp_path / "socket") for way, text in ways]
        printed = programs[0].lines(returncode=-9 if killed else 0), programs[1].lines()
        assert gpu.used_bytes() == 0
        return printed

    return both


def test_linear_memory_is_opened_by_another_process_and_counted_once(pair: Pair) -> None:
    first, second = pair(
        """
spare, address, handle = allocate(100), allocate(3 * MIB), IpcHandle()
put(address, b"before")
put(address + 2 * MIB, b"far")
ok(cuda.cuIpcGetMemHandle(byref(handle), c_uint64(address)))
own = cuda.cuIpcOpenMemHandle_v2(byref(c_uint64()), handle, 1)
put(address + 3, b"ween")
give(peer, bytes(handle))
receive(peer)
print(get(address, 7), own, cuda.cuIpcGetMemHandle(byref(handle), c_uint64(address + 512)))
ok(cuda.cuMemsetD8_v2(c_uint64(address), 0, c_size_t(3 * MIB)))
ok(cuda.cuCtxSynchronize())
give(peer)
receive(peer)
""",
        """
address, again = c_uint64(), c_uint64()
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
    assert first == ["b'AFTERen' 201 1"]
    assert second == [
        f"b'befween' b'far' True {taken} 0 1",
        r"b'\x00\x00\x00\x00\x00\x00\x00' b'\x00\x00\x00'",
        r"b'\x00'",
        f"1 {taken}",
    ]


def test_physical_memory_goes_by_descriptor_and_stays_for_whoever_holds_it(pair: Pair) -> None:
    first, second = pair(
        """
handle, fd, same, address = physical(4 * MIB, handle_types=1), c_int(), c_uint64(), reserve(4 * MIB)
map_at(address, 4 * MIB, handle)
put(address + MIB, b"exported")
ok(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_uint64(0)))
print(cuda.cuMemExportToShareableHandle(byref(c_int()), physical(2 * MIB), 1, c_uint64(0)))
ok(cuda.cuMemImportFromShareableHandle(byref(same), c_void_p(fd.value), 1))
print(same.value == handle.value, account().physical_bytes // MIB)
ok(cuda.cuMemRelease(same))
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
import signal
handle, address, found = c_uint64(), reserve(4 * MIB), Prop()
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
    # The memory counts for the exporter until the exporter frees it, and then for a process that still holds it.
    assert first == ["1", "True 6", "b'imported' 6", "2"]
    assert second == [
        "b'exported' 6 0 1 1",
        "6 4",
        "b'imported' 4",
        "0",
        "4 b'imported'",  # the descriptor has kept the bytes, and now they count again
    ]


def test_a_pools_allocations_go_to_another_process(pair: Pair) -> None:
    first, second = pair(
        """
pool, stream, fd, names = make_pool(handle_types=1), new_stream(), c_int(), b""
addresses = [from_pool(pool, 5000, stream) for _ in range(2)]
ok(cuda.cuMemPoolExportToShareableHandle(byref(fd), pool, 1, c_uint64(0)))
print(cuda.cuMemPoolExportToShareableHandle(byref(c_int()), default_pool(), 1, c_uint64(0)))
for n, address in enumerate(addresses):
    put(address, b"allocation %d" % n)
    name = ctypes.create_string_buffer(64)
    ok(cuda.cuMemPoolExportPointer(name, c_uint64(address)))
    names += name.raw
give(peer, names, [fd.value])
receive(peer)
print(get(addresses[1], 8), used() // MIB, account().pools_bytes // MIB)
""",
        """
pool, address, seen = c_void_p(), c_uint64(), []
names, fd = receive(peer)
ok(cuda.cuMemPoolImportFromShareableHandle(byref(pool), c_void_p(fd), 1, c_uint64(0)))
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
    assert first == ["1", "b'answered' 32 32"]
    assert second == ["[b'allocation 0', b'allocation 1'] 32 0 1 1", "b'answered'", "1 0"]


def test_memory_of_another_api_is_mapped_where_it_lies_in_its_file(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        memory, address, other = c_void_p(), c_uint64(), os.memfd_create("other")
        os.truncate(other, 2 * MIB)
        ok(cuda.cuImportExternalMemory(byref(memory), byref(External(1, os.dup(other), None, 2 * MIB, 0))))
        part = (c_uint64 * 11)(MIB, MIB)  # CUDA_EXTERNAL_MEMORY_BUFFER_DESC: offset, size, and zeroes
        ok(cuda.cuExternalMemoryGetMappedBuffer(byref(address), memory, part))
        put(address.value, b"moved")
        print(get(address.value, 5), os.pread(other, 5, MIB), used() // MIB)
        ok(cuda.cuMemFree_v2(address))
        ok(cuda.cuDestroyExternalMemory(memory))
        print(used())
        """)
    assert lines == ["b'moved' b'moved' 2", "0"]
