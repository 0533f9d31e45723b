"""An ordinary driver-API program that takes memory of device 0 as it is told on stdin, a line each, and answers each.

    take KIND BYTES      take memory; answers the driver's result
    give                 give the last of it back
    race KIND BYTES N    take pieces in N threads until each was refused 200 times in a row; answers how many it got
    open KIND PID WHAT   open what another process shows of its memory
    show KIND            answers how another process opens the last of it

`free` answers what cuMemGetInfo says is free.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "simgpu"))
from memory_structs import AllocationNode, Array, Array3D, External, IpcHandle, Location, PoolProps, Prop

cuda = ctypes.CDLL("libcuda.so.1")
GRAIN = 2 << 20
OUT_OF_MEMORY = 2
FILE = 1  # a handle type: a file descriptor

Give = Callable[[], None]


class Refused(Exception):
    """The driver's result, where it is not success."""


def call(name: str, *arguments: object) -> None:
    """Call a function of the driver."""
    result = getattr(cuda, name)(*arguments)
    if result:
        raise Refused(result)


ON_DEVICE = Location(1, 0)
PINNED = Prop(1, FILE, ON_DEVICE)
context, stream = c_void_p(), c_void_p()
shown: list[Callable[[], str]] = []


def bring_to_an_end() -> None:
    """Wait for the stream: what was freed in it is free then."""
    call("cuStreamSynchronize", stream)


def linear(size: int) -> Give:
    """Take linear memory."""
    address = c_uint64()
    call("cuMemAlloc_v2", byref(address), c_size_t(size))

    def show() -> str:
        handle = (c_char * 64)()
        call("cuIpcGetMemHandle", byref(handle), address)
        return bytes(handle).hex()

    shown.append(show)
    return lambda: call("cuMemFree_v2", address)


def managed(size: int) -> Give:
    """Take managed memory."""
    address = c_uint64()
    call("cuMemAllocManaged", byref(address), c_size_t(size), 1)
    return lambda: call("cuMemFree_v2", address)


def pitched(size: int) -> Give:
    """Take rows that the driver makes longer."""
    address, pitch = c_uint64(), c_size_t()
    call("cuMemAllocPitch_v2", byref(address), byref(pitch), c_size_t(1000), c_size_t(max(1, size // 1024)), 4)
    return lambda: call("cuMemFree_v2", address)


def array(size: int) -> Give:
    """Take an array."""
    made = c_void_p()
    call("cuArrayCreate_v2", byref(made), byref(Array(4096, size // 4096, 1, 1)))
    return lambda: call("cuArrayDestroy", made)


def array_3d(size: int) -> Give:
    """Take an array of three dimensions."""
    made = c_void_p()
    call("cuArray3DCreate_v2", byref(made), byref(Array3D(64, 16, size // 4096, 0x20, 1, 0)))
    return lambda: call("cuArrayDestroy", made)


def mipmap(size: int) -> Give:
    """Take an array in four sizes."""
    made = c_void_p()
    call("cuMipmappedArrayCreate", byref(made), byref(Array3D(1024, size // 4096, 0, 1, 4, 0)), 4)
    return lambda: call("cuMipmappedArrayDestroy", made)


def stream_ordered(size: int) -> Give:
    """Take memory in the order of the stream."""
    address = c_uint64()
    call("cuMemAllocAsync", byref(address), c_size_t(size), stream)

    def give() -> None:
        call("cuMemFreeAsync", address, stream)
        bring_to_an_end()

    return give


def pool(size: int) -> Give:
    """Take memory of a pool that keeps what is freed, until it is trimmed."""
    made, address = c_void_p(), c_uint64()
    call("cuMemPoolCreate", byref(made), byref(PoolProps(1, FILE, ON_DEVICE)))
    call("cuMemPoolSetAttribute", made, 4, byref(c_uint64(2**64 - 1)))
    try:
        call("cuMemAllocFromPoolAsync", byref(address), c_size_t(size), made, stream)
    except Refused:
        call("cuMemPoolDestroy", made)
        raise

    def show() -> str:
        descriptor, pointer = c_int(), (c_char * 64)()
        call("cuMemPoolExportToShareableHandle", byref(descriptor), made, FILE, c_uint64(0))
        call("cuMemPoolExportPointer", byref(pointer), address)
        return f"{descriptor.value},{bytes(pointer).hex()}"

    def give() -> None:
        call("cuMemFreeAsync", address, stream)
        bring_to_an_end()
        call("cuMemPoolTrimTo", made, c_size_t(0))
        call("cuMemPoolDestroy", made)

    shown.append(show)
    return give


def mapped(handle: c_uint64, size: int) -> c_uint64:
    """Map physical memory anywhere."""
    address = c_uint64()
    call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    call("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_uint64(0))
    return address


def unmap(address: c_uint64, size: int) -> None:
    """Take mappings and their addresses away."""
    call("cuMemUnmap", address, c_size_t(size))
    call("cuMemAddressFree", address, c_size_t(size))


def physical(size: int) -> Give:
    """Take physical memory and map it; the handle outlives the mapping."""
    handle = c_uint64()
    call("cuMemCreate", byref(handle), c_size_t(size), byref(PINNED), c_uint64(0))
    address = mapped(handle, size)

    def show() -> str:
        descriptor = c_int()
        call("cuMemExportToShareableHandle", byref(descriptor), handle, FILE, c_uint64(0))
        return f"{descriptor.value},{size}"

    def give() -> None:
        unmap(address, size)
        call("cuMemRelease", handle)

    shown.append(show)
    return give


def released(size: int) -> Give:
    """Take it, and let go of the handle while it is mapped."""
    handle = c_uint64()
    call("cuMemCreate", byref(handle), c_size_t(size), byref(PINNED), c_uint64(0))
    address = mapped(handle, size)
    call("cuMemRelease", handle)
    return lambda: unmap(address, size)


def retained(size: int) -> Give:
    """Let go of the handle, and get it back from the address: it then holds the memory without a mapping."""
    handle, again = c_uint64(), c_uint64()
    call("cuMemCreate", byref(handle), c_size_t(size), byref(PINNED), c_uint64(0))
    address = mapped(handle, size)
    call("cuMemRelease", handle)
    call("cuMemRetainAllocationHandle", byref(again), c_void_p(address.value + size // 2))
    unmap(address, size)
    return lambda: call("cuMemRelease", again)


def segments(size: int) -> Give:
    """Map many pieces one after the other, and take them away at once."""
    address = c_uint64()
    handles = [c_uint64() for _ in range(size // GRAIN)]
    call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    taken = 0
    try:
        for handle in handles:
            call("cuMemCreate", byref(handle), c_size_t(GRAIN), byref(PINNED), c_uint64(0))
            at = c_uint64(address.value + taken)
            call("cuMemMap", at, c_size_t(GRAIN), c_size_t(0), handle, c_uint64(0))
            call("cuMemRelease", handle)
            taken += GRAIN
    except Refused:
        if taken:
            call("cuMemUnmap", address, c_size_t(taken))
        call("cuMemAddressFree", address, c_size_t(size))
        raise
    return lambda: unmap(address, size)


def graph_node(size: int) -> Give:
    """Launch a graph that allocates."""
    graph, node, executable = c_void_p(), c_void_p(), c_void_p()
    params = AllocationNode(pool=PoolProps(1, 0, ON_DEVICE), bytes=size)
    call("cuGraphCreate", byref(graph), 0)
    call("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(params))
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    call("cuGraphDestroy", graph)
    try:
        call("cuGraphLaunch", executable, stream)
    except Refused:
        call("cuGraphExecDestroy", executable)
        raise

    def give() -> None:
        call("cuMemFreeAsync", c_uint64(params.address), stream)
        bring_to_an_end()
        call("cuGraphExecDestroy", executable)
        call("cuDeviceGraphMemTrim", 0)

    return give


def external(size: int) -> Give:
    """Import the memory of another interface."""
    descriptor, made = os.memfd_create("external"), c_void_p()
    os.ftruncate(descriptor, size)
    try:
        call("cuImportExternalMemory", byref(made), byref(External(1, descriptor, None, size)))
    except Refused:
        os.close(descriptor)  # still ours
        raise
    return lambda: call("cuDestroyExternalMemory", made)


def host(size: int) -> Give:
    """Take pinned memory of the host."""
    address = c_void_p()
    call("cuMemHostAlloc", byref(address), c_size_t(size), 3)
    return lambda: call("cuMemFreeHost", address)


def open_linear(_pid: str, what: str) -> Give:
    """Open another process's linear memory."""
    address = c_uint64()
    call("cuIpcOpenMemHandle_v2", byref(address), IpcHandle.from_buffer_copy(bytes.fromhex(what)), 1)
    return lambda: call("cuIpcCloseMemHandle", address)


def open_physical(pid: str, what: str) -> Give:
    """Import another process's physical memory and map it."""
    number, size = what.split(",")
    descriptor, handle = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR), c_uint64()
    call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), FILE)
    os.close(descriptor)
    address = mapped(handle, int(size))

    def give() -> None:
        unmap(address, int(size))
        call("cuMemRelease", handle)

    return give


def open_pool(pid: str, what: str) -> Give:
    """Import another process's pool, and an allocation of it."""
    number, text = what.split(",")
    descriptor, made, address = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR), c_void_p(), c_uint64()
    pointer = (c_char * 64).from_buffer_copy(bytes.fromhex(text))
    call("cuMemPoolImportFromShareableHandle", byref(made), c_void_p(descriptor), FILE, c_uint64(0))
    call("cuMemPoolImportPointer", byref(address), made, byref(pointer))

    def give() -> None:
        call("cuMemFreeAsync", address, stream)
        bring_to_an_end()
        call("cuMemPoolDestroy", made)
        os.close(descriptor)

    return give


KINDS: dict[str, Callable[[int], Give]] = {
    f.__name__: f
    for f in (
        linear,
        managed,
        pitched,
        array,
        array_3d,
        mipmap,
        stream_ordered,
        pool,
        physical,
        released,
        retained,
        segments,
        graph_node,
        external,
        host,
    )
}
OPEN = {"linear": open_linear, "physical": open_physical, "pool": open_pool}


def race(kind: str, size: int, threads: int) -> int:
    """Take pieces in threads until each was refused again and again; return how many there are."""
    got = []

    def work() -> None:
        call("cuCtxSetCurrent", context)
        refused = 0
        while refused < 200:
            try:
                got.append(KINDS[kind](size))
                refused = 0
            except Refused as error:
                if error.args != (OUT_OF_MEMORY,):
                    raise
                refused += 1

    working = [threading.Thread(target=work) for _ in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    return len(got)


def answer(held: list[Give], command: str, *words: str) -> object:
    """Do what a line says."""
    if command == "take":
        held.append(KINDS[words[0]](int(words[1])))
    elif command == "open":
        held.append(OPEN[words[0]](words[1], words[2]))
    elif command == "give":
        held.pop()()
    elif command == "show":
        return shown[-1]()
    elif command == "race":
        return race(words[0], int(words[1]), int(words[2]))
    elif command == "free":
        free, total = c_size_t(), c_size_t()
        call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value
    return 0


def main() -> None:
    """Answer lines until there are no more."""
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", byref(stream), 1)
    print("ready", flush=True)
    held: list[Give] = []
    for line in sys.stdin:
        try:
            print(answer(held, *line.split()), flush=True)
        except Refused as error:
            print(error.args[0], flush=True)


if __name__ == "__main__":
    main()
