"""Graphs by cuda-bindings: what makes executable ones, changes them and takes them away."""

import ctypes
from collections.abc import Callable
from typing import Any

from bindings_world import PIECE, SIZE, Call, World, after, check, gone
from cuda.bindings import driver
from cuda.bindings.driver import CUgraphNodeType

NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda with_what: None)


def kernel(world: World) -> driver.CUDA_KERNEL_NODE_PARAMS:
    """Launch the kernel."""
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = world.kernel
    params.gridDimX = params.gridDimY = params.gridDimZ = 1
    params.blockDimX = params.blockDimY = params.blockDimZ = 1
    return params


def fill(params: Any, world: World) -> Any:
    """Set a piece of memory."""
    params.dst, params.elementSize, params.width, params.height = world.a, 1, PIECE, 1
    return params


def call() -> driver.CUDA_HOST_NODE_PARAMS:
    """Call a function of the host."""
    params = driver.CUDA_HOST_NODE_PARAMS()
    params.fn = driver.CUhostFn(ctypes.cast(NOTHING, ctypes.c_void_p).value)
    return params


def write(world: World) -> driver.CUDA_BATCH_MEM_OP_NODE_PARAMS:
    """Write a word."""
    word = driver.CUstreamBatchMemOpParams()
    word.writeValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
    word.writeValue.address = world.b
    params = driver.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    params.ctx, params.count, params.paramArray = world.context, 1, [word]
    return params


def fill_node(world: World) -> driver.CUgraphNodeParams:
    """Set a piece of memory, as the calls for any node want it."""
    params = driver.CUgraphNodeParams()
    params.type = CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
    fill(params.memset, world)
    params.memset.ctx = world.context
    return params


def allocation() -> driver.CUDA_MEM_ALLOC_NODE_PARAMS:
    """Allocate on the device."""
    params = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    params.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    params.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    params.bytesize = SIZE
    return params


def in_graph(add: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Add a node to a graph that goes again; return the answer of adding it."""
    graph = check(driver.cuGraphCreate(0))
    answer = add(graph)
    check(driver.cuGraphDestroy(graph))
    return answer


def graphs(world: World) -> dict[str, Call]:
    """Return what makes executable graphs and takes them away, and the nodes that may allocate."""
    return {
        "cuGraphInstantiate": lambda: gone(driver.cuGraphInstantiate(world.graph, 0), driver.cuGraphExecDestroy),
        "cuGraphInstantiateWithParams": lambda: gone(
            driver.cuGraphInstantiateWithParams(world.graph, driver.CUDA_GRAPH_INSTANTIATE_PARAMS()),
            driver.cuGraphExecDestroy,
        ),
        "cuGraphExecDestroy": lambda: after(driver.cuGraphInstantiate(world.graph, 0), driver.cuGraphExecDestroy),
        "cuGraphUpload": lambda: driver.cuGraphUpload(world.executable, world.stream),
        "cuDeviceGraphMemTrim": lambda: driver.cuDeviceGraphMemTrim(world.device),
        "cuGraphAddMemAllocNode": lambda: in_graph(
            lambda graph: driver.cuGraphAddMemAllocNode(graph, None, 0, allocation())
        ),
        "cuGraphAddNode": lambda: in_graph(lambda graph: driver.cuGraphAddNode(graph, None, None, 0, fill_node(world))),
    }


def changes(world: World) -> dict[str, Call]:
    """Return the changes of an executable graph that has a node of each type that can be changed."""
    graph, context = check(driver.cuGraphCreate(0)), world.context
    box, values = world.box(driver.CUDA_MEMCPY3D), fill(driver.CUDA_MEMSET_NODE_PARAMS(), world)
    launch = check(driver.cuGraphAddKernelNode(graph, None, 0, kernel(world)))
    copy = check(driver.cuGraphAddMemcpyNode(graph, None, 0, box, context))
    fills = check(driver.cuGraphAddMemsetNode(graph, None, 0, values, context))
    host = check(driver.cuGraphAddHostNode(graph, None, 0, call()))
    child = check(driver.cuGraphAddChildGraphNode(graph, None, 0, world.graph))
    words = check(driver.cuGraphAddBatchMemOpNode(graph, None, 0, write(world)))
    of = check(driver.cuGraphInstantiate(graph, 0))
    return {
        "cuGraphExecUpdate": lambda: driver.cuGraphExecUpdate(of, graph),
        "cuGraphExecKernelNodeSetParams": lambda: driver.cuGraphExecKernelNodeSetParams(of, launch, kernel(world)),
        "cuGraphExecMemcpyNodeSetParams": lambda: driver.cuGraphExecMemcpyNodeSetParams(of, copy, box, context),
        "cuGraphExecMemsetNodeSetParams": lambda: driver.cuGraphExecMemsetNodeSetParams(of, fills, values, context),
        "cuGraphExecHostNodeSetParams": lambda: driver.cuGraphExecHostNodeSetParams(of, host, call()),
        "cuGraphExecChildGraphNodeSetParams": lambda: driver.cuGraphExecChildGraphNodeSetParams(of, child, world.graph),
        "cuGraphExecBatchMemOpNodeSetParams": lambda: driver.cuGraphExecBatchMemOpNodeSetParams(
            of, words, write(world)
        ),
        "cuGraphExecNodeSetParams": lambda: driver.cuGraphExecNodeSetParams(of, fills, fill_node(world)),
        "cuGraphNodeSetEnabled": lambda: driver.cuGraphNodeSetEnabled(of, launch, 0),
    }
