"""The driver API's graphs through ctypes. Programs under test begin with `from rig.graphs import *`.

Layouts are those of CUDA 11.8 to 13. This is no test module, and none imports it.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, Union, byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from rig.driver import HOST_FUNCTION, cuda, kernel, ok
from rig.structs import Location, PoolProps, fields

# Types of nodes; attributes of the memory of graphs; operations on words; how a wait compares.
KERNEL, MEMCPY, MEMSET, HOST, CHILD, EMPTY, WAIT, RECORD, ALLOC, FREE, BATCH = 0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12
USED, USED_HIGH, RESERVED, RESERVED_HIGH = range(4)
WAIT_32, WRITE_32, BARRIER, WAIT_64, WRITE_64 = 1, 2, 6, 4, 5
AT_LEAST, EQUAL, ANY_BIT, NEITHER = range(4)
PINNED, DEVICE = 1, 1


class Kernel(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = fields(
        func=c_void_p, grid=c_uint * 3, block=c_uint * 3, shared=c_uint, parameters=c_void_p, extra=c_void_p,
        kern=c_void_p, ctx=c_void_p,
    )  # fmt: skip


class Memset(Structure):
    """CUDA_MEMSET_NODE_PARAMS_v2."""

    _fields_ = fields(
        dst=c_uint64, pitch=c_size_t, value=c_uint, element=c_uint, width=c_size_t, height=c_size_t, ctx=c_void_p
    )


class Host(Structure):
    """CUDA_HOST_NODE_PARAMS."""

    _fields_ = fields(call=HOST_FUNCTION, data=c_void_p)


class Operation(Structure):
    """CUstreamBatchMemOpParams: a wait or a write."""

    _fields_ = fields(operation=c_int, address=c_uint64, value=c_uint64, flags=c_uint, alias=c_uint64, rest=c_uint64)


class Batch(Structure):
    """CUDA_BATCH_MEM_OP_NODE_PARAMS."""

    _fields_ = fields(ctx=c_void_p, count=c_uint, operations=c_void_p, flags=c_uint)


class Allocation(Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = fields(pool=PoolProps, access=c_void_p, access_count=c_size_t, bytes=c_size_t, address=c_uint64)


class Anything(Union):
    """The union of CUgraphNodeParams."""

    _fields_ = fields(
        bytes=c_ubyte * 232, kernel=Kernel, memset=Memset, host=Host, child=c_void_p, event=c_void_p, alloc=Allocation,
        free=c_uint64, batch=Batch,
    )  # fmt: skip


class Params(Structure):
    """CUgraphNodeParams."""

    _fields_ = fields(type=c_int, reserved=c_int * 3, of=Anything, end=c_uint64)


class Updated(Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = fields(result=c_int, node=c_void_p, source=c_void_p)


class Instantiation(Structure):
    """CUDA_GRAPH_INSTANTIATE_PARAMS."""

    _fields_ = fields(flags=c_uint64, stream=c_void_p, node=c_void_p, result=c_int)


def new_graph() -> c_void_p:
    """Create an empty graph."""
    graph = c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    return graph


def on(*nodes: c_void_p) -> tuple[object, c_size_t]:
    """Return dependencies in the form that the calls take."""
    return (c_void_p * len(nodes))(*[node.value for node in nodes]) if nodes else None, c_size_t(len(nodes))


def kernel_params(module: c_void_p, name: str) -> Kernel:
    """Return the parameters of a kernel of one block."""
    return Kernel(kernel(module, name).value, (1, 1, 1), (32, 1, 1))


def add_kernel(graph: c_void_p, module: c_void_p, name: str, *after: c_void_p) -> c_void_p:
    """Add a kernel node."""
    node = c_void_p()
    ok(cuda.cuGraphAddKernelNode_v2(byref(node), graph, *on(*after), byref(kernel_params(module, name))))
    return node


def add(name: str, graph: c_void_p, argument: object, *after: c_void_p) -> c_void_p:
    """Add a node by the call of this name, which takes one argument."""
    node = c_void_p()
    ok(cuda[name](byref(node), graph, *on(*after), argument))
    return node


def allocation(size: int) -> Allocation:
    """Return the parameters of an allocation on device 0."""
    return Allocation(PoolProps(PINNED, 0, Location(DEVICE, 0)), bytes=size)


def operations(*words: tuple[int, int, int, int]) -> object:
    """Return operations on words. Each is: the operation, the address, the value, and how a wait compares."""
    return (Operation * len(words))(*[Operation(*word) for word in words])


def batch(array: object, context: c_void_p) -> Batch:
    """Return the parameters of a node with these operations."""
    return Batch(context, len(array), ctypes.cast(array, c_void_p), 0)  # type: ignore[arg-type]


def instantiate(graph: c_void_p, flags: int = 0) -> c_void_p:
    """Make an executable."""
    executable = c_void_p()
    ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(flags)))
    return executable


def elsewhere(call: Callable[[], Any]) -> Any:
    """Call in another thread with this thread's context, and return the result."""
    context = c_void_p()
    ok(cuda.cuCtxGetCurrent(byref(context)))
    with ThreadPoolExecutor(1, initializer=lambda: ok(cuda.cuCtxSetCurrent(context))) as thread:
        return thread.submit(call).result()


def run(executable: c_void_p, stream: c_void_p) -> None:
    """Launch an executable and wait for it."""
    ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuStreamSynchronize(stream))


def graph_memory(which: int, device: int = 0) -> int:
    """Return one attribute of the device's memory for graphs."""
    value = c_uint64()
    ok(cuda.cuDeviceGetGraphMemAttribute(device, which, byref(value)))
    return value.value


def nodes_of(graph: c_void_p) -> list[int]:
    """Return the graph's nodes."""
    count = c_size_t()
    ok(cuda.cuGraphGetNodes(graph, None, byref(count)))
    nodes = (c_void_p * count.value)()
    ok(cuda.cuGraphGetNodes(graph, nodes, byref(count)))
    return list(nodes)


def type_of(node: int) -> int:
    """Return a node's type."""
    kind = c_int()
    ok(cuda.cuGraphNodeGetType(c_void_p(node), byref(kind)))
    return kind.value
