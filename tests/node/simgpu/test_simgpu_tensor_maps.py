"""Test the parameters of a tensor map, which a driver checks before a kernel copies by it."""

import pytest
from simgpu_fixtures import NewGpu

PRELUDE = """
start()
room = (ctypes.c_uint8 * 256)()
aligned = ctypes.addressof(room) + -ctypes.addressof(room) % 64
usual = dict(map=aligned, type=7, rank=2, address=from_pool(default_pool(), 1 << 20), widths=(256, 64),
             strides=(1024,), box=(32, 8), steps=(1, 1), interleave=0, swizzle=0, promotion=0, fill=0)
def encode(**other):
    use = usual | other
    numbers = [c_uint64, c_uint64, c_uint32, c_uint32]
    arrays = [(kind * len(use[name]))(*use[name]) for kind, name in zip(numbers, ("widths", "strides", "box", "steps"))]
    rest = [use[name] for name in ("interleave", "swizzle", "promotion", "fill")]
    return cuda.cuTensorMapEncodeTiled(c_uint64(use["map"]), use["type"], use["rank"], c_uint64(use["address"]),
                                       *arrays, *rest)
"""


def test_a_tensor_map_is_made_of_parameters_that_the_hardware_has(new_gpu: NewGpu) -> None:
    lines = new_gpu().play(
        PRELUDE
        + """
print([encode(), encode(swizzle=3), encode(steps=(0, 8), fill=1),
       encode(rank=1, widths=(256,), strides=(), box=(32,), steps=(1,)),
       encode(rank=3, widths=(256, 64, 2), strides=(1024, 65536), box=(8, 8, 1), steps=(1, 1, 1), interleave=2,
              swizzle=1)])
wrong = [dict(map=aligned + 8), dict(type=13), dict(rank=0), dict(rank=6), dict(address=usual["address"] + 8),
         dict(address=0), dict(widths=(0, 64)), dict(widths=(2**32 + 1, 64)), dict(strides=(1032,)),
         dict(strides=(2**40,)), dict(box=(0, 8)), dict(box=(257, 8)), dict(box=(33, 8)), dict(steps=(1, 9)),
         dict(steps=(1, 0)), dict(type=2, fill=1), dict(interleave=3), dict(interleave=1), dict(swizzle=7),
         dict(swizzle=2), dict(promotion=4), dict(fill=2)]
print({encode(**one) for one in wrong})
print(cuda.cuTensorMapReplaceAddress(c_uint64(aligned), c_uint64(usual["address"] + 4096)),
      cuda.cuTensorMapReplaceAddress(c_uint64(aligned), c_uint64(usual["address"] + 8)))
"""
    )
    assert lines == ["[0, 0, 0, 0, 0]", "{1}", "0 1"]


@pytest.mark.parametrize(("model", "result"), [("H200", 0), ("A100", 801)])
def test_only_hopper_and_later_have_tensor_maps(new_gpu: NewGpu, model: str, result: int) -> None:
    assert new_gpu(f"1x{model}").play(PRELUDE + "print(encode())") == [str(result)]
