"""Arrays and mipmapped arrays: what they take, and copies to and from them."""

from collections.abc import Callable

import pytest

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

Run = Callable[..., str]


@pytest.mark.parametrize(
    ("shape", "settings", "taken"),
    [
        ("100", "", 100),
        ("100, 7", "texel=0x20, channels=4", 100 * 7 * 16),
        ("100, 7, 3", "texel=0x10, channels=2", 100 * 7 * 3 * 4),
        ("100, 0, 5", "texel=2, flags=1", 100 * 5 * 2),  # a stack of lines
        ("64, 64, 6", "texel=0x0a, flags=4", 64 * 64 * 6 * 4),  # a cubemap
        ("64, 64, 12", "texel=0xc2, channels=4, flags=5", 64 * 64 * 12 * 4),  # two of them
        ("1024, 1024", "flags=0x40", 0),  # sparse
        ("1024, 1024", "flags=0x80", 0),  # mapped later
    ],
)
def test_an_array_takes_its_elements_and_nothing_else(
    make_simgpu: MakeSimgpu, run: Run, shape: str, settings: str, taken: int
) -> None:
    output = run(
        make_simgpu(),
        f"""
        from rig.holdings import *
        start()
        array = new_array({shape}, {settings})
        print(used(), account().contexts_bytes)
        found = Array3D()
        ok(cuda.cuArray3DGetDescriptor_v2(byref(found), array))
        print([n for n in (found.width, found.height, found.depth) if n] == [n for n in [{shape}] if n])
        ok(cuda.cuArrayDestroy(array))
        print(used(), cuda.cuArrayDestroy(array))
        """,
    )
    assert output.splitlines() == [f"{taken} {taken}", "True", "0 400"]


@pytest.mark.parametrize(
    "descriptor",
    [
        "0, 1, 0, 1, 1, 0",  # no width
        "8, 8, 0, 1, 3, 0",  # three channels
        "8, 0, 8, 1, 1, 0",  # depth without height
        "8, 8, 0, 1, 1, 1",  # layers, none of them
        "8, 8, 5, 1, 1, 4",  # a cube with five sides
        "8, 4, 6, 1, 1, 4",  # a cube with sides that are not square
    ],
)
def test_arrays_that_cannot_be_are_refused(make_simgpu: MakeSimgpu, run: Run, descriptor: str) -> None:
    text = f"""
        from rig.holdings import *
        start()
        print(cuda.cuArray3DCreate_v2(byref(c_void_p()), byref(Array3D({descriptor}))), used())
        """
    assert run(make_simgpu(), text) == "1 0\n"


def test_an_array_that_does_not_fit_is_refused_to_the_byte_and_goes_with_its_context(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    output = run(
        make_simgpu(SIMGPU_MEMORY_MIB="1"),
        """
        from rig.holdings import *
        start()
        context, array = c_void_p(), c_void_p()
        ok(cuda.cuCtxCreate_v2(byref(context), 0, 0))
        one = new_array(1024, 1000)
        print(cuda.cuArrayCreate_v2(byref(array), byref(Array(24 * 1024 + 1, 0, 1, 1))), used())
        ok(cuda.cuArrayCreate_v2(byref(array), byref(Array(24 * 1024, 0, 1, 1))))
        print(used())
        ok(cuda.cuCtxDestroy_v2(context))
        found = Array()
        print(used(), cuda.cuArrayGetDescriptor_v2(byref(found), one))
        allocate(MIB)
        print(cuda.cuArrayGetDescriptor_v2(byref(found), one))
        """,
    )
    assert output.splitlines() == [f"2 {1024 * 1000}", str(1 << 20), "0 400", "400"]


def test_a_mipmap_takes_the_sum_of_its_levels(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()

        def mipmap(levels, *descriptor):
            before, whole = used(), c_void_p()
            ok(cuda.cuMipmappedArrayCreate(byref(whole), byref(Array3D(*descriptor)), levels))
            return whole, used() - before

        whole, size = mipmap(3, 8, 6, 0, 0x20, 1, 0)
        level, found, beyond = c_void_p(), Array3D(), c_void_p()
        shapes = []
        for n in range(3):
            ok(cuda.cuMipmappedArrayGetLevel(byref(level), whole, n))
            ok(cuda.cuArray3DGetDescriptor_v2(byref(found), level))
            shapes.append((found.width, found.height))
        print(size, shapes, cuda.cuMipmappedArrayGetLevel(byref(beyond), whole, 3), cuda.cuArrayDestroy(level))
        print(mipmap(99, 8, 0, 0, 1, 1, 0)[1], mipmap(3, 8, 8, 8, 1, 1, 0)[1], mipmap(3, 8, 8, 2, 1, 1, 1)[1],
              mipmap(2, 8, 8, 0, 1, 1, 0x80)[1])
        before = used()
        ok(cuda.cuMipmappedArrayDestroy(whole))
        print(before - used(), cuda.cuArray3DGetDescriptor_v2(byref(found), level))
        """,
    )
    assert output.splitlines() == [
        f"{4 * (48 + 12 + 2)} [(8, 6), (4, 3), (2, 1)] 1 400",
        f"{8 + 4 + 2 + 1} {512 + 64 + 8} {2 * (64 + 16 + 4)} 0",
        "248 400",
    ]


def test_only_arrays_that_are_mapped_later_say_what_they_will_need(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        from rig.holdings import *
        start()
        needs, whole = (c_size_t * 4)(), c_void_p()
        print(cuda.cuArrayGetMemoryRequirements(needs, new_array(1000, 100), 0))
        ok(cuda.cuArrayGetMemoryRequirements(needs, new_array(1000, 100, flags=0x80), 0))
        print(needs[0], needs[1])
        ok(cuda.cuMipmappedArrayCreate(byref(whole), byref(Array3D(1000, 100, 0, 1, 1, 0x80)), 2))
        ok(cuda.cuMipmappedArrayGetMemoryRequirements(needs, whole, 0))
        print(needs[0])
        """,
    )
    assert output.split() == ["1", str(2 * 65536), "65536", str(2 * 65536)]


@pytest.mark.parametrize("own", ["", "_ptds"])
def test_bytes_in_a_row_go_into_an_array_and_out_again(make_simgpu: MakeSimgpu, run: Run, own: str) -> None:
    stream_own = own.replace("ptds", "ptsz")
    output = run(
        make_simgpu(),
        f"""
        from rig.holdings import *
        start()
        data, first, second, near = bytes(range(200)), new_array(100, 2), new_array(100, 2), allocate(200)
        back = ctypes.create_string_buffer(200)
        size = c_size_t(200)
        ok(cuda.cuMemcpyHtoA_v2{own}(first, c_size_t(0), data, size))
        ok(cuda.cuMemcpyAtoA_v2{own}(second, c_size_t(0), first, c_size_t(0), size))
        ok(cuda.cuMemcpyAtoD_v2{own}(c_uint64(near), second, c_size_t(0), size))
        print(get(near, 200) == data)
        put(near, data[::-1])
        ok(cuda.cuMemcpyDtoA_v2{own}(first, c_size_t(50), c_uint64(near), c_size_t(100)))
        ok(cuda.cuMemcpyAtoH_v2{own}(back, first, c_size_t(0), size))
        print(back.raw == data[:50] + data[::-1][:100] + data[150:])
        stream = new_stream()
        ok(cuda.cuMemcpyHtoAAsync_v2{stream_own}(second, c_size_t(10), b"later", c_size_t(5), stream))
        ok(cuda.cuMemcpyAtoHAsync_v2{stream_own}(back, second, c_size_t(8), c_size_t(9), stream))
        ok(cuda.cuStreamSynchronize(stream))
        print(back.raw[:9])
        print(cuda.cuMemcpyAtoH_v2(back, first, c_size_t(100), c_size_t(101)),
              cuda.cuMemcpyHtoA_v2(c_void_p(near), c_size_t(0), data, size))
        """,
    )
    assert output.splitlines() == ["True", "True", r"b'\x08\tlater\x0f\x10'", "1 1"]


def test_rectangles_and_boxes_go_into_arrays_and_out_again(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu("2xH200", SIMGPU_LOG_KERNELS="10"),
        """
        from rig.holdings import *
        start()
        sent, back = (ctypes.c_uint8 * 24)(*range(24)), (ctypes.c_uint8 * 24)()
        here = ctypes.addressof(sent)
        there = ctypes.addressof(back)
        flat, deep, other = new_array(4, 3), new_array(4, 3, 2), new_array(4, 3, 2)
        near, far = End2D(kind=1, host=here, pitch=4), End2D(kind=3, array=flat.value)
        ok(cuda.cuMemcpy2D_v2(byref(Copy2D(near, far, 4, 3))))
        middle = End2D(x=1, y=1, kind=3, array=flat.value)
        ok(cuda.cuMemcpy2DAsync_v2(byref(Copy2D(middle, End2D(x=2, kind=1, host=there, pitch=4), 2, 2)), None))
        ok(cuda.cuCtxSynchronize())
        print(list(back[:8]))
        whole = (c_size_t * 3)(4, 3, 2)
        near, far = (End3D(kind=1, host=at, pitch=4, height=3) for at in (here, there))
        ok(cuda.cuMemcpy3D_v2(byref(Copy3D(near, End3D(kind=3, array=deep.value), whole))))
        part = (c_size_t * 3)(3, 2, 1)
        source = End3D(at=(1, 1, 1, 0), kind=3, array=deep.value)
        for call in ("cuMemcpy3D_v2", "cuMemcpy3DPeer"):
            target = End3D(at=(0, 0, int("Peer" in call), 0), kind=3, array=other.value)
            ok(cuda[call](byref(Copy3D(source, target, part))))
        ok(cuda.cuMemcpy3DAsync_v2(byref(Copy3D(End3D(kind=3, array=other.value), far, whole)), None))
        ok(cuda.cuCtxSynchronize())
        print(list(back[:8]), list(back[12:20]))
        print(cuda.cuMemcpy3D_v2(byref(Copy3D(source, target, whole))),
              cuda.cuMemcpy2D_v2(byref(Copy2D(middle, middle, 4, 1))))
        """,
    )
    part = "[17, 18, 19, 0, 21, 22, 23, 0]"
    assert output.splitlines() == ["[0, 0, 5, 6, 0, 0, 9, 10]", f"{part} {part}", "1 1"]


def test_a_copy_between_arrays_takes_device_time_and_one_to_the_host_does_not(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="10")
    run(
        gpu,
        """
        from rig.holdings import *
        start()
        first, second = new_array(4096, 4096), new_array(4096, 4096)
        ok(cuda.cuMemcpyAtoH_v2(ctypes.create_string_buffer(1 << 24), first, c_size_t(0), c_size_t(1 << 24)))
        ok(cuda.cuMemcpyAtoA_v2(first, c_size_t(0), second, c_size_t(0), c_size_t(1 << 24)))
        ok(cuda.cuCtxSynchronize())
        """,
    )
    with Truth(gpu.state) as truth:
        (copied,) = truth.kernels(0)
    assert (copied.name, copied.busy_ns) == ("memcpy", 1000 + int(2 * (1 << 24) / 4800))  # 4.8 TB/s, read and written
