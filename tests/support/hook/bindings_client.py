"""A program on cuda-bindings alone: device, context, module, launches, events, copies that move real bytes.

It knows nothing of SharePod or of the simulator. It prints what it saw as one JSON object.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

COUNT = 1 << 16
LAUNCHES = 20
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry scale_500us(.param .u64 data, .param .f32 factor, .param .u32 count)
{
  ret;
}
\0"""


def check(answer: tuple[Any, ...]) -> Any:
    """Return what a call gave besides its result; raise on an error."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


def copies(stream: Any) -> bool:
    """Send numbers to the device, around it and back by every common way; tell whether they came back."""
    sent = np.arange(COUNT, dtype=np.float32)
    middle, back = np.empty_like(sent), np.empty_like(sent)
    first, second = check(driver.cuMemAlloc(sent.nbytes)), check(driver.cuMemAlloc(sent.nbytes))
    check(driver.cuMemcpyHtoD(first, sent.ctypes.data, sent.nbytes))
    check(driver.cuMemcpyDtoDAsync(second, first, sent.nbytes, stream))
    check(driver.cuMemcpyDtoHAsync(middle.ctypes.data, second, sent.nbytes, stream))
    check(driver.cuStreamSynchronize(stream))
    check(driver.cuMemsetD32(first, 7, COUNT // 2))
    check(driver.cuMemcpyDtoH(back.ctypes.data, first, sent.nbytes))
    for pointer in (first, second):
        check(driver.cuMemFree(pointer))
    words = back.view(np.uint32)
    halves = bool((words[: COUNT // 2] == 7).all()) and bool((back[COUNT // 2 :] == sent[COUNT // 2 :]).all())
    return bool((middle == sent).all()) and halves


def launches(stream: Any) -> float:
    """Launch a kernel that takes 500 us a number of times; return the milliseconds between the events around it."""
    module = check(driver.cuModuleLoadData(PTX))
    kernel = check(driver.cuModuleGetFunction(module, b"scale_500us"))
    data = check(driver.cuMemAlloc(COUNT * 4))
    begin, end = check(driver.cuEventCreate(0)), check(driver.cuEventCreate(0))
    values = np.array([int(data)], np.uint64), np.array([2.0], np.float32), np.array([COUNT], np.uint32)
    pointers = np.array([value.ctypes.data for value in values], np.uint64)
    check(driver.cuEventRecord(begin, stream))
    for _ in range(LAUNCHES):
        check(driver.cuLaunchKernel(kernel, COUNT // 256, 1, 1, 256, 1, 1, 0, stream, pointers.ctypes.data, 0))
    check(driver.cuEventRecord(end, stream))
    check(driver.cuEventSynchronize(end))
    elapsed_ms = float(check(driver.cuEventElapsedTime(begin, end)))
    for event in (begin, end):
        check(driver.cuEventDestroy(event))
    check(driver.cuMemFree(data))
    check(driver.cuModuleUnload(module))
    return elapsed_ms


def libraries() -> list[str]:
    """Return which of the libraries that matter here are mapped into this process."""
    mapped = {line.split("/")[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(mapped & {"libcuda.so.1", "libsharepod.so"})


def main() -> None:
    """Run the flow once."""
    check(driver.cuInit(0))
    count = check(driver.cuDeviceGetCount())
    device = check(driver.cuDeviceGet(0))
    name = check(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    free_before, total = check(driver.cuMemGetInfo())
    stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    seen = {
        "libraries": libraries(),
        "devices": count,
        "name": name,
        "total": total,
        "copied": copies(stream),
        "elapsed_ms": launches(stream),
        "leaked": free_before - check(driver.cuMemGetInfo())[0],
        "missing_symbol": repr(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(PTX)), b"nowhere")[0]),
        "too_much": repr(driver.cuMemAlloc(total * 2)[0]),
    }
    check(driver.cuStreamDestroy(stream))
    check(driver.cuDevicePrimaryCtxRelease(device))
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
