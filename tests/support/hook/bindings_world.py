"""What the calls of cuda-bindings are made with, and what is done after them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.bindings.driver import CUmemorytype, CUstreamCaptureMode

SIZE = 4 << 20
PIECE = 4096
Call = Callable[[], Any]


def check(answer: tuple[Any, ...]) -> Any:
    """Return what a call gave besides its result; raise on an error."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


class World:
    """What the calls are made with."""

    def __init__(self) -> None:
        """Start the driver."""
        check(driver.cuInit(0))
        self.device = check(driver.cuDeviceGet(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.device))
        check(driver.cuCtxSetCurrent(self.context))
        module = check(driver.cuModuleLoadData(b"\x7fELF" + bytes(64)))
        self.kernel = check(driver.cuModuleGetFunction(module, b"unit_20us"))
        check(driver.cuFuncSetBlockShape(self.kernel, 32, 1, 1))
        self.stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.event = check(driver.cuEventCreate(0))
        self.host = np.zeros(PIECE, np.uint8)
        self.a, self.b = check(driver.cuMemAlloc(SIZE)), check(driver.cuMemAlloc(SIZE))
        self.array = check(make_array())
        check(driver.cuStreamBeginCapture(self.stream, CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        check(driver.cuLaunchKernel(*self.launch, self.stream, 0, 0))
        self.graph = check(driver.cuStreamEndCapture(self.stream))
        self.executable = check(driver.cuGraphInstantiate(self.graph, 0))
        self.held: list[Any] = []

    @property
    def launch(self) -> tuple[Any, ...]:
        """The kernel, its grid and its block."""
        return (self.kernel, 1, 1, 1, 32, 1, 1, 0)

    @property
    def config(self) -> driver.CUlaunchConfig:
        """The same as cuLaunchKernelEx wants it."""
        config = driver.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.hStream = 32, self.stream
        return config

    def box(self, kind: type) -> Any:
        """Four rows of device memory, to others."""
        copy = kind()
        copy.srcMemoryType = copy.dstMemoryType = CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.dstDevice = self.b, self.a
        copy.srcPitch = copy.dstPitch = 1024
        copy.WidthInBytes, copy.Height = 512, 4
        if hasattr(copy, "Depth"):
            copy.Depth, copy.srcHeight, copy.dstHeight = 1, 4, 4
        if hasattr(copy, "srcContext"):
            copy.srcContext = copy.dstContext = self.context
        return copy

    def operands(self) -> driver.CUDA_MEMCPY3D_BATCH_OP:
        """Return the same without gaps, as a batch has it."""
        copy = driver.CUDA_MEMCPY3D_BATCH_OP()
        for side, address in ((copy.src, self.b), (copy.dst, self.a)):
            side.type, side.op.ptr.ptr = driver.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER, address
        copy.extent.width, copy.extent.height, copy.extent.depth = 512, 4, 1
        copy.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        return copy

    def hold(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        """Keep memory that was obtained."""
        if len(answer) > 1:
            self.held.append(answer[1])
        return answer

    def back(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        """Make the primary context current again."""
        check(driver.cuCtxSetCurrent(self.context))
        return answer

    def new_context(self) -> Any:
        """Create a context, which becomes the current one."""
        return check(driver.cuCtxCreate(None, 0, self.device))

    def created(self) -> tuple[Any, ...]:
        """Create a context and destroy it."""
        answer = driver.cuCtxCreate(None, 0, self.device)
        check(driver.cuCtxDestroy(answer[1]))
        return self.back(answer)

    def captured(self, *, end: bool) -> tuple[Any, ...]:
        """Capture nothing; return the answer of the end of the capture or of its beginning."""
        begun = driver.cuStreamBeginCapture(self.stream, CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        ended = driver.cuStreamEndCapture(self.stream)
        return ended if end else begun

    def captured_to_graph(self) -> tuple[Any, ...]:
        """Capture nothing into a graph that there is; return the answer of the beginning."""
        mode = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        begun = driver.cuStreamBeginCaptureToGraph(self.stream, self.graph, None, None, 0, mode)
        check(driver.cuStreamEndCapture(self.stream))
        return begun

    def released(self) -> tuple[Any, ...]:
        """Retain the primary context once more and release that."""
        check(driver.cuDevicePrimaryCtxRetain(self.device))
        return driver.cuDevicePrimaryCtxRelease(self.device)

    def retained(self) -> tuple[Any, ...]:
        """Retain the primary context once more, and let go of it again."""
        answer = driver.cuDevicePrimaryCtxRetain(self.device)
        check(driver.cuDevicePrimaryCtxRelease(self.device))
        return answer

    def popped(self) -> tuple[Any, ...]:
        """Push the context and pop it."""
        check(driver.cuCtxPushCurrent(self.context))
        return driver.cuCtxPopCurrent()

    def launched_on_each_device(self) -> tuple[Any, ...]:
        """Launch a cooperative kernel on the one device there is."""
        one = driver.CUDA_LAUNCH_PARAMS()
        one.function, one.hStream = self.kernel, self.stream
        one.gridDimX = one.gridDimY = one.gridDimZ = one.blockDimY = one.blockDimZ = 1
        one.blockDimX = 32
        return driver.cuLaunchCooperativeKernelMultiDevice([one], 1, 0)


def gone(created: tuple[Any, ...], destroy: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Destroy what a call has created, where the driver has it; return the call's answer."""
    if created[0] == driver.CUresult.CUDA_SUCCESS:
        check(destroy(created[1]))
    return created


def after(created: tuple[Any, ...], call: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return a call's answer for what another has created; where the driver has none of it, that one's answer."""
    answer: tuple[Any, ...] = call(created[1]) if created[0] == driver.CUresult.CUDA_SUCCESS else created
    return answer


def make_array() -> tuple[Any, ...]:
    """Create an array of one row."""
    array = driver.CUDA_ARRAY_DESCRIPTOR()
    array.Width, array.Height, array.NumChannels = 16384, 1, 1
    array.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    return driver.cuArrayCreate(array)
