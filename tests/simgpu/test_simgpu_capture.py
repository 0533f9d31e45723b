"""What may and may not happen while a stream captures, by the driver's rules."""

from collections.abc import Callable

import pytest
from simulated_gpu import MakeSimgpu

Run = Callable[..., str]

PREPARE = """
    import threading
    module = start()
    f = kernel(module, "k_5us")
    stream, other, blocking, event = new_stream(), new_stream(), new_stream(0), new_event()
    outside, address, graph, status = new_event(), c_uint64(), c_void_p(), c_int()
    ok(cuda.cuEventRecord(outside, other))

    def elsewhere(call):
        results = []
        thread = threading.Thread(target=lambda: results.append(call_with_context(call)))
        thread.start()
        thread.join()
        return results[0]

    context = c_void_p()
    ok(cuda.cuCtxGetCurrent(byref(context)))

    def call_with_context(call):
        ok(cuda.cuCtxSetCurrent(context))
        return call()

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
    # mode, who calls, what, its result, the result of ending the capture
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
    ("RELAXED", ONE, "lambda: cuda.cuEventRecord(event, stream) or cuda.cuEventQuery(event)", 907, 0),
    ("RELAXED", ONE, "lambda: cuda.cuEventRecord(event, stream) or cuda.cuEventSynchronize(event)", 907, 0),
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
    make_simgpu: MakeSimgpu, run: Run, mode: str, who: str, what: str, result: int, at_end: int
) -> None:
    output = run(
        make_simgpu(),
        f"{PREPARE}\n    begin({mode})\n    call = {what}\n    print({who})\n    exchange(0)\n    print(end())",
    )
    assert [int(line) for line in output.split()] == [result, at_end]


def test_the_legacy_stream_conflicts_with_a_capturing_blocking_stream(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        f"""{PREPARE}
    begin(RELAXED, blocking)
    print(cuda.cuStreamIsCapturing(None, byref(status)))
    print(cuda.cuStreamIsCapturing(blocking, byref(status)), status.value)
    print(launch(f), launch(f, blocking), end(blocking), graph.value)
    """,
    )
    assert output.split() == ["906", "0", "1", "906", "901", "901", "None"]


def test_a_branch_that_is_not_joined_ends_the_capture_with_an_error(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        f"""{PREPARE}
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
    """,
    )
    assert output.split() == ["903", "901", "904", "None"]


def test_two_captures_may_not_merge(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        f"""{PREPARE}
    begin(GLOBAL)
    begin(GLOBAL, other)
    ok(cuda.cuEventRecord(event, other))
    print(cuda.cuStreamWaitEvent(stream, event, 0), end(), end(other))
    """,
    )
    assert output.split() == ["902", "901", "901"]


def test_captured_launches_do_not_run_and_the_graph_does_what_they_would(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        module = start()
        stream, graph, executable, count = new_stream(), c_void_p(), c_void_p(), c_size_t()
        memory, seen = allocate(64), (c_uint32 * 16)()
        calls = []
        called = HOST_FUNCTION(lambda _: calls.append(1))
        ok(cuda.cuStreamBeginCapture_v2(stream, GLOBAL))
        ok(cuda.cuMemsetD32Async(c_uint64(memory), 7, c_size_t(16), stream))
        ok(launch(kernel(module, "k_10us"), stream))
        ok(cuda.cuLaunchHostFunc(stream, called, None))
        ok(cuda.cuStreamEndCapture(stream, byref(graph)))
        ok(cuda.cuMemcpyDtoH_v2(seen, c_uint64(memory), c_size_t(64)))
        before = list(seen)
        ok(cuda.cuGraphGetNodes(graph, None, byref(count)))
        ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
        ok(cuda.cuGraphLaunch(executable, stream))
        ok(cuda.cuStreamSynchronize(stream))
        ok(cuda.cuMemcpyDtoH_v2(seen, c_uint64(memory), c_size_t(64)))
        print(count.value, set(before), set(seen), len(calls))
        """,
    )
    assert output == "3 {0} {7} 1\n"
