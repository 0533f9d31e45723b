"""A program on cuda-bindings alone that takes every kind of device memory in turn and looks at what is left.

It knows nothing of SharePod or of the simulator. It prints what each kind took and whether its bytes moved, as one JSON
object.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from bindings_client import check, libraries
from cuda.bindings import driver

MIB = 1 << 20
FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
SENT = np.arange(4096, dtype=np.uint8)


def used() -> int:
    """Return what is taken of the device."""
    free, total = check(driver.cuMemGetInfo())
    return int(total - free)


def moves(pointer: Any) -> bool:
    """Send bytes there and back."""
    back = np.empty_like(SENT)
    check(driver.cuMemcpyHtoD(pointer, SENT.ctypes.data, SENT.nbytes))
    check(driver.cuMemcpyDtoH(back.ctypes.data, pointer, SENT.nbytes))
    return bool((back == SENT).all())


def pool(before: int) -> tuple[int, bool]:
    """Allocate from a pool of this program's own."""
    props = driver.CUmemPoolProps()
    props.allocType, props.location.type, props.location.id, props.maxSize = PINNED, DEVICE, 0, 100 * MIB
    own = check(driver.cuMemPoolCreate(props))
    pointer = check(driver.cuMemAllocFromPoolAsync(3 * MIB, own, 0))
    moved, taken = moves(pointer), used() - before
    reserved = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    moved &= int(check(driver.cuMemPoolGetAttribute(own, reserved))) == taken
    check(driver.cuMemFreeAsync(pointer, 0))
    check(driver.cuCtxSynchronize())
    check(driver.cuMemPoolDestroy(own))
    return taken, moved


def physical(before: int) -> tuple[int, bool]:
    """Map physical memory, through a descriptor as well."""
    prop = driver.CUmemAllocationProp()
    prop.type, prop.requestedHandleTypes, prop.location.type, prop.location.id = PINNED, FD, DEVICE, 0
    size = int(check(driver.cuMemGetAllocationGranularity(prop, driver.CUmemAllocationGranularity_flags(0))))
    address, handle = check(driver.cuMemAddressReserve(2 * size, 0, 0, 0)), check(driver.cuMemCreate(size, prop, 0))
    fd = int(check(driver.cuMemExportToShareableHandle(handle, FD, 0)))
    same = check(driver.cuMemImportFromShareableHandle(fd, FD))
    os.close(fd)
    access = driver.CUmemAccessDesc()
    access.location.type, access.location.id = DEVICE, 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    for at, which in ((int(address), handle), (int(address) + size, same)):
        check(driver.cuMemMap(at, size, 0, which, 0))
        check(driver.cuMemRelease(which))
    check(driver.cuMemSetAccess(address, 2 * size, [access], 1))
    back, moved, taken = np.empty_like(SENT), moves(address), used() - before
    check(driver.cuMemcpyDtoH(back.ctypes.data, int(address) + size, SENT.nbytes))
    check(driver.cuMemUnmap(address, 2 * size))
    check(driver.cuMemAddressFree(address, 2 * size))
    return taken, moved and bool((back == SENT).all())


def array(before: int) -> tuple[int, bool]:
    """Copy a box into an array and out of it."""
    shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width, shape.Height, shape.Depth, shape.NumChannels = 16, 16, 4, 4
    shape.Format = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    made, back = check(driver.cuArray3DCreate(shape)), np.empty_like(SENT)
    taken = used() - before
    host, inside = driver.CUmemorytype.CU_MEMORYTYPE_HOST, driver.CUmemorytype.CU_MEMORYTYPE_ARRAY
    there, again = driver.CUDA_MEMCPY3D(), driver.CUDA_MEMCPY3D()
    for copy in (there, again):
        copy.WidthInBytes, copy.Height, copy.Depth = 64, 16, 4
    there.srcMemoryType, there.srcHost, there.srcPitch, there.srcHeight = host, SENT.ctypes.data, 64, 16
    there.dstMemoryType, there.dstArray = inside, made
    again.srcMemoryType, again.srcArray = inside, made
    again.dstMemoryType, again.dstHost, again.dstPitch, again.dstHeight = host, back.ctypes.data, 64, 16
    check(driver.cuMemcpy3D(there))
    check(driver.cuMemcpy3D(again))
    check(driver.cuArrayDestroy(made))
    return taken, bool((back == SENT).all())


def external(before: int) -> tuple[int, bool]:
    """Import memory that is somebody else's file."""
    fd = os.memfd_create("other")
    os.truncate(fd, 2 * MIB)
    handle, buffer = driver.CUDA_EXTERNAL_MEMORY_HANDLE_DESC(), driver.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    handle.type = driver.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    handle.handle.fd, handle.size = os.dup(fd), 2 * MIB
    buffer.offset, buffer.size = MIB, MIB
    memory = check(driver.cuImportExternalMemory(handle))
    pointer = check(driver.cuExternalMemoryGetMappedBuffer(memory, buffer))
    moved, taken = moves(pointer), used() - before
    moved &= os.pread(fd, SENT.nbytes, MIB) == SENT.tobytes()
    check(driver.cuMemFree(pointer))
    check(driver.cuDestroyExternalMemory(memory))
    return taken, moved


def main() -> None:
    """Take each kind once."""
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))
    before = used()
    kinds: list[Callable[[int], tuple[int, bool]]] = [pool, physical, array, external]
    seen = {kind.__name__: kind(before) for kind in kinds}
    json.dump({"libraries": libraries(), "leaked": used() - before, **seen}, sys.stdout)


if __name__ == "__main__":
    main()
