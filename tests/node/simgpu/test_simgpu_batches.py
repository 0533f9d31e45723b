"""Copies with attributes and batches of copies: what they move, what they cost, what they refuse."""

from collections.abc import Callable

import pytest

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

Run = Callable[..., str]

CALLS = """
    from rig.holdings import *

    class Attributes(ctypes.Structure):
        _fields_ = [("order", c_int), ("hints", c_int * 4), ("flags", c_uint)]
    class Operand(ctypes.Structure):
        _fields_ = [("type", c_uint), ("where", c_uint64), ("rest", c_uint64 * 3)]
    class Box(ctypes.Structure):
        _fields_ = [("src", Operand), ("dst", Operand), ("size", c_uint64 * 3), ("order", c_int), ("flags", c_uint)]

    POINTER, ARRAY, STREAM_ORDER, DURING_CALL = 1, 2, 1, 2
    def numbers(values): return (c_uint64 * len(values))(*values)
    def pointer(address, row=0, layer=0): return Operand(POINTER, address, numbers([row, layer, 0]))
    def array_at(array, x=0, y=0, z=0): return Operand(ARRAY, array.value, numbers([x, y, z]))
    def box(src, dst, *size, order=STREAM_ORDER): return Box(src, dst, numbers(size), order, 0)

    def flat(copies, orders=(STREAM_ORDER,), firsts=(0,), stream=None, name="cuMemcpyBatchAsync", fail=None):
        targets, sources, sizes = (numbers(column) for column in zip(*copies))
        attributes = (Attributes * len(orders))(*(Attributes(order) for order in orders))
        more = [byref(fail)] if fail is not None else []
        return cuda[name](targets, sources, sizes, c_size_t(len(copies)), attributes, numbers(firsts),
                          c_size_t(len(orders)), *more, stream)
    def boxes(*copies, stream=None): return cuda.cuMemcpy3DBatchAsync_v2(
        c_size_t(len(copies)), (Box * len(copies))(*copies), c_uint64(0), stream)

    def fill(address, text): ok(cuda.cuMemcpyHtoD_v2(c_uint64(address), text, c_size_t(len(text))))
    def read(address, size):
        ok(cuda.cuCtxSynchronize())
        room = ctypes.create_string_buffer(size)
        ok(cuda.cuMemcpyDtoH_v2(room, c_uint64(address), c_size_t(size)))
        return room.raw

    start()
    stream, a, b = new_stream(), allocate(4096), allocate(4096)
    fill(b, bytes(range(64)))
    host = ctypes.create_string_buffer(b"from the host..." * 4096, 65536 + 16)
    """


def test_a_batch_moves_what_it_says_and_each_copy_costs_as_much_as_alone(make_simgpu: MakeSimgpu, run: Run) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="100")
    output = run(
        gpu,
        f"""{CALLS}
    fail = c_size_t(7)
    ok(flat([(a, b, 8), (a + 8, b + 16, 4)], stream=stream, fail=fail))
    ok(flat([(a + 12, b + 32, 4)], stream=c_void_p(2), name="cuMemcpyBatchAsync_v2"))
    ok(flat([(a + 16, b + 40, 4)], stream=None, name="cuMemcpyBatchAsync_v2_ptsz"))
    print(list(read(a, 20)), fail.value == c_size_t(-1).value)
    far = [(a, ctypes.addressof(host), 16), (ctypes.addressof(host) + 65536, a, 16)]
    ok(flat(far, (DURING_CALL, STREAM_ORDER), (0, 1), stream=stream, name="cuMemcpyBatchAsync_v2"))
    print(read(a, 16), host.raw[65536:])
    one = Attributes(STREAM_ORDER)
    ok(cuda.cuMemcpyWithAttributesAsync(c_uint64(a), c_uint64(b), c_size_t(5), byref(one), stream))
    ok(cuda.cuMemcpyWithAttributesAsync_ptsz(c_uint64(a + 5), c_uint64(b), c_size_t(3), byref(one), None))
    print(list(read(a, 8)))
    """,
    )
    assert output.splitlines() == [
        str([*range(8), *range(16, 20), *range(32, 36), *range(40, 44)]) + " True",
        "b'from the host...' b'from the host...'",
        str([0, 1, 2, 3, 4, 0, 1, 2]),
    ]
    with Truth(gpu.state) as truth:
        work = truth.kernels(0)
    assert [kernel.name for kernel in work] == ["memcpy"] * 6  # those of host memory are none of the device's
    assert all(kernel.busy_ns >= 1000 for kernel in work)


def test_boxes_go_between_pointers_and_arrays_with_sizes_in_elements(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        f"""{CALLS}
    array = new_array(4, 4, texel=0x20)  # rows of 16 bytes
    ok(boxes(box(pointer(b), array_at(array), 4, 4, 1), stream=stream))
    some = box(array_at(array, 1, 2), pointer(a), 2, 2, 1)
    ok(boxes(some, box(pointer(b, 8), pointer(a + 64), 2, 3, 1), stream=stream))
    print(list(read(a, 16)), list(read(a + 64, 6)))
    whole = box(array_at(array), pointer(a), 4, 4, 1)
    ok(cuda.cuMemcpy3DWithAttributesAsync(byref(whole), c_uint64(0), stream))
    ok(cuda.cuMemcpy3DBatchAsync_v2_ptsz(c_size_t(1), byref(box(pointer(b), pointer(a), 2, 1, 1)), c_uint64(0), None))
    print(read(a, 64) == bytes(range(64)))
    other = new_array(4, 4, texel=0x10)
    print(boxes(box(array_at(array), array_at(other), 1, 1, 1), stream=stream),
          boxes(box(array_at(array, 3), pointer(a), 2, 1, 1), stream=stream),
          boxes(box(Operand(3, a), pointer(a), 1, 1, 1), stream=stream))
    """,
    )
    rows = [*range(36, 44), *range(52, 60)]  # of the third and fourth, the second and third element
    assert output.splitlines() == [f"{rows} {[0, 1, 8, 9, 16, 17]}", "True", "1 1 1"]


@pytest.mark.parametrize(
    ("call", "failed"),
    [
        ("flat([(a, b, 8)], stream=None, fail=fail)", -1),  # the legacy stream
        ("flat([(a, b, 8)], orders=(0,), stream=stream, fail=fail)", 0),
        ("flat([(a, b, 8), (a, b, 8)], orders=(1, 4), firsts=(0, 1), stream=stream, fail=fail)", 1),
        ("flat([(a, b, 8)] * 3, orders=(1,), firsts=(1,), stream=stream, fail=fail)", -1),
        ("flat([(a, b, 8)] * 3, orders=(1, 1), firsts=(0, 0), stream=stream, fail=fail)", -1),
        ("flat([(a, b, 8)] * 3, orders=(1, 1), firsts=(0, 3), stream=stream, fail=fail)", -1),
        ("flat([(a, b, 8)], orders=(1, 1), firsts=(0, 1), stream=stream, fail=fail)", -1),
        ("flat([(a, b, 8), (0, b, 8)], stream=stream, fail=fail)", 1),
    ],
)
def test_a_batch_that_cannot_be_is_refused_with_the_copy_that_is_at_fault(
    make_simgpu: MakeSimgpu, run: Run, call: str, failed: int
) -> None:
    text = f"{CALLS}\n    fail = c_size_t(99); print({call}, ctypes.c_ssize_t(fail.value).value)"
    assert run(make_simgpu(), text) == f"1 {failed}\n"


def test_a_capture_takes_no_batch_and_is_lost_and_a_copy_with_attributes_is_a_node(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    output = run(
        make_simgpu(),
        f"""{CALLS}
    graph, count, one = c_void_p(), c_size_t(), Attributes(STREAM_ORDER)
    for call in (lambda: flat([(a, b, 8)], stream=stream, fail=c_size_t()),
                 lambda: boxes(box(pointer(b), pointer(a), 8, 1, 1), stream=stream),
                 lambda: cuda.cuMemcpyWithAttributesAsync(c_uint64(a), c_uint64(b), c_size_t(8), byref(one), stream)):
        ok(cuda.cuStreamBeginCapture_v2(stream, RELAXED))
        print(call(), cuda.cuStreamEndCapture(stream, byref(graph)))
    ok(cuda.cuGraphGetNodes(graph, None, byref(count)))
    print(count.value)
    """,
    )
    assert output.splitlines() == ["900 901", "900 901", "0 0", "1"]


def test_a_context_that_its_maker_detaches_is_gone(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(SIMGPU_CONTEXT_MIB="100"),
        """
        from rig.holdings import *
        ok(cuda.cuInit(0))
        first, second = c_void_p(), c_void_p()
        ok(cuda.cuCtxCreate_v2(byref(first), 0, 0))
        ok(cuda.cuCtxCreate_v2(byref(second), 0, 0))
        print(used() >> 20, cuda.cuCtxDetach(first), cuda.cuCtxDetach(second), used() >> 20)
        print(cuda.cuCtxDetach(first), cuda.cuCtxDetach(first), cuda.cuCtxSynchronize())
        """,
    )
    assert output.splitlines() == ["200 201 0 100", "0 201 201"]
