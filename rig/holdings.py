"""Every kind of device memory through ctypes. Programs under test begin with `from rig.holdings import *`.

This is no test module, and none imports it: it loads the libcuda.so.1 that the program's environment names.
"""

import ctypes
import os
import socket
import time
from collections.abc import Sequence
from ctypes import byref, c_size_t, c_uint64, c_void_p
from pathlib import Path

from rig.driver import cuda, ok
from rig.structs import (
    Access,
    Array,
    Array3D,
    Copy2D,
    Copy3D,
    End2D,
    End3D,
    External,
    IpcHandle,
    Location,
    PoolProps,
    Prop,
)
from sharepod.simgpu.truth import ProcessTruth, Truth

MIB = 1 << 20
PINNED, DEVICE, READ_WRITE = 1, 1, 3
THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8  # attributes of a pool


def used() -> int:
    """Return how much of the current device is in use, as the driver reports it."""
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return total.value - free.value


def account(pid: int | None = None) -> ProcessTruth:
    """Return what a process (default: this one) truly has of device 0. All processes' sum has to be the device's."""
    with Truth(os.environ["SIMGPU_STATE"]) as truth:
        processes = truth.processes(0)
        assert sum(p.memory_bytes for p in processes) == truth.devices()[0].memory_used_bytes
    wanted = os.getpid() if pid is None else pid
    return next((p for p in processes if p.pid == wanted), ProcessTruth(wanted, 0, 0, 0, 0))


def make_pool(handle_types: int = 0) -> c_void_p:
    """Create a pool on device 0."""
    pool = c_void_p()
    ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(PINNED, handle_types, Location(DEVICE, 0)))))
    return pool


def default_pool() -> c_void_p:
    """Return the default pool of device 0."""
    pool = c_void_p()
    ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
    return pool


def attribute(pool: c_void_p, which: int) -> int:
    """Return a 64-bit attribute of a pool."""
    value = c_uint64()
    ok(cuda.cuMemPoolGetAttribute(pool, which, byref(value)))
    return value.value


def set_attribute(pool: c_void_p, which: int, value: int) -> int:
    """Set a 64-bit attribute of a pool; returns the driver's result."""
    return int(cuda.cuMemPoolSetAttribute(pool, which, byref(c_uint64(value))))


def from_pool(pool: c_void_p, size: int, stream: c_void_p | None = None) -> int:
    """Allocate from a pool."""
    address = c_uint64()
    ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(size), pool, stream))
    return address.value


def free_in(address: int, stream: c_void_p | None = None) -> None:
    """Free in a stream."""
    ok(cuda.cuMemFreeAsync(c_uint64(address), stream))


def physical(size: int, handle_types: int = 0) -> c_uint64:
    """Create physical memory of device 0."""
    handle = c_uint64()
    prop = Prop(PINNED, handle_types, Location(DEVICE, 0))
    ok(cuda.cuMemCreate(byref(handle), c_size_t(size), byref(prop), c_uint64(0)))
    return handle


def reserve(size: int) -> int:
    """Reserve addresses."""
    address = c_uint64()
    ok(cuda.cuMemAddressReserve(byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)))
    return address.value


def map_at(address: int, size: int, handle: c_uint64) -> None:
    """Map physical memory and let device 0 use it."""
    ok(cuda.cuMemMap(c_uint64(address), c_size_t(size), c_size_t(0), handle, c_uint64(0)))
    access = Access(Location(DEVICE, 0), READ_WRITE)
    ok(cuda.cuMemSetAccess(c_uint64(address), c_size_t(size), byref(access), c_size_t(1)))


def unmap(address: int, size: int) -> int:
    """Unmap; returns the driver's result."""
    return int(cuda.cuMemUnmap(c_uint64(address), c_size_t(size)))


def put(address: int, data: bytes) -> None:
    """Copy bytes to the device."""
    ok(cuda.cuMemcpyHtoD_v2(c_uint64(address), data, c_size_t(len(data))))


def get(address: int, size: int) -> bytes:
    """Copy bytes from the device."""
    buffer = ctypes.create_string_buffer(size)
    ok(cuda.cuMemcpyDtoH_v2(buffer, c_uint64(address), c_size_t(size)))
    return buffer.raw


def new_array(*shape: int, texel: int = 1, channels: int = 1, flags: int = 0) -> c_void_p:
    """Create an array. `shape`: width, height, depth; the last two may be left out. `texel`: its CUarray_format."""
    array = c_void_p()
    sizes = (*shape, 0, 0)[:3]
    ok(cuda.cuArray3DCreate_v2(byref(array), byref(Array3D(*sizes, texel, channels, flags))))
    return array


def serve(path: str) -> socket.socket:
    """Listen at `path`, and return the connection of the other process, which calls `visit`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".new")
        listener.listen()
        Path(path + ".new").rename(path)  # `visit` waits for this name: now a connection is accepted
        return listener.accept()[0]


def visit(path: str) -> socket.socket:
    """Return a connection to the other process, which calls `serve`."""
    while not Path(path).exists():
        time.sleep(0.01)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    return peer


def give(peer: socket.socket, data: bytes = b".", fds: Sequence[int] = ()) -> None:
    """Send bytes, and descriptors with them."""
    socket.send_fds(peer, [data], list(fds))


def receive(peer: socket.socket) -> tuple[bytes, int]:
    """Receive bytes and one descriptor (-1: none). The other process's death is an error."""
    data, fds, _, _ = socket.recv_fds(peer, 4096, 1)
    assert data, "the other process is gone"
    return data, fds[0] if fds else -1


__all__ = [
    "DEVICE", "MIB", "RESERVED", "RESERVED_HIGH", "THRESHOLD", "USED", "USED_HIGH", "Access", "Array", "Array3D",
    "Copy2D", "Copy3D", "End2D", "End3D", "External", "IpcHandle", "Location", "Prop", "account", "attribute",
    "default_pool", "free_in", "from_pool", "get", "give", "make_pool", "map_at", "new_array", "os", "physical", "put",
    "receive", "reserve", "serve", "set_attribute", "unmap", "used", "visit",
]  # fmt: skip
