"""An ordinary driver-API program: it works on device 0 until it is ended, and prints "ready" after its first work."""

from __future__ import annotations

import ctypes
import os
import select
import sys

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k_500us()\n{\n ret;\n}\n\0"


def check(result: int) -> None:
    """End with the driver's error code when a call fails."""
    if result:
        sys.exit(f"CUDA error {result}")


def main() -> None:
    """Launch 500 µs kernels, eight at a time, for ever.

    Argument `idle`: only hold the context after the first eight, until the input ends. Argument `exec`: become `sleep`
    once there is input, with a kernel in flight.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k_500us"))
    ready = False
    while True:
        for _ in range(8):
            check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
        check(cuda.cuCtxSynchronize())
        if not ready:
            ready = True
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            if "idle" in sys.argv:
                sys.stdin.read()
        if "exec" in sys.argv and select.select([sys.stdin], [], [], 0)[0]:
            check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
            os.execvp("sleep", ["sleep", "60"])


if __name__ == "__main__":
    main()
