"""A batch of copies passes the gate once, if a copy of it is inside a device; one of host memory goes past it."""

import sys
import textwrap
from collections.abc import Callable

import pytest
from hooklab import PROBE, Lab, run

Script = Callable[[str], None]

PROGRAM = """
from probe import *
memory_type = ctypes.c_uint.in_dll(cuda, "fake_memory_type")
HOST, DEVICE, ARRAY = 1, 2, 2      # of an address; of an operand

def numbers(values): return (U64 * len(values))(*values)
def flat(name, count, sizes, *more):
    addresses = numbers(range(count))
    return cuda[name](addresses, addresses, numbers(sizes), U64(count), None, None, U64(0), *more, U64(0x5000))

class Operand(ctypes.Structure):
    _fields_ = [("type", c_uint), ("address", U64), ("layout", U64 * 3)]
class Box(ctypes.Structure):
    _fields_ = [("source", Operand), ("target", Operand), ("sizes", U64 * 3), ("order", c_uint), ("flags", c_uint)]
def box(source, target, *sizes): return Box(Operand(source), Operand(target), (U64 * 3)(*sizes))
def boxes(*made): return cuda.cuMemcpy3DBatchAsync_v2(U64(len(made)), (Box * len(made))(*made), U64(0), U64(0x5000))
"""


@pytest.fixture
def script(lab: Lab) -> Script:
    """Run a script of assertions in a process under the test hook."""

    def execute(body: str) -> None:
        env = lab.env(lab.hook, PYTHONPATH=PROBE)
        done = run([sys.executable, "-c", PROGRAM + textwrap.dedent(body)], env)
        assert done.returncode == 0, done.stderr

    return execute


def test_a_batch_is_one_launch_however_many_copies_it_has(script: Script) -> None:
    script("""
        for count in (1, 31, 32, 33, 10_000):
            log.enters = 0
            assert flat("cuMemcpyBatchAsync_v2", count, [64] * count) == 0
            assert (log.enters, log.stream) == (1, 0x5000), count
            assert seen("cuMemcpyBatchAsync_v2").arguments[3] == count
        assert seen("cuMemcpyBatchAsync_v2").calls == 5
    """)


def test_batches_of_other_sizes_are_other_units(script: Script) -> None:
    script("""
        keys = []
        for sizes in ([64, 64], [128], [1 << 20], [1 << 20, 1 << 20]):
            flat("cuMemcpyBatchAsync", len(sizes), sizes, None)
            keys.append(log.key)
        assert keys[0] == keys[1] and len(set(keys)) == 3
    """)


def test_a_batch_of_host_memory_is_not_gated(script: Script) -> None:
    script("""
        memory_type.value = HOST
        assert flat("cuMemcpyBatchAsync_v2", 100, [64] * 100) == 0
        assert boxes(box(1, 1, 8, 8, 8)) == 0
        assert log.enters == 0 and seen("cuMemcpyBatchAsync_v2").calls == seen("cuMemcpy3DBatchAsync_v2").calls == 1
    """)


def test_one_box_between_arrays_makes_the_batch_a_launch(script: Script) -> None:
    script("""
        memory_type.value = HOST
        assert boxes(box(1, ARRAY, 8, 8, 8), box(ARRAY, ARRAY, 8, 8, 8)) == 0
        assert log.enters == log.leaves == 1
    """)


def test_an_empty_batch_and_one_without_lists_are_the_drivers_affair(script: Script) -> None:
    script("""
        assert cuda.cuMemcpyBatchAsync_v2(None, None, None, U64(3), None, None, U64(0), U64(0x5000)) == 0
        assert cuda.cuMemcpy3DBatchAsync_v2(U64(3), None, U64(0), U64(0x5000)) == 0
        assert cuda.cuFabricCpyBatchAsync(U64(3), None, U64(0), U64(0x5000)) == 0
        assert boxes() == 0 and flat("cuMemcpyBatchAsync_v2", 0, []) == 0
        assert log.enters == 0
        assert cuda.cuMemBatchDecompressAsync(None, U64(3), c_uint(0), None, U64(0x5000)) == 0
        assert log.enters == 1   # it has no other side than the device's
    """)


def test_a_failed_batch_is_told_to_the_gate(script: Script) -> None:
    script("""
        seen("cuMemcpyBatchAsync_v2").result = 1
        assert flat("cuMemcpyBatchAsync_v2", 2, [64, 64]) == 1
        assert (log.enters, log.leaves, log.left_with) == (1, 1, 1)
    """)


def test_each_copy_of_a_batch_of_host_memory_is_counted_in_its_direction(script: Script) -> None:
    script("""
        memory_type.value = HOST
        for count in (1, 31, 32, 33, 10_000):
            log.to_device = log.to_device_bytes = log.to_host = log.to_host_bytes = 0
            assert boxes(*[box(1, ARRAY, 8, 8, size) for size in range(count)]) == 0
            assert boxes(*[box(ARRAY, 1, 8, 8, 2)] * count) == 0
            assert (log.to_device, log.to_device_bytes) == (count, 64 * sum(range(count)))
            assert (log.to_host, log.to_host_bytes) == (count, 128 * count)
        assert log.enters == 0
        seen("cuMemcpy3DBatchAsync_v2").result = 1
        assert boxes(box(1, ARRAY, 8, 8, 8)) == 1
        assert log.to_device == 10_000   # what the driver did not take is not counted
    """)
