"""Test arrays and mipmapped arrays: how much memory they take, and copies to and from them."""

import pytest
from simgpu_fixtures import MIB, NewGpu


@pytest.mark.parametrize(
    ("shape", "settings", "taken"),
    [
        ("100", "", 100),
        ("100, 7", "texel=0x20, channels=4", 100 * 7 * 16),
        ("100, 7, 3", "texel=0x10, channels=2", 100 * 7 * 3 * 4),
        ("100, 0, 5", "texel=2, flags=1", 100 * 5 * 2),  # a stack of lines
        ("64, 64, 12", "texel=0xc2, channels=4, flags=5", 64 * 64 * 12 * 4),  # two cubemaps
        ("1024, 1024", "flags=0x40", 0),  # a sparse array
        ("1024, 1024", "flags=0x80", 0),  # an array that is mapped later
    ],
)
def test_an_array_takes_its_elements_and_nothing_else(new_gpu: NewGpu, shape: str, settings: str, taken: int) -> None:
    lines = new_gpu().play(f"""
        start()
        array = new_array({shape}, {settings})
        print(used(), account().contexts_bytes)
        found = Array3D()
        ok(cuda.cuArray3DGetDescriptor_v2(byref(found), array))
        print([n for n in (found.width, found.height, found.depth) if n] == [n for n in [{shape}] if n])
        ok(cuda.cuArrayDestroy(array))
        print(used(), cuda.cuArrayDestroy(array))
        """)
    assert lines == [f"{taken} {taken}", "True", "0 400"]


def test_an_array_goes_with_its_context(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        context, found = c_void_p(), Array()
        ok(cuda.cuCtxCreate_v2(byref(context), 0, 0))
        array = new_array(1024, 1024)
        ok(cuda.cuCtxDestroy_v2(context))
        print(used(), cuda.cuArrayGetDescriptor_v2(byref(found), array))
        """)
    assert lines == ["0 400"]


def test_a_mipmap_takes_the_sum_of_its_levels(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
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
        """)
    assert lines == [
        f"{4 * (48 + 12 + 2)} [(8, 6), (4, 3), (2, 1)] 1 400",
        f"{8 + 4 + 2 + 1} {512 + 64 + 8} {2 * (64 + 16 + 4)} 0",
        "248 400",
    ]


def test_rectangles_and_boxes_go_into_arrays_and_out_again(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
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
        whole = 4, 3, 2
        near, far = (End3D(kind=1, host=at, pitch=4, height=3) for at in (here, there))
        ok(cuda.cuMemcpy3D_v2(byref(Copy3D(near, End3D(kind=3, array=deep.value), *whole))))
        part = 3, 2, 1
        source = End3D(at=(1, 1, 1, 0), kind=3, array=deep.value)
        for call in ("cuMemcpy3D_v2", "cuMemcpy3DPeer"):
            target = End3D(at=(0, 0, int("Peer" in call), 0), kind=3, array=other.value)
            ok(cuda[call](byref(Copy3D(source, target, *part))))
        ok(cuda.cuMemcpy3DAsync_v2(byref(Copy3D(End3D(kind=3, array=other.value), far, *whole)), None))
        ok(cuda.cuCtxSynchronize())
        print(list(back[:8]), list(back[12:20]))
        print(cuda.cuMemcpy3D_v2(byref(Copy3D(source, target, *whole))),
              cuda.cuMemcpy2D_v2(byref(Copy2D(middle, middle, 4, 1))))
        """)
    part = "[17, 18, 19, 0, 21, 22, 23, 0]"
    assert lines == ["[0, 0, 5, 6, 0, 0, 9, 10]", f"{part} {part}", "1 1"]


def test_a_copy_between_arrays_takes_device_time_and_one_to_the_host_does_not(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    gpu.play("""
        start()
        first, second, size = new_array(4096, 4096), new_array(4096, 4096), c_size_t(16 * MIB)
        ok(cuda.cuMemcpyAtoH_v2(ctypes.create_string_buffer(16 * MIB), first, c_size_t(0), size))
        ok(cuda.cuMemcpyAtoA_v2(first, c_size_t(0), second, c_size_t(0), size))
        ok(cuda.cuCtxSynchronize())
        """)
    (copied,) = gpu.kernels()
    assert (copied.name, copied.busy_ns) == ("memcpy", 1000 + int(2 * 16 * MIB / 4800))  # 4.8 TB/s, read and written
