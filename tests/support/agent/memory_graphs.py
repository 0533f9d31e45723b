"""Graphs that allocate, made, instantiated and uploaded in every way: kinds of memory for memory_program.py."""

from __future__ import annotations

from ctypes import byref, c_size_t, c_uint64, c_void_p

from memory_driver import ON_DEVICE, Give, Refused, bring_to_an_end, call, stream

from rig.structs import AllocationNode, Instantiation, Location, Node, PoolProps

ALLOCATE = 10  # a type of node
UPLOAD = 2  # a flag of an instantiation


def allocating_graph(size: int, device: int = 0) -> tuple[c_void_p, c_uint64]:
    """Return a graph that allocates, and the address."""
    graph, node = c_void_p(), c_void_p()
    params = AllocationNode(pool=PoolProps(1, 0, Location(1, device)), bytes=size)
    call("cuGraphCreate", byref(graph), 0)
    call("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(params))
    return graph, c_uint64(params.address)


def launched(executable: c_void_p, graph: c_void_p, address: c_uint64, device: int = 0) -> Give:
    """Launch an executable graph that allocates."""
    call("cuGraphDestroy", graph)
    try:
        call("cuGraphLaunch", executable, stream)
    except Refused:
        call("cuGraphExecDestroy", executable)
        raise

    def give() -> None:
        call("cuMemFreeAsync", address, stream)
        bring_to_an_end()
        call("cuGraphExecDestroy", executable)
        call("cuDeviceGraphMemTrim", device)

    return give


def instantiated(graph: c_void_p) -> c_void_p:
    """Make a graph executable."""
    executable = c_void_p()
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    return executable


def graph_node(size: int) -> Give:
    """Launch a graph that allocates."""
    graph, address = allocating_graph(size)
    return launched(instantiated(graph), graph, address)


def graph_elsewhere(size: int) -> Give:
    """Launch a graph that allocates on device 1."""
    graph, address = allocating_graph(size, 1)
    return launched(instantiated(graph), graph, address, 1)


def graph_captured(size: int) -> Give:
    """Launch a graph that was captured from a stream-ordered allocation."""
    graph, address = c_void_p(), c_uint64()
    call("cuStreamBeginCapture_v2", stream, 0)
    call("cuMemAllocAsync", byref(address), c_size_t(size), stream)
    call("cuStreamEndCapture", stream, byref(graph))
    return launched(instantiated(graph), graph, address)


def graph_generic(size: int) -> Give:
    """Launch a graph whose node was added by the function for every type of node."""
    graph, node, params = c_void_p(), c_void_p(), Node(type=ALLOCATE)
    params.allocation = AllocationNode(pool=PoolProps(1, 0, ON_DEVICE), bytes=size)
    call("cuGraphCreate", byref(graph), 0)
    call("cuGraphAddNode", byref(node), graph, None, c_size_t(0), byref(params))
    return launched(instantiated(graph), graph, c_uint64(params.allocation.address))


def graph_generic_v2(size: int) -> Give:
    """Launch a graph whose node was added by the second of these functions."""
    graph, node, params = c_void_p(), c_void_p(), Node(type=ALLOCATE)
    params.allocation = AllocationNode(pool=PoolProps(1, 0, ON_DEVICE), bytes=size)
    call("cuGraphCreate", byref(graph), 0)
    call("cuGraphAddNode_v2", byref(node), graph, None, None, c_size_t(0), byref(params))
    return launched(instantiated(graph), graph, c_uint64(params.allocation.address))


def uploaded(executable: c_void_p) -> Give:
    """Give back a graph that was uploaded and not launched."""

    def give() -> None:
        bring_to_an_end()
        call("cuGraphExecDestroy", executable)
        call("cuDeviceGraphMemTrim", 0)

    return give


def graph_uploaded(size: int) -> Give:
    """Upload a graph that allocates, and do not launch it."""
    graph, _ = allocating_graph(size)
    executable = instantiated(graph)
    call("cuGraphDestroy", graph)
    try:
        call("cuGraphUpload", executable, stream)
    except Refused:
        call("cuGraphExecDestroy", executable)
        raise
    return uploaded(executable)


def graph_uploaded_at_once(size: int) -> Give:
    """Upload a graph that allocates as it is instantiated."""
    executable, (graph, _) = c_void_p(), allocating_graph(size)
    try:
        call("cuGraphInstantiateWithParams", byref(executable), graph, byref(Instantiation(UPLOAD, stream)))
    finally:
        call("cuGraphDestroy", graph)
    return uploaded(executable)


def graph_with_params(size: int) -> Give:
    """Launch a graph that was instantiated with a structure of parameters."""
    executable, (graph, address) = c_void_p(), allocating_graph(size)
    call("cuGraphInstantiateWithParams", byref(executable), graph, byref(Instantiation()))
    return launched(executable, graph, address)


def graph_with_log(size: int, function: str = "cuGraphInstantiate") -> Give:
    """Launch a graph that was instantiated as CUDA 10 does it."""
    executable, (graph, address) = c_void_p(), allocating_graph(size)
    call(function, byref(executable), graph, None, None, c_size_t(0))
    return launched(executable, graph, address)


def graph_with_log_v2(size: int) -> Give:
    """Launch a graph that was instantiated as CUDA 11 does it."""
    return graph_with_log(size, "cuGraphInstantiate_v2")


GRAPHS = (
    graph_node,
    graph_elsewhere,
    graph_captured,
    graph_generic,
    graph_generic_v2,
    graph_uploaded,
    graph_uploaded_at_once,
    graph_with_params,
    graph_with_log,
    graph_with_log_v2,
)
