"""Test graphs built by hand: every type of node, its parameters and updates, and what a launch does and takes."""

import pytest
from simgpu_fixtures import NewGpu


@pytest.fixture
def prelude() -> str:
    return """
from rig.graphs import *
from rig.structs import Copy3D, End3D
module, stream, context = start(), new_stream(), c_void_p()
ok(cuda.cuCtxGetCurrent(byref(context)))
"""


def test_an_unmodified_client_builds_updates_and_launches_graphs(new_gpu: NewGpu) -> None:
    # NVIDIA's own bindings contain the layout of every struct.
    gpu = new_gpu()
    lines = gpu.play("""
from cuda.bindings import driver as d
def must(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
must(d.cuInit(0))
context = must(d.cuDevicePrimaryCtxRetain(0))
must(d.cuCtxSetCurrent(context))
image = b".version 7.0\\n.target sm_70\\n.visible .entry a_100us() { ret; }\\n.visible .entry b_300us() { ret; }\\n\\0"
module = must(d.cuModuleLoadData(image))
stream, graph = must(d.cuStreamCreate(1)), must(d.cuGraphCreate(0))
def kernel(name, kind=d.CUDA_KERNEL_NODE_PARAMS):
    params = kind()
    params.func = must(d.cuModuleGetFunction(module, name))
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1
    return params
memory = d.CUDA_MEM_ALLOC_NODE_PARAMS()
memory.poolProps.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
memory.poolProps.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
memory.bytesize = 4096
alloc = must(d.cuGraphAddMemAllocNode(graph, None, 0, memory))
general = d.CUgraphNodeParams()
general.type = d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
general.kernel = kernel(b"a_100us", d.CUDA_KERNEL_NODE_PARAMS_v3)
node = must(d.cuGraphAddNode(graph, [alloc], None, 1, general))
set_word = d.CUDA_BATCH_MEM_OP_NODE_PARAMS()
word = d.CUstreamBatchMemOpParams()
word.writeValue.operation = d.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
word.writeValue.address, word.writeValue.value = memory.dptr, 7
set_word.ctx, set_word.count, set_word.paramArray = context, 1, [word]
written = must(d.cuGraphAddBatchMemOpNode(graph, [node], 1, set_word))
host = (c_uint32 * 1)()
copy = d.CUDA_MEMCPY3D()
copy.srcMemoryType, copy.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE, d.CUmemorytype.CU_MEMORYTYPE_HOST
copy.srcDevice, copy.dstHost, copy.WidthInBytes, copy.Height, copy.Depth = memory.dptr, ctypes.addressof(host), 4, 1, 1
copied = must(d.cuGraphAddMemcpyNode(graph, [written], 1, copy, context))
must(d.cuGraphAddMemFreeNode(graph, [copied], 1, memory.dptr))
executable = must(d.cuGraphInstantiate(graph, 0))
for name in (b"a_100us", b"b_300us"):
    must(d.cuGraphExecKernelNodeSetParams(executable, node, kernel(name)))
    must(d.cuGraphLaunch(executable, stream))
    must(d.cuStreamSynchronize(stream))
print(host[0], must(d.cuGraphKernelNodeGetParams(node)).gridDimX, must(d.cuGraphMemAllocNodeGetParams(alloc)).bytesize)
print(must(d.cuGraphGetEdges(graph))[3], int(must(d.cuGraphExecUpdate(executable, graph)).result))
""")
    assert lines == ["7 1 4096", "4 0"]
    busy = [record.busy_ns for record in gpu.kernels() if record.busy_ns > 10_000]
    assert busy == [100_000, 300_000]


def test_a_child_graph_runs_in_its_place_and_its_nodes_can_be_found_and_changed(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    lines = gpu.play("""
child, graph, inside, clone, found = new_graph(), new_graph(), c_void_p(), c_void_p(), c_void_p()
a = add_kernel(child, module, "a_100us")
add_kernel(child, module, "b_200us", a)
before = add_kernel(graph, module, "c_50us")
node = add("cuGraphAddChildGraphNode", graph, child, before)
add_kernel(graph, module, "d_30us", node)
ok(cuda.cuGraphDestroy(child))
ok(cuda.cuGraphChildGraphNodeGetGraph(node, byref(inside)))
inner = c_void_p(nodes_of(inside)[0])
executable = instantiate(graph)
run(executable, stream)
ok(cuda.cuGraphExecKernelNodeSetParams_v2(executable, inner, byref(kernel_params(module, "e_1ms"))))
run(executable, stream)
other = new_graph()
add_kernel(other, module, "f_1us", add_kernel(other, module, "f_2us"))
ok(cuda.cuGraphExecChildGraphNodeSetParams(executable, node, other))
run(executable, stream)
ok(cuda.cuGraphClone(byref(clone), graph))
print(cuda.cuGraphNodeFindInClone(byref(found), inner, clone), found.value not in (None, inner.value))
print(cuda.cuGraphNodeFindInClone(byref(found), inner, graph), cuda.cuGraphDestroy(inside))
""")
    assert lines == ["0 True", "1 1"]
    assert [record.busy_ns for record in gpu.kernels()] == [380_000, 1_280_000, 83_000]


def test_the_graph_of_a_condition_runs_once_if_launches_assign_a_value_that_is_not_zero(new_gpu: NewGpu) -> None:
    # NVIDIA's own bindings contain the layout of the parameters.
    gpu = new_gpu()
    lines = gpu.play("""
from cuda.bindings import driver as d
def condition(graph, value, flags, kind=1, size=1, on=None):
    result, handle = d.cuGraphConditionalHandleCreate(graph, None, value, flags)
    params = d.CUgraphNodeParams()
    params.type = d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = d.CUgraphConditionalNodeType(kind)
    params.conditional.size = size
    result, node = d.cuGraphAddNode(graph, on, None, len(on or ()), params)
    return int(result), node, params, handle

graph = new_graph()
first = add_kernel(graph, module, "first_100us")
theirs, none = d.CUgraph(graph.value), []
handles = set()
for duration, value, flags, kind in ((200, 1, 1, 1), (400, 0, 1, 1), (800, 1, 0, 0), (1600, 7, 1, 0)):
    result, node, params, handle = condition(theirs, value, flags, kind, on=[d.CUgraphNode(first.value)])
    ok(result)
    body = c_void_p(int(params.conditional.phGraph_out[0]))
    add_kernel(body, module, f"body_{duration}us")
    handles.add(int(handle))
executable = instantiate(graph)
run(executable, stream)
run(executable, stream)
print(len(handles), 0 in handles)
ok(cuda.cuGraphDebugDotPrint(graph, b"/dev/stdout", 0))
print(condition(theirs, 1, 1, size=2)[0], int(d.cuGraphConditionalHandleCreate(theirs, None, 1, 2)[0]))
""")
    assert (lines[0], lines[-1]) == ("4 False", "801 1")
    assert sum('label="conditional"' in line for line in lines) == 4
    # The nodes with fulfilled conditions run in parallel after the first kernel.
    busy = [record.busy_ns // 1000 for record in gpu.kernels() if record.name == "graph"]
    assert busy == [1700, 1700]


def test_an_object_lives_as_long_as_a_graph_or_an_executable_keeps_it(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
gone = []
call = HOST_FUNCTION(lambda data: gone.append(data))
def made(number, count=1):
    thing = c_void_p()
    ok(cuda.cuUserObjectCreate(byref(thing), c_void_p(number), call, count, 1))
    return thing
graph, clone, moved, shared = new_graph(), c_void_p(), made(1), made(2)
add_kernel(graph, module, "a_1us")
ok(cuda.cuGraphRetainUserObject(graph, moved, 1, 1))
ok(cuda.cuGraphRetainUserObject(graph, shared, 2, 0))
ok(cuda.cuGraphClone(byref(clone), graph))
executable = instantiate(graph)
ok(cuda.cuGraphReleaseUserObject(graph, shared, 2))
print(cuda.cuGraphReleaseUserObject(graph, shared, 1), cuda.cuUserObjectRelease(shared, 99))
ok(cuda.cuUserObjectRetain(shared, 1))
ok(cuda.cuUserObjectRelease(shared, 2))
ok(cuda.cuGraphDestroy(graph))
ok(cuda.cuGraphDestroy(clone))
print(gone)
run(executable, stream)
ok(cuda.cuGraphExecDestroy(executable))
print(sorted(gone), cuda.cuUserObjectRetain(shared, 1))
captured, thing, found, nothing = c_void_p(), made(3), c_void_p(), c_void_p()
status, number = c_int(), c_uint64()
ok(cuda.cuStreamBeginCapture_v2(stream, 0))
ok(cuda.cuStreamGetCaptureInfo_v2(stream, byref(status), byref(number), byref(found), None, None))
ok(cuda.cuGraphRetainUserObject(found, thing, 1, 1))
print(cuda.cuMemAlloc_v2(byref(nothing), c_size_t(16)), cuda.cuStreamEndCapture(stream, byref(captured)), gone[2:])
""")
    assert lines == ["1 1", "[]", "[1, 2] 1", "900 901 [3]"]


def test_what_depends_on_a_host_function_or_an_event_comes_after_it_and_the_rest_does_not_wait(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
graph, other = new_graph(), new_stream()
first, last, gate, release, seen = new_event(), new_event(), new_event(), hold(other), []
call = HOST_FUNCTION(lambda _: seen.append(1))
a = add_kernel(graph, module, "a_1ms")
record = add("cuGraphAddEventRecordNode", graph, first, a)
host = add("cuGraphAddHostNode", graph, byref(Host(call, None)), record)
b = add_kernel(graph, module, "b_2ms", host)
add("cuGraphAddEventRecordNode", graph, last, b)
wait = add("cuGraphAddEventWaitNode", graph, gate)
late = add_kernel(graph, module, "c_1ms", wait)
ok(cuda.cuEventRecord(gate, other))
ok(cuda.cuGraphLaunch(instantiate(graph), stream))
while cuda.cuEventQuery(last):  # what does not wait for the gate runs although that is held
    time.sleep(0.001)
print(elapsed_us(first, last) >= 2000, seen, cuda.cuStreamQuery(stream))
release()
ok(cuda.cuStreamSynchronize(stream))
print(elapsed_us(last, gate) > 0)
""")
    assert lines == ["True [1] 600", "True"]


def test_nodes_for_words_wait_for_them_and_write_them(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
graph, memory, seen = new_graph(), allocate(64), (c_uint32 * 4)()
words = operations((WAIT_32, memory, 5, AT_LEAST), (WRITE_32, memory + 4, 9, 0), (BARRIER, 0, 0, 0),
                   (WRITE_64, memory + 8, 1 << 33, 0))
node = add("cuGraphAddBatchMemOpNode", graph, byref(batch(words, context)))
executable, other = instantiate(graph), new_stream()
ok(cuda.cuGraphLaunch(executable, stream))
print(cuda.cuStreamQuery(stream))
ok(cuda.cuStreamWriteValue32_v2(other, c_uint64(memory), 4, 0))
ok(cuda.cuStreamSynchronize(other))
print(cuda.cuStreamQuery(stream))
ok(cuda.cuStreamWriteValue32_v2(other, c_uint64(memory), 5, 0))
ok(cuda.cuStreamSynchronize(stream))
ok(cuda.cuMemcpyDtoH_v2(seen, c_uint64(memory), c_size_t(16)))
print(list(seen))
less = operations((WRITE_32, memory + 4, 11, 0))
ok(cuda.cuGraphExecBatchMemOpNodeSetParams(executable, node, byref(batch(less, context))))
run(executable, stream)
ok(cuda.cuMemcpyDtoH_v2(seen, c_uint64(memory), c_size_t(16)))
print(list(seen))
""")
    assert lines == ["600", "600", "[5, 9, 0, 2]", "[5, 11, 0, 2]"]


def test_an_executable_is_updated_only_by_a_graph_of_the_same_shape(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
call = HOST_FUNCTION(lambda _: None)
def chain(*names, host=False, crossed=False):
    graph = new_graph()
    nodes = [add_kernel(graph, module, names[0])]
    nodes.append(add_kernel(graph, module, names[1], *nodes))
    for name in names[2:]:
        nodes.append(add_kernel(graph, module, name, nodes[0 if crossed else 1]))
    if host:
        nodes.append(add("cuGraphAddHostNode", graph, byref(Host(call, None)), nodes[-1]))
    return graph, nodes
executable = instantiate(chain("a_1us", "b_1us", "c_1us")[0])
def update(graph, nodes):
    info = Updated()
    result = cuda.cuGraphExecUpdate_v2(executable, graph, byref(info))
    values = [node.value for node in nodes]
    print(result, info.result, *[values.index(at) if at else None for at in (info.node, info.source)])
update(*chain("a_5us", "b_5us", "c_5us"))
update(*chain("a_5us", "b_5us"))
update(*chain("a_5us", "b_5us", host=True))
update(*chain("a_5us", "b_5us", "c_5us", crossed=True))
print(cuda.cuGraphExecUpdate_v2(executable, None, None))
begin, end = new_event(), new_event()
release = hold(stream)
ok(cuda.cuEventRecord(begin, stream))
ok(cuda.cuGraphLaunch(executable, stream))
ok(cuda.cuEventRecord(end, stream))
release()
ok(cuda.cuStreamSynchronize(stream))
print(round(elapsed_us(begin, end)))
""")
    assert lines == ["0 0 None None", "910 2 None None", "910 3 2 None", "910 2 2 0", "1", "15"]


def test_single_nodes_of_an_executable_are_changed_and_switched_off(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    lines = gpu.play("""
graph, memory, words, seen, on_off = new_graph(), allocate(16), (c_uint32 * 4)(), [], c_uint()
calls = [HOST_FUNCTION(lambda _, n=n: seen.append(n)) for n in range(2)]
a = add_kernel(graph, module, "a_100us")
memset, memcpy = c_void_p(), c_void_p()
ok(cuda.cuGraphAddMemsetNode(byref(memset), graph, *on(a), byref(Memset(memory, 16, 7, 4, 4, 1)), context))
def copy(width):
    target = End3D(kind=1, host=ctypes.addressof(words), pitch=16, height=1)
    return Copy3D(End3D(kind=2, device=memory, pitch=16, height=1), target, width, 1, 1)
ok(cuda.cuGraphAddMemcpyNode(byref(memcpy), graph, *on(memset), byref(copy(16)), context))
host = add("cuGraphAddHostNode", graph, byref(Host(calls[0], None)), memcpy)
executable = instantiate(graph)
run(executable, stream)
print(list(words), seen)
ok(cuda.cuGraphExecKernelNodeSetParams_v2(executable, a, byref(kernel_params(module, "a_400us"))))
ok(cuda.cuGraphExecMemsetNodeSetParams(executable, memset, byref(Memset(memory, 16, 8, 4, 4, 1)), context))
ok(cuda.cuGraphExecMemcpyNodeSetParams(executable, memcpy, byref(copy(8)), context))
ok(cuda.cuGraphExecHostNodeSetParams(executable, host, byref(Host(calls[1], None))))
run(executable, stream)
print(list(words), seen)
ok(cuda.cuGraphNodeSetEnabled(executable, memset, 0))
ok(cuda.cuGraphNodeSetEnabled(executable, a, 0))
ok(cuda.cuGraphNodeGetEnabled(executable, a, byref(on_off)))
ok(cuda.cuMemsetD8_v2(c_uint64(memory), 0, c_size_t(16)))
run(executable, stream)
print(list(words), on_off.value, cuda.cuGraphNodeSetEnabled(executable, host, 0))
stranger = add_kernel(new_graph(), module, "x_1us")
print(cuda.cuGraphExecKernelNodeSetParams_v2(executable, stranger, byref(kernel_params(module, "a_1us"))),
      cuda.cuGraphExecHostNodeSetParams(executable, a, byref(Host(calls[1], None))))
params = Memset()
ok(cuda.cuGraphMemsetNodeGetParams(memset, byref(params)))
print(params.value, cuda.cuGraphMemsetNodeGetParams(a, byref(params)))
""")
    assert lines == [
        "[7, 7, 7, 7] [0]",
        "[8, 8, 7, 7] [0, 1]",
        "[0, 0, 7, 7] 0 1",
        "1 1",
        "7 1",
    ]
    busy = [record.busy_ns // 1000 * 1000 for record in gpu.kernels() if record.name == "graph"]
    assert busy == [102_000, 402_000, 1_000]
