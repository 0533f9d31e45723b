"""Test copies and memory sets, one by one and in batches: what they move, what they cost, what they refuse."""

from simgpu_fixtures import NewGpu

BATCHES = """
from rig.structs import BatchAttributes, BatchBox, BatchEnd

STREAM_ORDER, DURING_CALL = 1, 2
def numbers(values): return (c_uint64 * len(values))(*values)
def flat(copies, orders=(STREAM_ORDER,), firsts=(0,), stream=None, name="cuMemcpyBatchAsync", fail=None):
    targets, sources, sizes = (numbers(column) for column in zip(*copies))
    attributes = (BatchAttributes * len(orders))(*(BatchAttributes(order) for order in orders))
    more = [byref(fail)] if fail is not None else []
    return cuda[name](targets, sources, sizes, c_size_t(len(copies)), attributes, numbers(firsts),
                      c_size_t(len(orders)), *more, stream)
def read(address, size):
    ok(cuda.cuCtxSynchronize())
    return get(address, size)

start()
stream, a, b, fail, one = new_stream(), allocate(4096), allocate(4096), c_size_t(99), BatchAttributes(STREAM_ORDER)
put(b, bytes(range(64)))
"""


def test_a_copy_that_waits_for_room_fails_when_its_context_is_destroyed(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        import threading, time
        module = start()
        first, context, word = c_void_p(), c_void_p(), allocate(4)
        ok(cuda.cuCtxGetCurrent(byref(first)))
        ok(cuda.cuCtxCreate_v2(byref(context), 0, 0))
        stream, target, results = new_stream(), allocate(4096), []
        ok(cuda.cuStreamWaitValue32(stream, c_uint64(word), 1, 0))
        ok(cuda.cuCtxSetCurrent(first))

        def copy():
            ok(cuda.cuCtxSetCurrent(context))
            while not results or not results[-1]:
                results.append(cuda.cuMemcpyHtoDAsync_v2(c_uint64(target), b"x" * 4096, c_size_t(4096), stream))

        thread = threading.Thread(target=copy)
        thread.start()
        while True:
            before = len(results)
            time.sleep(0.2)
            if before == len(results) > 1000:
                break  # the stream is full: the copy waits
        ok(cuda.cuCtxDestroy_v2(context))
        thread.join()
        print(results[-1])
        """)
    assert lines == ["709"]


def test_copies_and_sets_move_the_bytes(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        a, b, size, source = allocate(MIB), allocate(MIB), c_size_t(MIB), bytes(range(256)) * 4096
        put(a, source)
        ok(cuda.cuMemcpyDtoD_v2(c_uint64(b), c_uint64(a), size))
        print(get(b, MIB) == source)
        ok(cuda.cuMemsetD8_v2(c_uint64(b), 3, c_size_t(100)))
        ok(cuda.cuMemsetD2D32_v2(c_uint64(b + 512), c_size_t(512), 0x01020304, c_size_t(2), c_size_t(3)))
        print(get(b, 101) == bytes([3]) * 100 + source[100:101])
        print([get(b + 512 * n, 9) == bytes([4, 3, 2, 1, 4, 3, 2, 1, 8]) for n in (1, 2, 3, 4)])
        ok(cuda.cuMemsetD8_v2(c_uint64(b), 0, size))
        print(set(get(b, MIB)))
        """)
    assert lines == ["True", "True", "[True, True, True, False]", "{0}"]


def test_a_pageable_source_may_change_as_soon_as_the_call_is_back(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        module, stream = start(), new_stream()
        address, source = allocate(64), ctypes.create_string_buffer(b"before")
        ok(launch(kernel(module, "ahead_5ms"), stream))
        ok(cuda.cuMemcpyHtoDAsync_v2(c_uint64(address), source, c_size_t(6), stream))
        source.value = b"after"
        ok(cuda.cuStreamSynchronize(stream))
        print(get(address, 6))
        """)
    assert lines == ["b'before'"]


def test_rectangles_of_pitched_memory_and_copies_between_devices_move_the_right_bytes(new_gpu: NewGpu) -> None:
    lines = new_gpu("2xH200").play("""
        contexts = [c_void_p(), c_void_p()]
        start(0)
        ok(cuda.cuCtxGetCurrent(byref(contexts[0])))
        sent, back = (ctypes.c_uint8 * 12)(*range(12)), (ctypes.c_uint8 * 12)()
        address, pitch = c_uint64(), c_size_t()
        ok(cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), c_size_t(4), c_size_t(3), 4))
        on_device = End2D(kind=2, device=address.value, pitch=pitch.value)
        ok(cuda.cuMemcpy2D_v2(byref(Copy2D(End2D(kind=1, host=ctypes.addressof(sent), pitch=4), on_device, 4, 3))))
        # Two columns of two rows, from the middle of the device's memory to the end of the host's.
        middle = End2D(x=1, y=1, kind=2, device=address.value, pitch=pitch.value)
        target = End2D(x=2, y=1, kind=1, host=ctypes.addressof(back), pitch=4)
        ok(cuda.cuMemcpy2DAsync_v2(byref(Copy2D(middle, target, 2, 2)), None))
        ok(cuda.cuCtxSynchronize())
        print(pitch.value >= 4, list(back))
        near = allocate(4)
        put(near, b"near")
        start(1)
        ok(cuda.cuCtxGetCurrent(byref(contexts[1])))
        far = allocate(4)
        ok(cuda.cuMemcpyPeer(c_uint64(far), contexts[1], c_uint64(near), contexts[0], c_size_t(4)))
        print(get(far, 4))
        """)
    assert lines == ["True [0, 0, 0, 0, 0, 0, 5, 6, 0, 0, 9, 10]", "b'near'"]


def test_a_batch_moves_what_it_says_and_each_copy_costs_as_much_as_alone(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    lines = gpu.play(f"""{BATCHES}
host = ctypes.create_string_buffer(b"from the host..." * 4096, 65536 + 16)
ok(flat([(a, b, 8), (a + 8, b + 16, 4)], stream=stream, fail=fail))
ok(flat([(a + 12, b + 32, 4)], stream=c_void_p(2), name="cuMemcpyBatchAsync_v2"))
ok(flat([(a + 16, b + 40, 4)], stream=None, name="cuMemcpyBatchAsync_v2_ptsz"))
print(list(read(a, 20)), fail.value == c_size_t(-1).value)
far = [(a, ctypes.addressof(host), 16), (ctypes.addressof(host) + 65536, a, 16)]
ok(flat(far, (DURING_CALL, STREAM_ORDER), (0, 1), stream=stream, name="cuMemcpyBatchAsync_v2"))
print(read(a, 16), host.raw[65536:])
ok(cuda.cuMemcpyWithAttributesAsync(c_uint64(a), c_uint64(b), c_size_t(5), byref(one), stream))
ok(cuda.cuMemcpyWithAttributesAsync_ptsz(c_uint64(a + 5), c_uint64(b), c_size_t(3), byref(one), None))
print(list(read(a, 8)))
""")
    assert lines == [
        str([*range(8), *range(16, 20), *range(32, 36), *range(40, 44)]) + " True",
        "b'from the host...' b'from the host...'",
        str([0, 1, 2, 3, 4, 0, 1, 2]),
    ]
    work = gpu.kernels()
    assert [kernel.name for kernel in work] == ["memcpy"] * 6  # copies inside host memory are no work of the device
    assert all(kernel.busy_ns >= 1000 for kernel in work)


def test_a_capture_takes_no_batch_and_is_lost_and_a_copy_with_attributes_is_a_node(new_gpu: NewGpu) -> None:
    lines = new_gpu().play(f"""{BATCHES}
graph, count = c_void_p(), c_size_t()
box = BatchBox(BatchEnd(1, b), BatchEnd(1, a), numbers([8, 1, 1]), STREAM_ORDER, 0)
for call in (lambda: flat([(a, b, 8)], stream=stream, fail=fail),
             lambda: cuda.cuMemcpy3DBatchAsync_v2(c_size_t(1), byref(box), c_uint64(0), stream),
             lambda: cuda.cuMemcpyWithAttributesAsync(c_uint64(a), c_uint64(b), c_size_t(8), byref(one), stream)):
    ok(cuda.cuStreamBeginCapture_v2(stream, RELAXED))
    print(call(), cuda.cuStreamEndCapture(stream, byref(graph)))
ok(cuda.cuGraphGetNodes(graph, None, byref(count)))
print(count.value)
""")
    assert lines == ["900 901", "900 901", "0 0", "1"]
