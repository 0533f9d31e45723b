"""Test what the driver's rules allow and forbid while a stream captures."""

import pytest
from simgpu_fixtures import NewGpu


@pytest.fixture
def prelude() -> str:
    return """
from rig.graphs import *
from rig.graphs import run as complete
module = start()
f = kernel(module, "k_5us")
stream, other, blocking, event = new_stream(), new_stream(), new_stream(0), new_event()
outside, address, graph, status = new_event(), c_uint64(), c_void_p(), c_int()
ok(cuda.cuEventRecord(outside, other))

def exchange(mode):
    value = c_int(mode)
    ok(cuda.cuThreadExchangeStreamCaptureMode(byref(value)))

def begin(mode, where=None):
    ok(cuda.cuStreamBeginCapture_v2(where or stream, mode))
    ok(launch(f, where or stream))

def end(where=None):
    return cuda.cuStreamEndCapture(where or stream, byref(graph))

def allocates():
    return cuda.cuMemAlloc_v2(byref(address), c_size_t(4096))

def relaxed(call):
    exchange(RELAXED)
    return call()
"""


ONE, ELSEWHERE = "call()", "elsewhere(call)"
RULES = [
    # mode, which thread calls, the call, its result, the result of ending the capture
    ("GLOBAL", ONE, "allocates", 900, 901),
    ("THREAD_LOCAL", ONE, "allocates", 900, 901),
    ("RELAXED", ONE, "allocates", 0, 0),
    ("GLOBAL", ELSEWHERE, "allocates", 900, 901),
    ("THREAD_LOCAL", ELSEWHERE, "allocates", 0, 0),
    ("RELAXED", ELSEWHERE, "allocates", 0, 0),
    ("GLOBAL", ELSEWHERE, "lambda: relaxed(allocates)", 0, 0),
    ("GLOBAL", ONE, "lambda: relaxed(allocates)", 0, 0),
    ("GLOBAL", ONE, "lambda: cuda.cuStreamSynchronize(other)", 900, 901),
    ("RELAXED", ONE, "lambda: cuda.cuStreamSynchronize(other)", 0, 0),
    ("RELAXED", ONE, "lambda: cuda.cuStreamSynchronize(stream)", 900, 901),
    ("RELAXED", ONE, "lambda: cuda.cuStreamQuery(stream)", 900, 901),
    ("RELAXED", ONE, "cuda.cuCtxSynchronize", 900, 901),
    ("GLOBAL", ONE, "lambda: cuda.cuEventQuery(outside)", 900, 901),
    ("RELAXED", ONE, "lambda: cuda.cuEventQuery(outside)", 0, 0),
    ("RELAXED", ONE, "lambda: cuda.cuEventRecord(event, stream) or cuda.cuEventQuery(event)", 907, 901),
    ("RELAXED", ONE, "lambda: cuda.cuEventRecord(event, stream) or cuda.cuEventSynchronize(event)", 907, 901),
    ("THREAD_LOCAL", ELSEWHERE, "lambda: cuda.cuEventQuery(outside)", 0, 0),
    ("GLOBAL", ELSEWHERE, "lambda: cuda.cuEventSynchronize(outside)", 900, 901),
    ("GLOBAL", ELSEWHERE, "lambda: cuda.cuEventRecord(outside, other)", 0, 0),
    ("GLOBAL", ELSEWHERE, "lambda: launch(f, other)", 0, 0),
    ("GLOBAL", ONE, "lambda: cuda.cuStreamWaitEvent(stream, outside, 0)", 905, 901),
    ("GLOBAL", ONE, "lambda: launch(f, other)", 0, 0),
    ("GLOBAL", ONE, "lambda: launch(f)", 0, 0),
    ("GLOBAL", ELSEWHERE, "end", 908, 0),
    ("RELAXED", ELSEWHERE, "end", 0, 401),
    ("GLOBAL", ONE, "lambda: cuda.cuStreamBeginCapture_v2(None, GLOBAL)", 900, 0),
    ("GLOBAL", ONE, "lambda: cuda.cuStreamBeginCapture_v2(stream, GLOBAL)", 401, 901),
    ("GLOBAL", ONE, "lambda: end(other)", 401, 0),
]


@pytest.mark.parametrize(("mode", "who", "what", "result", "at_end"), RULES)
def test_a_call_during_capture_gets_the_real_error(
    new_gpu: NewGpu, mode: str, who: str, what: str, result: int, at_end: int
) -> None:
    lines = new_gpu().play(f"""
        begin({mode})
        call = {what}
        print({who})
        exchange(0)
        print(end())
        """)
    assert [int(line) for line in lines] == [result, at_end]


def test_the_legacy_stream_conflicts_with_a_capturing_blocking_stream(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        begin(RELAXED, blocking)
        print(cuda.cuStreamIsCapturing(None, byref(status)))
        print(cuda.cuStreamIsCapturing(blocking, byref(status)), status.value)
        print(launch(f), launch(f, blocking), end(blocking), graph.value)
        """)
    assert lines == ["906", "0 1", "906 901 901 None"]


def test_a_branch_that_is_not_joined_ends_the_capture_with_an_error(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        begin(GLOBAL)
        ok(cuda.cuEventRecord(event, stream))
        ok(cuda.cuStreamWaitEvent(other, event, 0))
        ok(launch(f, other))
        print(cuda.cuStreamEndCapture(other, byref(graph)))
        print(end())
        begin(GLOBAL)
        ok(cuda.cuEventRecord(event, stream))
        ok(cuda.cuStreamWaitEvent(other, event, 0))
        ok(launch(f, other))
        print(end(), graph.value)
        """)
    assert lines == ["903", "901", "904 None"]


def test_two_captures_may_not_merge(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        begin(GLOBAL)
        begin(GLOBAL, other)
        ok(cuda.cuEventRecord(event, other))
        print(cuda.cuStreamWaitEvent(stream, event, 0), end(), end(other))
        """)
    assert lines == ["902 901 901"]


def test_captured_launches_do_not_run_and_the_graph_does_what_they_would(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        memory, seen, calls = allocate(64), (c_uint32 * 16)(), []
        called = HOST_FUNCTION(lambda _: calls.append(1))
        def words():
            ok(cuda.cuMemcpyDtoH_v2(seen, c_uint64(memory), c_size_t(64)))
            return set(seen)
        ok(cuda.cuStreamBeginCapture_v2(stream, GLOBAL))
        ok(cuda.cuMemsetD32Async(c_uint64(memory), 7, c_size_t(16), stream))
        ok(launch(f, stream))
        ok(cuda.cuLaunchHostFunc(stream, called, None))
        ok(end())
        before = words()
        complete(instantiate(graph), stream)
        print(len(nodes_of(graph)), before, words(), len(calls))
        """)
    assert lines == ["3 {0} {7} 1"]


def test_a_capture_goes_on_in_a_graph_that_is_there(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        there, status, held, count, on_ = new_graph(), c_int(), c_void_p(), c_size_t(), c_void_p()
        first = add_kernel(there, module, "k_1us")
        begin_to = cuda.cuStreamBeginCaptureToGraph
        ok(begin_to(stream, there, byref(first), None, c_size_t(1), GLOBAL))
        print(cuda.cuGraphInstantiateWithFlags(byref(graph), there, c_uint64(0)), cuda.cuGraphDestroy(there))
        ok(launch(f, stream))
        ok(cuda.cuStreamGetCaptureInfo_v2(stream, byref(status), None, byref(held), None, None))
        print(status.value, held.value == there.value)
        print(end(), graph.value == there.value, len(nodes_of(there)))
        last = c_void_p(nodes_of(there)[-1])
        ok(cuda.cuGraphNodeGetDependencies(last, byref(on_), byref(count := c_size_t(1))))
        print(on_.value == first.value)
        ok(begin_to(stream, there, None, None, c_size_t(0), GLOBAL))
        print(allocates(), end(), graph.value, len(nodes_of(there)))
        stranger = add_kernel(new_graph(), module, "k_1us")
        print(begin_to(stream, there, byref(stranger), None, c_size_t(1), GLOBAL))
        """)
    assert lines == ["1 1", "1 True", "0 True 2", "True", "900 901 None 2", "1"]


def test_the_next_nodes_dependencies_are_told_and_changed(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        held, nodes, edges, count, ident = c_void_p(), c_void_p(), c_void_p(), c_size_t(), c_uint64()
        def info():
            more = [byref(value) for value in (status, ident, held, nodes, edges, count)]
            ok(cuda.cuStreamGetCaptureInfo_v3(stream, *more))
            return list((c_void_p * count.value).from_address(nodes.value))
        update, one = cuda.cuStreamUpdateCaptureDependencies_v2, c_size_t(1)
        print(update(stream, None, None, c_size_t(0), 0))
        begin(GLOBAL)
        first = info()
        own = add_kernel(held, module, "k_1us", c_void_p(first[0]))
        ok(update(stream, byref(own), None, one, 0))
        print(info() == [*first, own.value])
        ok(update(stream, byref(own), None, one, 1))
        print(info() == [own.value], status.value, ident.value > 0)
        ok(launch(f, stream))
        print(end(), len(nodes_of(graph)))
        """)
    assert lines == ["401", "True", "True 1 True", "0 3"]


def test_external_events_are_nodes_and_a_graph_launch_is_a_child(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        last, allocated = new_event(), allocate(64)
        print(cuda.cuEventRecordWithFlags(event, stream, 1), cuda.cuStreamWaitEvent(stream, event, 1))
        begin(GLOBAL)
        ok(end())
        inner = instantiate(graph)
        begin(GLOBAL)
        ok(cuda.cuEventRecordWithFlags(event, stream, 1))
        ok(cuda.cuGraphLaunch(inner, stream))
        ok(cuda.cuEventRecordWithFlags(last, stream, 1))
        ok(cuda.cuStreamWaitEvent(stream, outside, 1))
        ok(cuda.cuStreamWriteValue32_v2(stream, c_uint64(allocated), 1, 0))
        ok(end())
        print([type_of(node) for node in nodes_of(graph)])
        complete(instantiate(graph), stream)
        print(round(elapsed_us(event, last)))
        """)
    *told, took_us = lines
    assert told == ["1 1", "[0, 7, 4, 7, 6, 12]"]
    assert int(took_us) >= 5, "the child's kernel ran between the two events"


@pytest.mark.parametrize("stream", ["c_void_p(2)", "c_void_p()"])
def test_a_threads_own_stream_is_captured_by_either_name(new_gpu: NewGpu, stream: str) -> None:
    lines = new_gpu().play(f"""
        mine = {stream}
        ok(cuda.cuStreamBeginCapture_v2_ptsz(mine, GLOBAL))
        ok(cuda.cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, mine, None, None))
        print(elsewhere(lambda: cuda.cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, mine, None, None)))
        print(cuda.cuStreamEndCapture_ptsz(mine, byref(graph)), len(nodes_of(graph)))
        """)
    assert lines == ["0", "0 1"]
