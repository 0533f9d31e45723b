"""Test the memory of pools and of graphs, which allocate from a pool: exactly what a pool holds is charged."""

import subprocess
from pathlib import Path

import pytest
from memory_script import PROGRAM, Run

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.script import script


def test_a_graph_that_the_driver_does_not_launch_leaves_its_account_as_it_was(capped: Run) -> None:
    account = capped(
        """
from rig.graphs import *
graph = new_graph()
add("cuGraphAddMemAllocNode", graph, byref(allocation(30 << 30)))
executable, before = instantiate(graph), memory()
for _ in range(3):
    assert cuda.cuGraphLaunch(executable, None) == 2 and memory() == before  # the device has 24 GiB
""",
        1 << 40,
        "1xA10",
    )
    assert account.usage[0].memory_refusals == 0


def test_what_the_driver_refuses_of_a_pool_leaves_its_account_as_it_was(capped: Run) -> None:
    capped(
        """
import struct
pool, address, reserved = c_void_p(), c_uint64(), c_uint64()
ok(cuda.cuMemPoolCreate(byref(pool), struct.pack("<4i2Q", 1, 0, 1, 0, 0, 64 << 20) + bytes(56)))  # of 64 MiB at most
for _ in range(3):
    assert cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(300 << 20), pool, None) == 2
    assert memory() == (400 << 20, 400 << 20)
for _ in range(2):
    ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(0), pool, None))
    assert (address.value, memory()) == (0, (400 << 20, 400 << 20))
ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(1 << 20), pool, None))
assert take(390 << 20)[0] == 2  # the pool has grown by more than it was asked for
ok(cuda.cuMemPoolGetAttribute(pool, 5, byref(reserved)))
assert reserved.value > 10 << 20
assert memory()[0] == (400 << 20) - reserved.value
ok(cuda.cuMemFreeAsync(address, None))
ok(cuda.cuCtxSynchronize())
ok(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
assert memory() == (400 << 20, 400 << 20)
""",
        400 << 20,
    )


def test_memory_of_a_pool_is_charged_where_it_lies(capped: Run) -> None:
    capped(
        """
stream = new_stream()
for which in (cuda.cuMemGetDefaultMemPool, cuda.cuMemGetMemPool, cuda.cuMemGetDefaultMemPool):
    pool = c_void_p()
    ok(which(byref(pool), byref(Location(2, 0)), 1))  # of host memory
    addresses = [from_pool(pool, 64 * MIB, stream) for _ in range(8)]
    assert memory() == (100 * MIB, 100 * MIB)
    for address in addresses:
        free_in(address, stream)
ok(cuda.cuCtxSynchronize())
for which in (cuda.cuDeviceGetDefaultMemPool, cuda.cuDeviceGetMemPool):
    pool = c_void_p()
    ok(which(byref(pool), 1))
    address = from_pool(pool, 20 * MIB, stream)  # of the other device than the stream
    assert memory() == (100 * MIB, 100 * MIB)
    assert cuda.cuMemAllocFromPoolAsync(byref(c_uint64()), c_size_t(80 * MIB), pool, stream) == 2
    start(1)
    assert memory() == (68 * MIB, 100 * MIB)
    start(0)
    free_in(address, stream)
    ok(cuda.cuCtxSynchronize())
start(1)
assert memory() == (100 * MIB, 100 * MIB)
""",
        100 << 20,
        "2xH200",
    )


def test_a_pool_needs_so_much_of_the_cap_as_it_would_need_of_a_device_of_that_size(capped: Run) -> None:
    account = capped(
        """
pool, stream, address = make_pool(), new_stream(), c_uint64()
def ask(size):
    return cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(size), pool, stream)
def taken():
    return (memory()[1] - memory()[0]) // MIB
assert ask(1030 * MIB) == 0 and taken() == 1056
assert ask(20 * MIB) == 0 and taken() == 1056  # of what is left of that
assert ask(20 * MIB) == 0 and taken() == 1088  # by as little as after a small one
for size in (33 * MIB, 100 * MIB):
    assert ask(size) == 2 and taken() == 1088  # nothing has changed, and nothing has to be waited for
assert take(12 * MIB)[0] == 0 and take(1)[0] == 2
assert ask(12 * MIB) == 0 and memory()[0] == 0  # a rest of the pool, under a full cap
""",
        1100 << 20,
    )
    assert account.usage[0].memory_refusals == 3


def test_all_that_a_graph_allocates_must_fit_before_it_runs(capped: Run) -> None:
    capped(
        """
from rig.graphs import *
module, graph, first = start(), new_graph(), allocation(200 * MIB)
add_kernel(graph, module, "beside_5us")
add("cuGraphAddMemAllocNode", graph, byref(first))
add("cuGraphAddMemAllocNode", graph, byref(allocation(100 * MIB)))
add_kernel(graph, module, "beside_5us")
executable, before = instantiate(graph), memory()
assert cuda.cuGraphLaunch(executable, None) == 2 and memory() == before
_, other = take(100 * MIB)
assert cuda.cuGraphLaunch(executable, None) == 2 and memory()[0] == 156 * MIB
""",
        256 << 20,
    )


def test_what_a_graph_keeps_for_its_next_launch_is_given_back_when_it_is_needed(capped: Run) -> None:
    capped(
        """
from rig.graphs import *
graph, stream, block = new_graph(), new_stream(), allocation(100 * MIB)
node = add("cuGraphAddMemAllocNode", graph, byref(block))
add("cuGraphAddMemFreeNode", graph, c_uint64(block.address), node)
first = instantiate(graph)
assert memory()[0] == 256 * MIB
run(first, stream)
assert memory()[0] == 156 * MIB  # it is kept for the next launch
assert take(200 * MIB)[0] == 0 and memory()[0] == 56 * MIB  # but not when it is needed
assert cuda.cuGraphLaunch(first, stream) == 2 and memory()[0] == 56 * MIB
ok(cuda.cuGraphExecDestroy(first))
assert cuda.cuGraphExecDestroy(first) != 0 and memory()[0] == 56 * MIB
""",
        256 << 20,
    )


def test_a_pool_beyond_what_the_table_holds_is_charged_as_it_is_asked(capped: Run) -> None:
    capped(
        """
stream = new_stream()
pools = [make_pool() for _ in range(600)]
for pool in pools[:-1]:
    free_in(from_pool(pool, 100, stream), stream)
ok(cuda.cuCtxSynchronize())
for pool in pools[:-1]:
    ok(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
assert memory()[0] == 100 * MIB
address = from_pool(pools[-1], 100, stream)
assert memory()[0] == 100 * MIB - 100
assert cuda.cuMemAllocFromPoolAsync(byref(c_uint64()), c_size_t(100 * MIB), pools[-1], stream) == 2
assert cuda.cuMemAllocFromPoolAsync(byref(c_uint64()), c_size_t(8 * MIB), c_void_p(8), stream) not in (0, 2)
assert memory()[0] == 100 * MIB - 100
free_in(address, stream)
assert memory()[0] == 100 * MIB
""",
        100 << 20,
    )


def test_a_graph_takes_its_memory_once_and_gives_it_back_in_every_way(capped: Run) -> None:
    capped(
        """
from rig.graphs import *
module, stream, graph, plain, block = start(), new_stream(), new_graph(), new_graph(), allocation(256 * MIB)
node = add("cuGraphAddMemAllocNode", graph, byref(block))
add("cuGraphAddMemFreeNode", graph, c_uint64(block.address), node)
add_kernel(plain, module, "beside_5us")
run(instantiate(plain), stream)
whole = instantiate(graph)
for _ in range(2):  # a second launch finds what the first has left
    run(whole, stream)
    assert memory()[0] == 0
ok(cuda.cuDeviceGraphMemTrim(0))
assert memory()[0] == 256 * MIB
_, one = take(1)
assert cuda.cuGraphLaunch(whole, stream) == 2
ok(cuda.cuMemFree_v2(one))
run(whole, stream)
ok(cuda.cuGraphExecDestroy(whole))
assert memory()[0] == 256 * MIB
other = instantiate(plain)
assert take(256 * MIB)[0] == 0
run(other, stream)  # it needs none, whatever graph had its handle before
""",
        256 << 20,
    )


def test_a_graph_that_still_runs_is_launched_again_into_the_memory_that_it_has(capped: Run) -> None:
    capped(
        """
from rig.graphs import *
module, stream, graph, block = start(), new_stream(), new_graph(), allocation(200 * MIB)
taken = add("cuGraphAddMemAllocNode", graph, byref(block))
ends = add_kernel(graph, module, "k_50ms", taken)
add("cuGraphAddMemFreeNode", graph, c_uint64(block.address), ends)
whole = instantiate(graph)
for _ in range(4):  # nothing of that memory could be trimmed while the launch before it runs
    ok(cuda.cuGraphLaunch(whole, stream))
ok(cuda.cuCtxSynchronize())
assert memory()[0] == 56 * MIB
""",
        256 << 20,
    )


def test_what_a_graph_holds_ends_with_its_context(capped: Run) -> None:
    capped(
        """
from rig.graphs import *
def made():
    graph, block = new_graph(), allocation(100 * MIB)
    node = add("cuGraphAddMemAllocNode", graph, byref(block))
    add("cuGraphAddMemFreeNode", graph, c_uint64(block.address), node)
    return instantiate(graph)
primary, own = c_void_p(), c_void_p()
ok(cuda.cuCtxGetCurrent(byref(primary)))
ok(cuda.cuCtxCreate_v2(byref(own), 0, 0))
run(made(), new_stream())
held = 256 * MIB - memory()[0]
assert held >= 100 * MIB
ok(cuda.cuCtxDestroy_v2(own))
ok(cuda.cuCtxSetCurrent(primary))
assert 256 * MIB - memory()[0] == graph_memory(RESERVED)
run(made(), new_stream())
assert 256 * MIB - memory()[0] == graph_memory(RESERVED) == held
""",
        256 << 20,
    )


def test_what_a_destroyed_pool_held_is_given_back_and_its_entry_is_used_again(capped: Run) -> None:
    capped(
        """
ALL, stream = 2**64 - 1, new_stream()
def keep(pool, size=64 * MIB):
    assert set_attribute(pool, THRESHOLD, ALL) == 0
    free_in(from_pool(pool, size, stream), stream)
    ok(cuda.cuStreamSynchronize(stream))
    return pool
def left():
    return memory()[0] // MIB
one, two, three = (keep(make_pool()) for _ in range(3))
assert left() == 256 - 192
ok(cuda.cuMemPoolDestroy(one))
assert left() == 256 - 128
assert set_attribute(three, THRESHOLD, 0) == 0
ok(cuda.cuStreamSynchronize(stream))
assert left() == 256 - 64
held = from_pool(two, 40 * MIB, stream)
ok(cuda.cuMemPoolDestroy(two))
assert left() == 256 - 64
free_in(held, stream)  # its last allocation has kept it
ok(cuda.cuStreamSynchronize(stream))
assert left() == 256
own = keep(default_pool())
assert cuda.cuMemPoolDestroy(own) != 0
ok(cuda.cuMemPoolTrimTo(own, c_size_t(0)))
assert left() == 256  # it is still asked what it holds
from rig.structs import PoolProps
host = c_void_p()
ok(cuda.cuMemPoolCreate(byref(host), byref(PoolProps(1, 0, Location(2, 0)))))
ok(cuda.cuMemPoolDestroy(host))
for number in range(600):
    pool = make_pool()
    assert number or pool.value == host.value  # the handle is a pool's of the device now
    address = from_pool(pool, 1, stream)
    assert left() == 256 - 32, number
    free_in(address, stream)
    ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuMemPoolDestroy(pool))
assert left() == 256
""",
        256 << 20,
    )


def test_every_pool_gives_back_what_it_keeps_when_it_is_needed(capped: Run) -> None:
    capped(
        """
stream = new_stream()
for pool in [make_pool() for _ in range(3)]:
    assert set_attribute(pool, THRESHOLD, 2**64 - 1) == 0
    free_in(from_pool(pool, 64 * MIB, stream), stream)
ok(cuda.cuStreamSynchronize(stream))
assert memory()[0] == 64 * MIB
assert take(250 * MIB)[0] == 0
""",
        256 << 20,
    )


WAITING_CALLS = {
    "free": "address = take(1)[1]\ncall = lambda: cuda.cuMemFree_v2(address)",
    "array": "array = new_array(8, 8)\ncall = lambda: cuda.cuArrayDestroy(array)",
    "mipmap": """
from rig.structs import Array3D
whole = c_void_p()
ok(cuda.cuMipmappedArrayCreate(byref(whole), byref(Array3D(8, 8, 0, 1, 1, 0)), 1))
call = lambda: cuda.cuMipmappedArrayDestroy(whole)
""",
}


@pytest.mark.parametrize("way", WAITING_CALLS)
def test_a_call_that_waits_for_the_device_shows_the_agent_what_pools_have_given_back(
    arbiter: Arbiter, make_simgpu: MakeSimgpu, tmp_path: Path, way: str
) -> None:
    share = arbiter.share(tmp_path / "share", memory_bytes=256 << 20)
    body = f"""
stream = new_stream()
{WAITING_CALLS[way]}
free_in(from_pool(make_pool(), 64 * MIB, stream), stream)
print("held", flush=True)
sys.stdin.readline()
ok(call())
print("given back", flush=True)
sys.stdin.readline()
"""
    command, pipe = script(PROGRAM + body), subprocess.PIPE
    with subprocess.Popen(command, env=make_simgpu().env | share.env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert share.usage().memory_used_bytes >= 64 << 20
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "given back\n"
        assert share.usage().memory_used_bytes == 0
        process.stdin.close()
        assert process.wait(timeout=20) == 0
