"""The ways to obtain device memory, for memory_program.py: each takes bytes and returns how to give them back."""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p

from memory_driver import FILE, ON_DEVICE, OWN_STREAM, Give, Refused, bring_to_an_end, call, shown, stream
from memory_graphs import GRAPHS

from rig.structs import (
    Array,
    Array3D,
    Array3DV1,
    ArrayV1,
    External,
    Location,
    PoolProps,
    Prop,
)

GRAIN = 2 << 20
PINNED = Prop(1, FILE, ON_DEVICE)
known: list[tuple[int, int]] = []  # external memory


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


def array_v1(size: int) -> Give:
    """Take an array as CUDA 2 asked for it."""
    made = c_void_p()
    call("cuArrayCreate", byref(made), byref(ArrayV1(4096, size // 4096, 1, 1)))
    return lambda: call("cuArrayDestroy", made)


def array_3d_v1(size: int) -> Give:
    """Take an array of three dimensions as CUDA 2 asked for it."""
    made = c_void_p()
    call("cuArray3DCreate", byref(made), byref(Array3DV1(64, 16, size // 4096, 0x20, 1, 0)))
    return lambda: call("cuArrayDestroy", made)


def mipmap(size: int) -> Give:
    """Take an array in four sizes."""
    made = c_void_p()
    call("cuMipmappedArrayCreate", byref(made), byref(Array3D(1024, size // 4096, 0, 1, 4, 0)), 4)
    return lambda: call("cuMipmappedArrayDestroy", made)


def default_of(device: int = 0) -> c_void_p:
    """Return the pool that stream-ordered memory comes from when nothing is said."""
    found = c_void_p()
    call("cuDeviceGetDefaultMemPool", byref(found), device)
    return found


def ordered(size: int, suffix: str = "", of: c_void_p | None = None) -> Give:
    """Take memory in the order of the stream, or of the thread's own one where the function's suffix says so."""
    address, where = c_uint64(), OWN_STREAM if suffix else stream
    if of is None:
        call("cuMemAllocAsync" + suffix, byref(address), c_size_t(size), where)
    else:
        call("cuMemAllocFromPoolAsync" + suffix, byref(address), c_size_t(size), of, where)

    def give() -> None:
        call("cuMemFreeAsync" + suffix, address, where)
        call("cuStreamSynchronize" + suffix, where)

    return give


def stream_ordered(size: int) -> Give:
    """Take memory in the order of the stream."""
    return ordered(size)


def stream_ordered_ptsz(size: int) -> Give:
    """Take memory in the order of the thread's own stream."""
    return ordered(size, "_ptsz")


def default_pool(size: int) -> Give:
    """Take memory of the default pool by its name."""
    return ordered(size, of=default_of())


def default_pool_ptsz(size: int) -> Give:
    """Take it in the order of the thread's own stream."""
    return ordered(size, "_ptsz", default_of())


def pool(size: int, location: Location = ON_DEVICE) -> Give:
    """Take memory of a pool that keeps what is freed, until it is trimmed."""
    made, address = c_void_p(), c_uint64()
    call("cuMemPoolCreate", byref(made), byref(PoolProps(1, FILE, location)))
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


def pool_elsewhere(size: int) -> Give:
    """Take memory of a pool on device 1."""
    return pool(size, Location(1, 1))


def pool_of_node(size: int) -> Give:
    """Take memory of a pool of the host's."""
    return pool(size, Location(3, 0))


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


def unmapped(size: int, kind: int, number: int) -> Give:
    """Take physical memory of some place, and map it nowhere."""
    handle = c_uint64()
    call("cuMemCreate", byref(handle), c_size_t(size), byref(Prop(1, 0, Location(kind, number))), c_uint64(0))
    return lambda: call("cuMemRelease", handle)


def physical_elsewhere(size: int) -> Give:
    """Take physical memory of device 1."""
    return unmapped(size, 1, 1)


def physical_of_host(size: int) -> Give:
    """Take physical memory of the host."""
    return unmapped(size, 2, 0)


def physical_of_node(size: int) -> Give:
    """Take physical memory of a node of the host's."""
    return unmapped(size, 3, 0)


def physical_near(size: int) -> Give:
    """Take physical memory of the node of the host's that the thread runs on."""
    return unmapped(size, 4, 0)


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


def external(size: int) -> Give:
    """Import the memory of another interface."""
    descriptor = os.memfd_create("external")
    os.ftruncate(descriptor, size)
    try:
        give = imported(descriptor, size)
    except Refused:
        os.close(descriptor)
        raise
    known.append((descriptor, size))
    return give


def imported(descriptor: int, size: int) -> Give:
    """Import what a descriptor stands for."""
    handed, made = os.dup(descriptor), c_void_p()
    try:
        call("cuImportExternalMemory", byref(made), byref(External(1, handed, None, size)))
    except Refused:
        os.close(handed)  # still ours
        raise
    return lambda: call("cuDestroyExternalMemory", made)


def host(size: int) -> Give:
    """Take pinned memory of the host."""
    address = c_void_p()
    call("cuMemHostAlloc", byref(address), c_size_t(size), 3)
    return lambda: call("cuMemFreeHost", address)


KINDS: dict[str, Callable[[int], Give]] = {
    f.__name__: f
    for f in (
        *GRAPHS,
        linear,
        managed,
        pitched,
        array,
        array_3d,
        array_v1,
        array_3d_v1,
        mipmap,
        stream_ordered,
        stream_ordered_ptsz,
        default_pool,
        default_pool_ptsz,
        pool,
        physical,
        released,
        retained,
        segments,
        external,
        host,
        physical_elsewhere,
        physical_of_host,
        physical_of_node,
        physical_near,
        pool_elsewhere,
        pool_of_node,
    )
}
