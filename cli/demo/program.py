"""A small CUDA program for the demo: launches one kernel over and over, as a training loop does.

It is an ordinary driver-API client. It loads `libcuda.so.1` as any program does, imports nothing of SharePod, and knows
nothing of shares: run by itself, it takes the whole device. On a real GPU its kernel spins until the time that it is
given is over, by the GPU's own clock. The simulated GPU takes this time from the kernel's name.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import signal
import sys
import time

# The simulated GPU reads the duration from the entry's name; a real GPU gets it as the parameter.
PTX = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry busy_{us}us(.param .u64 duration_ns)
{{
  .reg .pred %p;
  .reg .u64 %start, %now, %length;
  ld.param.u64 %length, [duration_ns];
  mov.u64 %start, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %start;
  setp.lt.u64 %p, %now, %length;
  @%p bra again;
  ret;
}}
"""


_EVENT_FLAGS = 3
"""CU_EVENT_BLOCKING_SYNC and CU_EVENT_DISABLE_TIMING: a wait for the event leaves the CPU to others."""


class CudaError(Exception):
    """A driver call failed; the text names the call and the driver's error."""


class Driver:
    """The few driver functions that this program calls."""

    def __init__(self) -> None:
        """Load the driver's library. Raises CudaError."""
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"no CUDA driver: {error}") from None

    def call(self, name: str, *arguments: object) -> None:
        """Call `name`; raise CudaError unless it returns CUDA_SUCCESS."""
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(result, ctypes.byref(text))
            raise CudaError(f"{name}: {text.value.decode() if text.value else result}")


class Loop:
    """A context, a stream, and a kernel that is launched again and again."""

    def __init__(self, device: int, kernel_us: int, depth: int, memory_bytes: int) -> None:
        """Take the CUDA ordinal of the device, and how long the kernel takes. Raises CudaError.

        Up to `depth` launches are under way at a time. `memory_bytes` of device memory are held until the process ends.
        """
        self._driver = driver = Driver()
        driver.call("cuInit", 0)
        handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        driver.call("cuDeviceGet", ctypes.byref(handle), device)
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        driver.call("cuCtxSetCurrent", self._context)
        if memory_bytes:
            driver.call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(memory_bytes))
        module, self._function, self._stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX.format(us=kernel_us).encode()))
        driver.call("cuModuleGetFunction", ctypes.byref(self._function), module, f"busy_{kernel_us}us".encode())
        driver.call("cuStreamCreate", ctypes.byref(self._stream), 1)  # CU_STREAM_NON_BLOCKING
        self._length = ctypes.c_uint64(kernel_us * 1000)
        self._parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self._length))
        self._events = [ctypes.c_void_p() for _ in range(depth)]
        for event in self._events:
            driver.call("cuEventCreate", ctypes.byref(event), _EVENT_FLAGS)
        self.launches = 0

    def step(self) -> None:
        """Launch once, after the end of the launch `depth` steps ago."""
        event = self._events[self.launches % len(self._events)]
        if self.launches >= len(self._events):
            self._driver.call("cuEventSynchronize", event)
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        self._driver.call(
            "cuLaunchKernel", self._function, one, one, one, one, one, one, none, self._stream, self._parameters, None
        )
        self._driver.call("cuEventRecord", event, self._stream)
        self.launches += 1

    def finish(self) -> None:
        """Wait for all launched work."""
        self._driver.call("cuStreamSynchronize", self._stream)


def main() -> int:
    """Run until `--seconds` are over or SIGTERM or SIGINT comes; print how many kernels ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to run")
    parser.add_argument("--kernel-us", type=int, default=500, help="how long one kernel takes")
    parser.add_argument("--depth", type=int, default=8, help="how many launches to run ahead of the device")
    parser.add_argument("--memory", type=int, default=0, help="bytes of device memory to hold")
    parser.add_argument("--device", type=int, default=0, help="CUDA device ordinal")
    options = parser.parse_args()
    stopped = False

    def stop(_signal: int, _frame: object) -> None:
        """Have the loop end after its present step."""
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        loop = Loop(options.device, options.kernel_us, options.depth, options.memory)
        start = time.monotonic()
        while not stopped and time.monotonic() - start < options.seconds:
            loop.step()
        loop.finish()
    except CudaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale may lack the letter µ
    print(f"{loop.launches} kernels of {options.kernel_us} µs in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
