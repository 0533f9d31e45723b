"""Calls that clients make more rarely: every way to launch, explicit graphs, libraries, callbacks, wide copies."""

from collections.abc import Callable

import pytest

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

Run = Callable[..., str]


def test_every_way_to_launch_takes_the_kernels_time(make_simgpu: MakeSimgpu, run: Run) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="100")
    run(
        gpu,
        """
        class Config(ctypes.Structure):
            _fields_ = [("sizes", c_uint * 7), ("stream", c_void_p), ("attributes", c_void_p), ("count", c_uint)]
        class One(ctypes.Structure):
            _fields_ = [("function", c_void_p), ("sizes", c_uint * 7), ("stream", c_void_p), ("parameters", c_void_p)]
        module = start()
        stream = new_stream()
        sizes = (c_uint * 7)(1, 1, 1, 32, 1, 1, 0)
        for own in ("", "_ptsz"):
            ok(cuda["cuLaunchKernel" + own](kernel(module, "plain_10us"), *sizes, stream, None, None))
            ok(cuda["cuLaunchKernelEx" + own](byref(Config(sizes, stream)), kernel(module, "ex_20us"), None, None))
            ok(cuda["cuLaunchCooperativeKernel" + own](kernel(module, "together_30us"), *sizes, stream, None))
        several = (One * 1)(One(kernel(module, "several_40us"), sizes, stream, None))
        ok(cuda.cuLaunchCooperativeKernelMultiDevice(several, 1, 0))
        old = kernel(module, "old_50us")
        ok(cuda.cuFuncSetBlockShape(old, 32, 1, 1))
        ok(cuda.cuParamSetSize(old, 0))
        ok(cuda.cuLaunch(old))
        ok(cuda.cuLaunchGrid(old, 2, 2))
        ok(cuda.cuLaunchGridAsync(old, 2, 2, stream))
        ok(cuda.cuCtxSynchronize())
        """,
    )
    with Truth(gpu.state) as truth:
        ran = sorted((kernel.name, kernel.busy_ns) for kernel in truth.kernels(0))
    twice = {"plain_10us": 10_000, "ex_20us": 20_000, "together_30us": 30_000}
    assert ran == sorted([*twice.items(), *twice.items(), ("several_40us", 40_000), *[("old_50us", 50_000)] * 3])


def test_an_explicit_graph_does_its_nodes_in_order_and_can_be_cloned_and_updated(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="100")
    output = run(
        gpu,
        """
        class Kernel(ctypes.Structure):
            _fields_ = [("function", c_void_p), ("sizes", c_uint * 7), ("parameters", c_void_p), ("extra", c_void_p),
                        ("kernel", c_void_p), ("context", c_void_p)]
        class Memset(ctypes.Structure):
            _fields_ = [("target", c_uint64), ("pitch", c_size_t), ("value", c_uint), ("element", c_uint),
                        ("width", c_size_t), ("height", c_size_t)]
        class Memcpy(ctypes.Structure):
            _fields_ = [("at", c_size_t * 4), ("kind", c_uint), ("host", c_void_p), ("device", c_uint64),
                        ("array", c_void_p), ("reserved", c_void_p), ("pitch", c_size_t), ("height", c_size_t)]
        class Copy(ctypes.Structure):
            _fields_ = [("source", Memcpy), ("target", Memcpy), ("extent", c_size_t * 3)]
        class Host(ctypes.Structure):
            _fields_ = [("call", HOST_FUNCTION), ("data", c_void_p)]
        module, context = start(), c_void_p()
        ok(cuda.cuCtxGetCurrent(byref(context)))
        words, seen = (c_uint32 * 4)(), []
        address = allocate(16)

        def build(duration):
            graph, first, second, third, last, rest = (c_void_p() for _ in range(6))
            ok(cuda.cuGraphCreate(byref(graph), 0))
            sizes = (c_uint * 7)(1, 1, 1, 32, 1, 1, 0)
            ok(cuda.cuGraphAddKernelNode_v2(
                byref(first), graph, None, c_size_t(0), byref(Kernel(kernel(module, "node_" + duration), sizes))))
            ok(cuda.cuGraphAddMemsetNode(
                byref(second), graph, byref(first), c_size_t(1), byref(Memset(address, 16, 7, 4, 4, 1)), context))
            source = Memcpy(kind=2, device=address, pitch=16, height=1)
            target = Memcpy(kind=1, host=ctypes.addressof(words), pitch=16, height=1)
            ok(cuda.cuGraphAddMemcpyNode(
                byref(third), graph, byref(second), c_size_t(1),
                byref(Copy(source, target, (c_size_t * 3)(16, 1, 1))), context))
            ok(cuda.cuGraphAddEmptyNode(byref(rest), graph, None, c_size_t(0)))
            ok(cuda.cuGraphAddHostNode(byref(last), graph, byref(third), c_size_t(1), byref(Host(call, None))))
            ok(cuda.cuGraphAddDependencies(graph, byref(rest), byref(last), c_size_t(1)))
            return graph

        call = HOST_FUNCTION(lambda _: seen.append(list(words)))
        graph, clone, executable, count = build("100us"), c_void_p(), c_void_p(), c_size_t()
        ok(cuda.cuGraphGetNodes(graph, None, byref(count)))
        ok(cuda.cuGraphClone(byref(clone), graph))
        ok(cuda.cuGraphDestroy(graph))
        ok(cuda.cuGraphInstantiateWithFlags(byref(executable), clone, c_uint64(0)))
        stream = new_stream()
        ok(cuda.cuGraphLaunch(executable, stream))
        ok(cuda.cuStreamSynchronize(stream))
        info = (c_uint64 * 3)()
        ok(cuda.cuGraphExecUpdate_v2(executable, build("900us"), info))
        ok(cuda.cuGraphLaunch(executable, stream))
        ok(cuda.cuStreamSynchronize(stream))
        other = c_void_p()
        ok(cuda.cuGraphCreate(byref(other), 0))
        print(count.value, seen, cuda.cuGraphExecUpdate_v2(executable, other, info), info[0] & 0xffffffff)
        """,
    )
    assert output == "5 [[7, 7, 7, 7], [7, 7, 7, 7]] 910 2\n"
    with Truth(gpu.state) as truth:
        first, second = (kernel.busy_ns for kernel in truth.kernels(0))
    assert 100_000 < first < 110_000  # and a microsecond or two for the memset and the copy
    assert second - first == 800_000


def test_a_library_is_a_module_that_every_context_may_use(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu("2xH200", SIMGPU_LOG_KERNELS="10"),
        """
        library, wanted, unknown, function, name = (c_void_p() for _ in range(5))
        start(0)
        ptx = b".version 7.0\\n.target sm_70\\n.visible .entry work_200us() { ret; }\\n\\0"
        ok(cuda.cuLibraryLoadData(byref(library), ptx, None, None, 0, None, None, 0))
        ok(cuda.cuLibraryGetKernel(byref(wanted), library, b"work_200us"))
        missing = cuda.cuLibraryGetKernel(byref(unknown), library, b"nowhere")
        for device in (0, 1):
            start(device)
            ok(cuda.cuKernelGetFunction(byref(function), wanted))
            ok(launch(function))
            ok(cuda.cuCtxSynchronize())
        text = c_char_p()
        ok(cuda.cuKernelGetName(byref(text), wanted))
        ok(cuda.cuLibraryUnload(library))
        print(missing, text.value.decode())
        """,
    )
    assert output == "500 work_200us\n"


def test_a_callback_comes_after_the_work_before_it_with_its_result(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)
        f, stream, seen = kernel(start(), "k_2ms"), new_stream(), []
        callback = CALLBACK(lambda where, result, data: seen.append((where == stream.value, result, data)))
        ok(launch(f, stream))
        ok(cuda.cuStreamAddCallback(stream, callback, c_void_p(77), 0))
        early = list(seen)
        ok(cuda.cuStreamSynchronize(stream))
        print(early, seen)
        """,
    )
    assert output == "[] [(True, 0, 77)]\n"


@pytest.mark.parametrize("own", ["", "_ptsz"])
def test_a_stream_writes_64_bits_in_one_go(make_simgpu: MakeSimgpu, run: Run, own: str) -> None:
    output = run(
        make_simgpu(),
        f"""
        f, stream, host = kernel(start(), "k_2ms"), new_stream(), c_void_p()
        ok(cuda.cuMemHostAlloc(byref(host), c_size_t(16), 0))
        words = ctypes.cast(host, ctypes.POINTER(c_uint64))
        words[0] = words[1] = 5
        ok(launch(f, stream))
        ok(cuda.cuStreamWriteValue64_v2{own}(stream, c_uint64(host.value), c_uint64(0x123456789abcdef0), 0))
        early = words[0]
        ok(cuda.cuStreamSynchronize(stream))
        print(early, hex(words[0]), words[1])
        """,
    )
    assert output == "5 0x123456789abcdef0 5\n"


def test_pitched_memory_and_copies_of_rectangles_boxes_and_between_devices_move_the_right_bytes(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    output = run(
        make_simgpu("2xH200"),
        """
        class Flat(ctypes.Structure):
            _fields_ = [("x", c_size_t), ("y", c_size_t), ("kind", c_uint), ("host", c_void_p), ("device", c_uint64),
                        ("array", c_void_p), ("pitch", c_size_t)]
        class Copy2D(ctypes.Structure):
            _fields_ = [("source", Flat), ("target", Flat), ("width", c_size_t), ("height", c_size_t)]
        contexts = [c_void_p(), c_void_p()]
        start(0)
        ok(cuda.cuCtxGetCurrent(byref(contexts[0])))
        sent, back = (ctypes.c_uint8 * 12)(*range(12)), (ctypes.c_uint8 * 12)()
        address, pitch = c_uint64(), c_size_t()
        ok(cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), c_size_t(4), c_size_t(3), 4))
        on_device = Flat(kind=2, device=address.value, pitch=pitch.value)
        ok(cuda.cuMemcpy2D_v2(byref(Copy2D(Flat(kind=1, host=ctypes.addressof(sent), pitch=4), on_device, 4, 3))))
        # Two columns of two rows, from the middle of the device's memory to the end of the host's.
        middle = Flat(x=1, y=1, kind=2, device=address.value, pitch=pitch.value)
        target = Flat(x=2, y=1, kind=1, host=ctypes.addressof(back), pitch=4)
        ok(cuda.cuMemcpy2DAsync_v2(byref(Copy2D(middle, target, 2, 2)), None))
        ok(cuda.cuCtxSynchronize())
        print(pitch.value >= 4, list(back))
        near = allocate(12)
        ok(cuda.cuMemcpyHtoD_v2(c_uint64(near), sent, c_size_t(12)))
        start(1)
        ok(cuda.cuCtxGetCurrent(byref(contexts[1])))
        far = allocate(12)
        ok(cuda.cuMemcpyPeer(c_uint64(far), contexts[1], c_uint64(near), contexts[0], c_size_t(12)))
        ok(cuda.cuMemcpyDtoH_v2(back, c_uint64(far), c_size_t(12)))
        print(list(back) == list(sent))
        """,
    )
    assert output == "True [0, 0, 0, 0, 0, 0, 5, 6, 0, 0, 9, 10]\nTrue\n"
