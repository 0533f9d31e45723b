"""Every function of cuda-bindings that the hook wraps and the simulated driver has, called once with valid arguments.

It knows nothing of SharePod or of the simulator. It prints what each call answered as one JSON object, waits for a line
while it holds memory by each kind of allocation, and prints the sizes of the device that it was told before that.
"""

import json
import os
import sys
from typing import Any

from bindings_graphs import changes, graphs
from bindings_world import PIECE, SIZE, Call, World, after, check, gone, make_array
from cuda.bindings import driver


def deep() -> driver.CUDA_ARRAY3D_DESCRIPTOR:
    """Describe the same as a box."""
    array = driver.CUDA_ARRAY3D_DESCRIPTOR()
    array.Width, array.Height, array.NumChannels = 16384, 1, 1
    array.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    return array


def attributes() -> driver.CUmemcpyAttributes:
    """Say that a copy reads its source in the order of its stream."""
    copy = driver.CUmemcpyAttributes()
    copy.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    return copy


FILE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def make_pool(*, shared: bool = False) -> tuple[Any, ...]:
    """Create a pool on the device."""
    pool = driver.CUmemPoolProps()
    if shared:
        pool.handleTypes = FILE
    pool.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    pool.location.type, pool.location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    return driver.cuMemPoolCreate(pool)


def imported_pool() -> tuple[Any, ...]:
    """Import a pool as another process would, and destroy it."""
    own = check(make_pool(shared=True))
    descriptor = check(driver.cuMemPoolExportToShareableHandle(own, FILE, 0))
    answer = gone(driver.cuMemPoolImportFromShareableHandle(descriptor, FILE, 0), driver.cuMemPoolDestroy)
    os.close(descriptor)
    check(driver.cuMemPoolDestroy(own))
    return answer


def import_external() -> tuple[Any, ...]:
    """Import memory as another interface hands it over; the descriptor is the driver's then."""
    memory = driver.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    memory.type = driver.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    memory.size, memory.handle.fd = SIZE, os.memfd_create("external")
    os.ftruncate(memory.handle.fd, SIZE)
    return driver.cuImportExternalMemory(memory)


def make_physical() -> tuple[Any, ...]:
    """Create memory without an address on the device."""
    memory = driver.CUmemAllocationProp()
    memory.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    memory.location.type, memory.location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    return driver.cuMemCreate(SIZE, memory, 0)


def mapped(call: str) -> tuple[Any, ...]:
    """Give such memory an address, take another reference to it, and take all away; return the answer of one call."""
    physical, place = check(make_physical()), check(driver.cuMemAddressReserve(SIZE, 0, 0, 0))
    answers = {"map": driver.cuMemMap(place, SIZE, 0, physical, 0)}
    answers["retain"] = gone(driver.cuMemRetainAllocationHandle(int(place)), driver.cuMemRelease)
    answers["unmap"] = driver.cuMemUnmap(place, SIZE)
    check(driver.cuMemAddressFree(place, SIZE))
    check(driver.cuMemRelease(physical))
    return answers[call]


def other_memory(world: World) -> dict[str, Call]:
    """Return the kinds of memory that are not linear."""
    pool = driver.cuDeviceGetDefaultMemPool(world.device)
    attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    return {
        "cuArrayCreate": lambda: gone(make_array(), driver.cuArrayDestroy),
        "cuArray3DCreate": lambda: gone(driver.cuArray3DCreate(deep()), driver.cuArrayDestroy),
        "cuArrayDestroy": lambda: after(make_array(), driver.cuArrayDestroy),
        "cuMipmappedArrayCreate": lambda: gone(
            driver.cuMipmappedArrayCreate(deep(), 2), driver.cuMipmappedArrayDestroy
        ),
        "cuMipmappedArrayDestroy": lambda: after(
            driver.cuMipmappedArrayCreate(deep(), 2), driver.cuMipmappedArrayDestroy
        ),
        "cuMemCreate": lambda: gone(make_physical(), driver.cuMemRelease),
        "cuMemRelease": lambda: after(make_physical(), driver.cuMemRelease),
        "cuMemMap": lambda: mapped("map"),
        "cuMemUnmap": lambda: mapped("unmap"),
        "cuMemRetainAllocationHandle": lambda: mapped("retain"),
        "cuImportExternalMemory": lambda: gone(import_external(), driver.cuDestroyExternalMemory),
        "cuDestroyExternalMemory": lambda: after(import_external(), driver.cuDestroyExternalMemory),
        "cuMemPoolImportFromShareableHandle": imported_pool,
        "cuMemPoolCreate": lambda: gone(make_pool(), driver.cuMemPoolDestroy),
        "cuMemPoolDestroy": lambda: after(make_pool(), driver.cuMemPoolDestroy),
        "cuMemPoolTrimTo": lambda: after(pool, lambda own: driver.cuMemPoolTrimTo(own, 0)),
        "cuMemPoolSetAttribute": lambda: after(
            pool, lambda own: driver.cuMemPoolSetAttribute(own, attribute, driver.cuuint64_t(0))
        ),
        "cuMemAllocFromPoolAsync": lambda: after(
            pool, lambda own: world.hold(driver.cuMemAllocFromPoolAsync(SIZE, own, world.stream))
        ),
    }


def sets(world: World) -> dict[str, Call]:
    """Return the memsets."""
    calls: dict[str, Call] = {}
    for width, value in ((8, 0x12), (16, 0x1234), (32, 0x12345678)):
        flat, flat_async = getattr(driver, f"cuMemsetD{width}"), getattr(driver, f"cuMemsetD{width}Async")
        deep, deep_async = getattr(driver, f"cuMemsetD2D{width}"), getattr(driver, f"cuMemsetD2D{width}Async")
        rows = (world.a, 4096, value, 512, 4)
        calls[flat.__name__] = lambda f=flat, v=value: f(world.a, v, 1024)
        calls[flat_async.__name__] = lambda f=flat_async, v=value: f(world.a, v, 1024, world.stream)
        calls[deep.__name__] = lambda f=deep, r=rows: f(*r)
        calls[deep_async.__name__] = lambda f=deep_async, r=rows: f(*r, world.stream)
    return calls


def launches(world: World) -> dict[str, Call]:
    """Return the launches of kernels and graphs."""
    return {
        "cuLaunchKernel": lambda: driver.cuLaunchKernel(*world.launch, world.stream, 0, 0),
        "cuLaunchKernelEx": lambda: driver.cuLaunchKernelEx(world.config, world.kernel, 0, 0),
        "cuLaunchCooperativeKernel": lambda: driver.cuLaunchCooperativeKernel(*world.launch, world.stream, 0),
        "cuLaunchCooperativeKernelMultiDevice": world.launched_on_each_device,
        "cuGraphLaunch": lambda: driver.cuGraphLaunch(world.executable, world.stream),
        "cuLaunch": lambda: driver.cuLaunch(world.kernel),
        "cuLaunchGrid": lambda: driver.cuLaunchGrid(world.kernel, 1, 1),
        "cuLaunchGridAsync": lambda: driver.cuLaunchGridAsync(world.kernel, 1, 1, world.stream),
    }


def copies(world: World) -> dict[str, Call]:
    """Return the copies: those of host memory are the last ones."""
    host = world.host.ctypes.data
    flat = (world.a, world.b, PIECE)
    peer = (world.a, world.context, world.b, world.context, PIECE)
    area, volume, between = driver.CUDA_MEMCPY2D, driver.CUDA_MEMCPY3D, driver.CUDA_MEMCPY3D_PEER
    return {
        "cuMemcpyDtoD": lambda: driver.cuMemcpyDtoD(*flat),
        "cuMemcpyDtoDAsync": lambda: driver.cuMemcpyDtoDAsync(*flat, world.stream),
        "cuMemcpy": lambda: driver.cuMemcpy(*flat),
        "cuMemcpyAsync": lambda: driver.cuMemcpyAsync(*flat, world.stream),
        "cuMemcpyPeer": lambda: driver.cuMemcpyPeer(*peer),
        "cuMemcpyPeerAsync": lambda: driver.cuMemcpyPeerAsync(*peer, world.stream),
        "cuMemcpy2D": lambda: driver.cuMemcpy2D(world.box(area)),
        "cuMemcpy2DUnaligned": lambda: driver.cuMemcpy2DUnaligned(world.box(area)),
        "cuMemcpy2DAsync": lambda: driver.cuMemcpy2DAsync(world.box(area), world.stream),
        "cuMemcpy3D": lambda: driver.cuMemcpy3D(world.box(volume)),
        "cuMemcpy3DAsync": lambda: driver.cuMemcpy3DAsync(world.box(volume), world.stream),
        "cuMemcpy3DPeer": lambda: driver.cuMemcpy3DPeer(world.box(between)),
        "cuMemcpy3DPeerAsync": lambda: driver.cuMemcpy3DPeerAsync(world.box(between), world.stream),
        "cuMemcpyBatchAsync": lambda: driver.cuMemcpyBatchAsync(
            [world.a], [world.b], [PIECE], 1, [attributes()], [0], 1, world.stream
        ),
        "cuMemcpy3DBatchAsync": lambda: driver.cuMemcpy3DBatchAsync(1, [world.operands()], 0, world.stream),
        "cuMemcpyWithAttributesAsync": lambda: driver.cuMemcpyWithAttributesAsync(*flat, attributes(), world.stream),
        "cuMemcpy3DWithAttributesAsync": lambda: driver.cuMemcpy3DWithAttributesAsync(
            world.operands(), 0, world.stream
        ),
        "cuMemcpyAtoA": lambda: driver.cuMemcpyAtoA(world.array, 0, world.array, PIECE, PIECE),
        "cuMemcpyDtoA": lambda: driver.cuMemcpyDtoA(world.array, 0, world.b, PIECE),
        "cuMemcpyAtoD": lambda: driver.cuMemcpyAtoD(world.a, world.array, 0, PIECE),
        "cuMemcpyHtoD": lambda: driver.cuMemcpyHtoD(world.a, host, PIECE),
        "cuMemcpyDtoH": lambda: driver.cuMemcpyDtoH(host, world.b, PIECE),
        "cuMemcpyHtoDAsync": lambda: driver.cuMemcpyHtoDAsync(world.a, host, PIECE, world.stream),
        "cuMemcpyDtoHAsync": lambda: driver.cuMemcpyDtoHAsync(host, world.b, PIECE, world.stream),
        "cuMemcpyHtoA": lambda: driver.cuMemcpyHtoA(world.array, 0, host, PIECE),
        "cuMemcpyAtoH": lambda: driver.cuMemcpyAtoH(host, world.array, 0, PIECE),
        "cuMemcpyHtoAAsync": lambda: driver.cuMemcpyHtoAAsync(world.array, 0, host, PIECE, world.stream),
        "cuMemcpyAtoHAsync": lambda: driver.cuMemcpyAtoHAsync(host, world.array, 0, PIECE, world.stream),
    }


def memory(world: World) -> dict[str, Call]:
    """Return the ways to memory and out of it."""
    return {
        "cuMemAlloc": lambda: world.hold(driver.cuMemAlloc(SIZE)),
        "cuMemAllocPitch": lambda: world.hold(driver.cuMemAllocPitch(65536, SIZE // 65536, 4)),
        "cuMemAllocManaged": lambda: world.hold(driver.cuMemAllocManaged(SIZE, 1)),
        "cuMemAllocAsync": lambda: world.hold(driver.cuMemAllocAsync(SIZE, world.stream)),
        "cuMemFree": lambda: driver.cuMemFree(check(driver.cuMemAlloc(SIZE))),
        "cuMemFreeAsync": lambda: driver.cuMemFreeAsync(
            check(driver.cuMemAllocAsync(SIZE, world.stream)), world.stream
        ),
        "cuMemGetInfo": driver.cuMemGetInfo,
        "cuDeviceTotalMem": lambda: driver.cuDeviceTotalMem(world.device),
        "cuDeviceGet": lambda: driver.cuDeviceGet(0),
    }


def lifecycle(world: World) -> dict[str, Call]:
    """Return what the hook only hears of."""
    return {
        "cuGetProcAddress": lambda: driver.cuGetProcAddress(b"cuInit", 12000, 0),
        "cuInit": lambda: driver.cuInit(0),
        "cuCtxSynchronize": driver.cuCtxSynchronize,
        "cuStreamSynchronize": lambda: driver.cuStreamSynchronize(world.stream),
        "cuEventSynchronize": lambda: driver.cuEventSynchronize(world.event),
        "cuCtxCreate": world.created,
        "cuCtxSetCurrent": lambda: driver.cuCtxSetCurrent(world.context),
        "cuCtxPushCurrent": lambda: driver.cuCtxPushCurrent(world.context),
        "cuCtxPopCurrent": world.popped,
        "cuCtxDestroy": lambda: world.back(driver.cuCtxDestroy(world.new_context())),
        "cuCtxDetach": lambda: world.back(driver.cuCtxDetach(world.new_context())),
        "cuDevicePrimaryCtxRetain": world.retained,
        "cuDevicePrimaryCtxRelease": world.released,
        "cuStreamBeginCapture": lambda: world.captured(end=False),
        "cuStreamEndCapture": lambda: world.captured(end=True),
        "cuStreamBeginCaptureToGraph": world.captured_to_graph,
        "cuStreamDestroy": lambda: driver.cuStreamDestroy(check(driver.cuStreamCreate(1))),
    }


def main() -> None:
    """Call everything, hold, let go, and reset the device at the very end."""
    world = World()
    calls = launches(world) | graphs(world) | changes(world) | copies(world) | sets(world)
    calls |= memory(world) | other_memory(world) | lifecycle(world)
    results = {name: int(call()[0]) for name, call in calls.items()}
    check(driver.cuCtxSynchronize())
    shown = [check(driver.cuMemGetInfo())[1], check(driver.cuDeviceTotalMem(world.device))]
    print(json.dumps({"results": results, "shown": shown}), flush=True)
    sys.stdin.readline()
    for address in [*world.held, world.a, world.b]:
        check(driver.cuMemFree(address))
    check(driver.cuArrayDestroy(world.array))
    print("freed", flush=True)
    sys.stdin.readline()
    print(int(driver.cuDevicePrimaryCtxReset(world.device)[0]))


if __name__ == "__main__":
    main()
