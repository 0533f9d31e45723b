"""Test the memory of graphs: when it takes device capacity, how long it is kept, and which calls may free it."""

import pytest
from simgpu_fixtures import NewGpu


@pytest.fixture
def prelude() -> str:
    return """
from rig.graphs import *
from rig.holdings import MIB, used
module, stream = start(), new_stream()
empty = used()
def taken():
    return (used() - empty) // MIB
def amounts():
    return [graph_memory(which) // MIB for which in range(4)]
def alloc_graph(size, free=False, work="k_1ms"):
    graph, block = new_graph(), allocation(size * MIB)
    node = add("cuGraphAddMemAllocNode", graph, byref(block))
    node = add_kernel(graph, module, work, node)
    if free:
        add("cuGraphAddMemFreeNode", graph, c_uint64(block.address), node)
    return graph, block.address
"""


def test_capacity_is_taken_at_the_first_launch_and_kept_until_it_is_trimmed(new_gpu: NewGpu) -> None:
    lines = new_gpu(SIMGPU_MEMORY_MIB="1024").play("""
graph, address = alloc_graph(100, free=True)
executable = instantiate(graph)
print(taken(), amounts())
ok(cuda.cuGraphLaunch(executable, stream))
ok(cuda.cuGraphLaunch(executable, stream))
print(taken(), amounts())
ok(cuda.cuDeviceGraphMemTrim(0))
print(taken(), amounts())
ok(cuda.cuStreamSynchronize(stream))
print(taken(), amounts())
ok(cuda.cuDeviceGraphMemTrim(0))
print(taken(), amounts())
run(executable, stream)
print(taken())
ok(cuda.cuDeviceSetGraphMemAttribute(0, USED_HIGH, byref(c_uint64())))
print(amounts(), cuda.cuDeviceSetGraphMemAttribute(0, RESERVED_HIGH, byref(c_uint64(1))),
      cuda.cuDeviceSetGraphMemAttribute(0, USED, byref(c_uint64())))
ok(cuda.cuGraphExecDestroy(executable))
ok(cuda.cuGraphDestroy(graph))
print(taken(), amounts())
""")
    assert lines == [
        "0 [0, 0, 0, 0]",
        "100 [100, 100, 100, 100]",
        "100 [100, 100, 100, 100]",
        "100 [0, 100, 100, 100]",
        "0 [0, 100, 0, 100]",
        "100",
        "[0, 0, 100, 100] 1 1",
        "0 [0, 0, 0, 100]",
    ]


def test_an_upload_takes_capacity_and_one_that_does_not_fit_takes_none(new_gpu: NewGpu) -> None:
    lines = new_gpu(SIMGPU_MEMORY_MIB="1024").play("""
first, second = instantiate(alloc_graph(600, free=True)[0]), new_graph()
for size in (200, 400):
    add("cuGraphAddMemAllocNode", second, byref(allocation(size * MIB)))
second = instantiate(second)
ok(cuda.cuGraphUpload(first, stream))
print(taken(), cuda.cuGraphLaunch(second, stream), taken(), amounts())
ok(cuda.cuDeviceGraphMemTrim(0))
print(taken(), cuda.cuGraphUpload(second, stream), taken(), cuda.cuGraphLaunch(first, stream))
""")
    assert lines == ["600 2 600 [0, 0, 600, 800]", "0 0 600 2"]


@pytest.mark.parametrize(
    "free",
    [
        "ok(cuda.cuMemFree_v2(c_uint64(address)))",
        "ok(cuda.cuMemFreeAsync(c_uint64(address), stream)); ok(cuda.cuStreamSynchronize(stream))",
        "other = new_graph(); add('cuGraphAddMemFreeNode', other, c_uint64(address)); run(instantiate(other), stream)",
    ],
)
@pytest.mark.parametrize("outlives", [False, True])
def test_an_allocation_that_is_not_freed_in_its_graph_is_freed_outside(
    new_gpu: NewGpu, free: str, outlives: bool
) -> None:
    lines = new_gpu(SIMGPU_MEMORY_MIB="1024").play(f"""
graph, address = alloc_graph(100)
executable = instantiate(graph)
run(executable, stream)
print(cuda.cuGraphLaunch(executable, stream), taken(), amounts()[0])
ok(cuda.cuMemsetD8_v2(c_uint64(address), 1, c_size_t(100 * MIB)))
ok(cuda.cuCtxSynchronize())  # the stream of the free does not wait for it
if {outlives}:
    ok(cuda.cuGraphExecDestroy(executable))
    ok(cuda.cuGraphDestroy(graph))
    print(taken(), amounts()[0])
ok(cuda.cuDeviceGraphMemTrim(0))
print(taken())
{free}
print(taken(), amounts()[0], cuda.cuMemFree_v2(c_uint64(address)))
if not {outlives}:
    run(executable, stream)
    print(taken(), amounts()[0])
""")
    kept = ["0 0 1"] if outlives else ["100 0 1", "100 100"]
    assert lines == ["1 100 100", *(["100 100"] if outlives else []), "100", *kept]


def test_auto_free_lets_a_graph_be_launched_while_its_allocation_lives(new_gpu: NewGpu) -> None:
    lines = new_gpu(SIMGPU_MEMORY_MIB="1024").play("""
graph, address = alloc_graph(100)
executable = instantiate(graph, 1)
for _ in range(3):
    run(executable, stream)
print(taken(), amounts()[0])
ok(cuda.cuMemFree_v2(c_uint64(address)))
print(taken(), amounts()[0])
""")
    assert lines == ["100 100", "100 0"]


def test_stream_ordered_memory_under_capture_becomes_the_graphs(new_gpu: NewGpu) -> None:
    lines = new_gpu(SIMGPU_MEMORY_MIB="1024").play("""
graph, address, plain = c_void_p(), c_uint64(), c_uint64(allocate(16))
seen = (c_uint32 * 4)()
ok(cuda.cuStreamBeginCapture_v2(stream, GLOBAL))
ok(cuda.cuMemAllocAsync(byref(address), c_size_t(100 * MIB), stream))
ok(cuda.cuMemsetD32Async(address, 7, c_size_t(4), stream))
ok(cuda.cuMemcpyDtoDAsync_v2(plain, address, c_size_t(16), stream))
ok(cuda.cuMemFreeAsync(address, stream))
refused = cuda.cuMemFreeAsync(plain, stream)
ok(cuda.cuStreamEndCapture(stream, byref(graph)))
print([type_of(node) for node in nodes_of(graph)], refused, taken())
params = Allocation()
ok(cuda.cuGraphMemAllocNodeGetParams(c_void_p(nodes_of(graph)[0]), byref(params)))
executable = instantiate(graph)
run(executable, stream)
ok(cuda.cuMemcpyDtoH_v2(seen, plain, c_size_t(16)))
print(params.bytes // MIB, params.address == address.value, list(seen), taken())
""")
    assert lines == ["[10, 2, 1, 11] 1 0", "100 True [7, 7, 7, 7] 100"]


def test_the_memory_of_graphs_ends_with_its_context(new_gpu: NewGpu) -> None:
    lines = new_gpu(SIMGPU_MEMORY_MIB="1024").play("""
executable = instantiate(alloc_graph(100)[0])
run(executable, stream)
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
start()
print(taken(), amounts()[0], amounts()[2])
again = new_stream()
run(executable, again)
print(taken(), amounts()[0])
""")
    assert lines == ["0 0 0", "100 100"]
