"""A program on numba-cuda: device arrays, streams, events, and a kernel launched as its dispatcher launches one.

numba's own compiler needs parts of the CUDA toolkit, so the kernel is PTX; everything below the compiler is numba-cuda
and the libraries it stands on. It prints what it saw as one JSON object.
"""

import json
import sys
from pathlib import Path

import numpy as np
from cuda.core import Device, LaunchConfig, ObjectCode, launch
from numba import cuda

COUNT = 1 << 16
LAUNCHES = 20
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry axpy_300us(.param .u64 x, .param .u64 y, .param .u32 count)
{
  ret;
}
"""


def libraries() -> list[str]:
    """Return which of the libraries that matter here are mapped into this process."""
    mapped = {line.split("/")[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(mapped & {"libcuda.so.1", "libsharepod.so"})


def arrays() -> bool:
    """Send arrays to the device and back, whole and in part, pageable and pinned; tell whether they came back."""
    sent = np.arange(COUNT, dtype=np.float64).reshape(256, -1)
    stream = cuda.stream()
    whole = cuda.to_device(sent)
    row = whole[3].copy_to_host()
    pinned = cuda.pinned_array(COUNT, dtype=np.int32)
    pinned[:] = np.arange(COUNT)
    target = cuda.device_array(COUNT, dtype=np.int32, stream=stream)
    target.copy_to_device(pinned, stream=stream)
    back = target.copy_to_host(stream=stream)
    stream.synchronize()
    other = cuda.device_array_like(sent)
    other.copy_to_device(whole)
    same = (whole.copy_to_host() == sent).all() and (other.copy_to_host() == sent).all()
    return bool(same and (row == sent[3]).all() and (back == pinned).all())


def launches() -> float:
    """Launch a kernel that takes 300 us a number of times; return the milliseconds between the events around it."""
    code = ObjectCode.from_ptx(PTX)
    cuda.current_context().create_module_image(code)
    kernel = code.get_kernel("axpy_300us")
    device = Device()
    device.set_current()
    x, y = cuda.to_device(np.ones(COUNT)), cuda.to_device(np.zeros(COUNT))
    stream = device.create_stream()
    theirs = cuda.external_stream(int(stream.handle))
    begin, end = cuda.event(), cuda.event()
    begin.record(theirs)
    for _ in range(LAUNCHES):
        pointers = [array.device_ctypes_pointer.value for array in (x, y)]
        launch(stream, LaunchConfig(grid=COUNT // 256, block=256), kernel, *pointers, np.uint32(COUNT))
    end.record(theirs)
    end.synchronize()
    return float(cuda.event_elapsed_time(begin, end))


def main() -> None:
    """Run all steps once."""
    context = cuda.current_context()
    seen = {
        "libraries": libraries(),
        "devices": len(cuda.gpus),
        "name": str(context.device.name if isinstance(context.device.name, str) else context.device.name.decode()),
        "capability": list(context.device.compute_capability),
        "total": context.get_memory_info().total,
        "copied": arrays(),
        "elapsed_ms": launches(),
    }
    cuda.synchronize()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
