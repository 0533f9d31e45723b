"""Test the memory of pools and of graphs, which allocate from a pool: exactly what a pool holds is charged."""

from memory_script import Run


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
""",
        100 << 20,
        "2xH200",
    )


def test_a_pool_needs_so_much_of_the_cap_as_it_would_need_of_a_device_of_that_size(capped: Run) -> None:
    capped(
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
""",
        1100 << 20,
    )


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
