"""The driver API through ctypes. Programs under test begin with `from rig.driver import *`.

This is no test module, and none imports it: it loads the libcuda.so.1 that the program's environment names.
"""

import ctypes
import time
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  # modes of a capture
HOST_PORTABLE_MAPPED = 3
NO_PTX = b"\x7fELF" + bytes(64)
"""An image in which the simulated driver finds a kernel of any name."""


def ok(result: int) -> None:
    """Fail if the driver returned an error."""
    assert result == 0, f"CUDA error {result}"


def start(device: int = 0) -> c_void_p:
    """Initialise, make the device's primary context current, and load a module with every kernel."""
    context, module = c_void_p(), c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))
    ok(cuda.cuModuleLoadData(byref(module), NO_PTX))
    return module


def kernel(module: c_void_p, name: str) -> c_void_p:
    """Return a kernel of the module by its name."""
    function = c_void_p()
    ok(cuda.cuModuleGetFunction(byref(function), module, name.encode()))
    return function


def launch(function: c_void_p, stream: c_void_p | None = None, grid: int = 1, word: int | None = None) -> int:
    """Launch a kernel of `grid` blocks; `word` is its one parameter. Returns the driver's result."""
    parameters = None
    if word is not None:
        value = c_uint64(word)
        parameters = (c_void_p * 1)(ctypes.cast(byref(value), c_void_p))
    return int(cuda.cuLaunchKernel(function, grid, 1, 1, 32, 1, 1, 0, stream, parameters, None))


def new_stream(flags: int = 1) -> c_void_p:
    """Create a stream, by default a non-blocking one."""
    stream = c_void_p()
    ok(cuda.cuStreamCreate(byref(stream), flags))
    return stream


def new_event(flags: int = 0) -> c_void_p:
    """Create an event, by default with timing."""
    event = c_void_p()
    ok(cuda.cuEventCreate(byref(event), flags))
    return event


def hold(stream: c_void_p | None = None) -> Callable[[], None]:
    """Make a stream wait until the returned function is called, so that later work is queued before it can begin."""
    memory = c_void_p()
    ok(cuda.cuMemHostAlloc(byref(memory), c_size_t(4), HOST_PORTABLE_MAPPED))
    word = ctypes.cast(memory, ctypes.POINTER(c_uint32))
    word[0] = 0
    ok(cuda.cuStreamWaitValue32(stream, memory, 1, 0))

    def release() -> None:
        word[0] = 1

    return release


def elapsed_us(first: c_void_p, last: c_void_p) -> float:
    """Return the time between two events."""
    milliseconds = c_float()
    ok(cuda.cuEventElapsedTime(byref(milliseconds), first, last))
    return milliseconds.value * 1000


def allocate(size: int) -> int:
    """Allocate device memory."""
    address = c_uint64()
    ok(cuda.cuMemAlloc_v2(byref(address), c_size_t(size)))
    return address.value


__all__ = [
    "GLOBAL", "HOST_FUNCTION", "RELAXED", "THREAD_LOCAL", "allocate", "byref", "c_char_p", "c_float", "c_int",
    "c_size_t", "c_uint", "c_uint32", "c_uint64", "c_void_p", "ctypes", "cuda", "elapsed_us", "hold", "kernel",
    "launch", "new_event", "new_stream", "ok", "start", "time",
]  # fmt: skip
