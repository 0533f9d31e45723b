"""A program that uses a device for as long as it is told: DEVICE BUSY_US IDLE_US BYTES, until its input closes.

It prints `ready` once its first kernel has run.
"""

import ctypes
import select
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    """Call the driver; any error ends the program."""
    result = getattr(cuda, name)(*arguments)
    if result:
        raise SystemExit(f"{name}: {result}")


def main() -> None:
    """Alternate between kernels and idleness."""
    ordinal, busy_us, idle_us, size = (int(argument) for argument in sys.argv[1:5])
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), ordinal)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
    name = f"work_{busy_us}us".encode()
    call("cuModuleLoadData", ctypes.byref(module), b".version 6.0\n.visible .entry " + name + b"()\n{ ret; }\n")
    call("cuModuleGetFunction", ctypes.byref(kernel), module, name)
    first = True
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(1 if idle_us else 4):
            call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        call("cuCtxSynchronize")
        if first:
            print("ready", flush=True)
            first = False
        time.sleep(idle_us / 1e6)
    call("cuCtxDestroy_v2", context)


if __name__ == "__main__":
    main()
