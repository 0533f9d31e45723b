"""Copies 64 MiB to device 0 and back, once by blocking calls and once in a stream, and prints "ready".

It does so again for each line that it reads.
"""

from __future__ import annotations

import ctypes
import os
import sys

BYTES = 64 << 20


def check(result: int) -> None:
    """End with the driver's error code when a call fails."""
    if result:
        sys.exit(f"CUDA error {result}")


def main() -> None:
    """Copy, and compare what came back with the source, until the input ends."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(BYTES)
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), size))
    while True:
        for form, stream in (("_v2", ()), ("Async_v2", (None,))):
            data, back = os.urandom(1 << 20) * (BYTES >> 20), ctypes.create_string_buffer(BYTES)
            check(cuda[f"cuMemcpyHtoD{form}"](address, data, size, *stream))
            check(cuda[f"cuMemcpyDtoH{form}"](back, address, size, *stream))
            check(cuda.cuCtxSynchronize())
            if back.raw != data:
                sys.exit("what came back is something else")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    main()
