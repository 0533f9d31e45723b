"""Test that programs with stream capture see no difference with the hook; a graph is metered as one, and learned anew.

The agent is real, and another share saturates the device, so that turns end and keepers drain and record markers all
the time. Each scenario prints the results of all its calls; the runs with and without the hook must print the same.
"""

import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_fixtures import agents
from simgpu_fixtures import NewGpu

from rig.agent import RunningAgent, metered, program
from rig.arbiter import Arbiter
from rig.gpu import inherited
from rig.script import script
from rig.until import until
from sharepod.proto import v1_pb2 as pb

MODES = ["GLOBAL", "THREAD_LOCAL", "RELAXED"]
# Event records take long, so that an event which must not come between their checks and the record does come there.
SLOW_RECORDS = {"SIMGPU_RECORD_COST_NS": "500000"}

PREPARE = """
import threading
from rig.graphs import *
module, context = start(), c_void_p()
ok(cuda.cuCtxGetCurrent(byref(context)))
f = kernel(module, "k_4us")
stream, other, blocking, event = new_stream(), new_stream(), new_stream(0), new_event()
graph, status = c_void_p(), c_int()
PER_THREAD = c_void_p(2)

def own(name, *arguments):
    return cuda[name + "_ptsz"](*arguments)

def launch_own():
    return own("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, None, None)

def captured(into=None):
    result = cuda.cuStreamEndCapture(into or stream, byref(graph))
    count = len(nodes_of(graph)) if result == 0 else None
    if result == 0:
        ok(cuda.cuGraphDestroy(graph))
    return result, count

def allocates():
    address = c_uint64()
    result = cuda.cuMemAlloc_v2(byref(address), c_size_t(4096))
    return result or freed_relaxed(address)

def freed_relaxed(address):
    mode = c_int(RELAXED)
    ok(cuda.cuThreadExchangeStreamCaptureMode(byref(mode)))
    result = cuda.cuMemFree_v2(address)
    ok(cuda.cuThreadExchangeStreamCaptureMode(byref(mode)))
    return result

class Elsewhere:
    # A thread with the same context that does one thing again and again.
    def __init__(self, again):
        self.results, self.end, self.again = set(), False, again
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
    def run(self):
        ok(cuda.cuCtxSetCurrent(context))
        self.results.add(self.again())
        while not self.end:
            self.results.add(self.again())
    def stop(self):
        self.end = True
        self.thread.join()
        return sorted(self.results)

def ready():
    # Work behind us, so that keepers and lanes are there. Behind a long kernel, so that the short one's length is known
    # however slow records are: the launching thread then leaves the marking to the keeper.
    for _ in range(3):
        ok(launch(kernel(module, "long_5ms"), stream)); ok(launch(f, stream)); ok(launch(f, stream))
        ok(launch(f, other)); ok(launch(f, blocking)); ok(launch(f))
        ok(cuda.cuCtxSynchronize())
"""


@pytest.fixture(scope="module")
def contended() -> Iterator[RunningAgent]:
    """Run an agent on a device that another share keeps busy."""
    with agents() as make:
        agent = make("--simulate", "1xH200").start()
        with program(metered(agent.register(50, name="rival", device="0"))):
            yield agent


def output(answer: pb.RegisterShareResponse, text: str, *, hook: bool) -> str:
    """Run a scenario to its end, in a share or without the hook on the same device; return what it printed."""
    bare = {name: value for name, value in answer.environment.items() if not name.startswith("SHAREPOD_")}
    env = inherited() | (metered(answer) if hook else bare) | SLOW_RECORDS
    command = script(PREPARE + textwrap.dedent(text))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


SCENARIOS = {
    # Each scenario runs in every mode; MODE stands for the mode.
    "the program's own unsafe calls": """
        ready()
        for call in (allocates, lambda: cuda.cuStreamSynchronize(other), cuda.cuCtxSynchronize,
                     lambda: cuda.cuEventQuery(event), lambda: cuda.cuEventSynchronize(event),
                     lambda: cuda.cuStreamQuery(stream), lambda: cuda.cuStreamQuery(other)):
            ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
            print(launch(f, stream), call(), launch(f, stream), *captured(), launch(f, stream))
        ok(cuda.cuCtxSynchronize())
        """,
    "unsafe calls of another thread": """
        ready()
        for call in (allocates, lambda: cuda.cuStreamSynchronize(other), lambda: cuda.cuEventQuery(event),
                     lambda: cuda.cuEventSynchronize(event), lambda: launch(f, other), lambda: launch(f),
                     launch_own, lambda: own("cuStreamSynchronize", None),
                     lambda: cuda.cuEventRecord(event, other)):
            ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
            print(launch(f, stream), elsewhere(call), launch(f, stream), *captured())
        """,
    "calls about memory, of another thread and its own": """
        ready()
        pool, address, pitch, free, total = c_void_p(), c_uint64(), c_size_t(), c_size_t(), c_size_t()
        ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
        memory, data = c_uint64(allocate(4096)), bytes(4096)
        def given_back(result, *more):
            if result:
                return result
            return cuda.cuMemFreeAsync(address, *more) if more else freed_relaxed(address)
        page = c_size_t(4096)
        for call in (lambda: given_back(cuda.cuMemAllocAsync(byref(address), page, other), other),
                     lambda: given_back(cuda.cuMemAllocFromPoolAsync(byref(address), page, pool, other), other),
                     lambda: given_back(cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), page, c_size_t(2), 4)),
                     lambda: given_back(cuda.cuMemAllocManaged(byref(address), page, 1)),
                     lambda: cuda.cuMemGetInfo_v2(byref(free), byref(total)),
                     lambda: cuda.cuMemPoolTrimTo(pool, c_size_t(0)), lambda: cuda.cuDeviceGraphMemTrim(0),
                     cuda.cuCtxSynchronize, lambda: cuda.cuStreamQuery(other), lambda: cuda.cuStreamQuery(stream),
                     lambda: cuda.cuMemcpyHtoD_v2(memory, data, page),
                     lambda: cuda.cuMemcpyHtoDAsync_v2(memory, data, page, other)):
            for where in (elsewhere, lambda call: call()):
                ok(cuda.cuCtxSynchronize())
                ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
                print(launch(f, stream), where(call), launch(f, stream), *captured())
        """,
    "launches of other threads go on while captures open and close": """
        ready()
        seen = set()
        for call in (lambda: launch(f, other), launch_own, lambda: launch(f, blocking), lambda: launch(f)):
            threads = [Elsewhere(call), Elsewhere(call)]
            for _ in range(60):
                ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
                seen.add((launch(f, stream), launch(f, stream), *captured()))
            print(seen, *[thread.stop() for thread in threads])
        """,
    "a blocking stream captures right behind work in the legacy stream": """
        ready()
        seen = set()
        for n in range(150):
            ok(launch(f)); ok(launch(f, blocking)); ok(launch_own())
            time.sleep(n % 8 * 0.0001)
            ok(cuda.cuStreamBeginCapture_v2(blocking, MODE))
            seen.add((launch(f, blocking), launch_own()))
            time.sleep(0.0007)
            seen.add((launch(f, blocking), *captured(blocking)))
        print(seen)
        """,
    "a stream joins while the keeper marks work in it": """
        ready()
        seen = set()
        for n in range(150):
            ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
            first = launch(f, other), launch(f, other), launch(f, stream), cuda.cuEventRecord(event, stream)
            time.sleep(n % 8 * 0.0001)
            then = cuda.cuStreamWaitEvent(other, event, 0), launch(f, other)
            time.sleep(0.0007)
            last = cuda.cuEventRecord(event, other), cuda.cuStreamWaitEvent(stream, event, 0)
            seen.add((first, then, last, launch(f, stream), *captured()))
        print(seen)
        """,
    "a capture begins while the keeper waits for a long kernel": """
        long = kernel(module, "long_30ms")
        for where in (other, blocking, None):
            ok(launch(long, where))
            time.sleep(0.002)
            ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
            print(launch(f, stream), launch(f, stream), *captured())
        ok(launch(long, stream))
        ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
        time.sleep(0.04)
        print(launch(f, stream), *captured())
        """,
    "a fork into other streams": """
        ready()
        for _ in range(5):
            ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
            print(launch(f, stream), cuda.cuEventRecord(event, stream), cuda.cuStreamWaitEvent(other, event, 0),
                  cuda.cuStreamIsCapturing(other, byref(status)), status.value,
                  [launch(f, other) for _ in range(3)], launch(f, blocking),
                  cuda.cuEventRecord(event, other), cuda.cuStreamWaitEvent(stream, event, 0), launch(f, stream),
                  *captured())
        """,
    "a fork that is not joined, and one that is made from another thread": """
        ready()
        ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
        ok(launch(f, stream))
        ok(cuda.cuEventRecord(event, stream))
        print(elsewhere(lambda: (cuda.cuStreamWaitEvent(other, event, 0), launch(f, other), launch(f, other))))
        print(cuda.cuStreamEndCapture(other, byref(graph)), *captured())
        print(launch(f, other), cuda.cuStreamSynchronize(other))
        """,
    "the per-thread stream": """
        ready()
        ok(launch_own())
        ok(own("cuStreamSynchronize", None))
        for mine in (None, PER_THREAD):
            ok(launch_own())
            ok(own("cuStreamBeginCapture_v2", mine, MODE))
            print([launch_own() for _ in range(3)], launch(f, other), elsewhere(launch_own), launch(f))
            result = own("cuStreamEndCapture", mine, byref(graph))
            print(result, len(nodes_of(graph)) if not result else None)
        """,
    "the legacy stream": """
        ready()
        for where in (None, c_void_p(1)):
            print(cuda.cuStreamBeginCapture_v2(where, MODE), launch(f, where))
        for where, call in ((stream, lambda: launch(f)), (blocking, lambda: launch(f)),
                            (blocking, lambda: elsewhere(lambda: launch(f)))):
            ok(cuda.cuStreamBeginCapture_v2(where, MODE))
            print(launch(f, where), call(), launch(f, where), *captured(where))
        print(launch(f))
        """,
    "a capture into a graph that is there": """
        ready()
        there = new_graph()
        first = add_kernel(there, module, "k_1us")
        for _ in range(3):
            ok(cuda.cuStreamBeginCaptureToGraph(stream, there, byref(first), None, c_size_t(1), MODE))
            print(launch(f, stream), launch(f, other), launch(f, stream),
                  cuda.cuStreamEndCapture(stream, byref(graph)), graph.value == there.value, len(nodes_of(there)))
        run(instantiate(there), stream)
        """,
    "captures that end early, twice or not at all": """
        ready()
        print(cuda.cuStreamEndCapture(stream, byref(graph)))
        ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
        print(cuda.cuStreamBeginCapture_v2(stream, MODE), launch(f, stream), *captured())
        ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
        print(elsewhere(lambda: cuda.cuStreamEndCapture(stream, byref(graph))), *captured())
        gone = new_stream()
        ok(launch(f, gone))
        ok(cuda.cuStreamBeginCapture_v2(gone, MODE))
        print(launch(f, gone), cuda.cuStreamDestroy_v2(gone), allocates(), launch(f, stream))
        ok(cuda.cuCtxSynchronize())
        """,
    "a graph launch into a capture": """
        ready()
        ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
        ok(launch(f, stream))
        ok(cuda.cuStreamEndCapture(stream, byref(graph)))
        executable = instantiate(graph)
        ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
        print(cuda.cuGraphLaunch(executable, stream), cuda.cuGraphLaunch(executable, other), *captured())
        """,
    "stream-ordered memory and copies in a capture": """
        ready()
        address, memory, host = c_uint64(), c_uint64(allocate(4096)), (c_uint32 * 4)()
        ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
        print(cuda.cuMemAllocAsync(byref(address), c_size_t(4096), stream),
              cuda.cuMemsetD32Async(address, 7, c_size_t(4), stream),
              cuda.cuMemcpyDtoDAsync_v2(memory, address, c_size_t(16), stream),
              cuda.cuMemcpyDtoHAsync_v2(host, memory, c_size_t(16), stream),
              cuda.cuMemFreeAsync(address, stream), cuda.cuMemFreeAsync(memory, stream))
        ok(cuda.cuStreamEndCapture(stream, byref(graph)))
        print([type_of(node) for node in nodes_of(graph)])
        run(instantiate(graph), stream)
        print(list(host))
        """,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_program_that_captures_sees_what_it_sees_without_the_hook(
    contended: RunningAgent, scenario: str, mode: str
) -> None:
    text = textwrap.dedent(SCENARIOS[scenario]).replace("MODE", mode)
    answer = contended.register(40, name="captures", device="0")
    try:
        plain = output(answer, text, hook=False)
        assert output(answer, text, hook=True) == plain
        assert plain.strip()
    finally:
        contended.stub.ReleaseShare(pb.ReleaseShareRequest(share="captures"))


WAIT_ELSEWHERE = """
ready()
seen, capturing, results, nothing = threading.Event(), threading.Event(), [], HOST_FUNCTION(lambda _: None)
def wait_elsewhere():
    ok(cuda.cuCtxSetCurrent(context))
    ok(launch(f, other))
    ok(cuda.cuEventRecord(event, other))
    ok(cuda.cuEventSynchronize(event))  # this thread has seen the end of all that it launched
    seen.set()
    capturing.wait(20)
    results.append(cuda.cuLaunchHostFunc(other, nothing, None))
thread = threading.Thread(target=wait_elsewhere)
thread.start()
assert seen.wait(20)
ok(cuda.cuStreamBeginCapture_v2(stream, GLOBAL))
print(launch(f, other))
capturing.set()
thread.join()
print(results, launch(f, stream), *captured())
"""


def test_a_wait_that_another_thread_notes_does_not_end_a_capture() -> None:
    with agents() as make:  # nobody else wants the device: only then the driver is asked instead of marking the work
        answer = make("--simulate", "1xH200").start().register(50, name="alone", device="0")
        plain = output(answer, WAIT_ELSEWHERE, hook=False)
        assert plain == "0\n[0] 0 0 1\n"
        assert output(answer, WAIT_ELSEWHERE, hook=True) == plain


OVER = """
from rig.structs import Array3D, Location, Prop
ready()
pool, address, pitch, made = c_void_p(), c_uint64(), c_size_t(), c_void_p()
ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(2**64 - 1))))  # it keeps what it has
ok(cuda.cuMemAllocAsync(byref(address), c_size_t(64 << 20), other))
kept = c_uint64()
def keep():
    ok(cuda.cuMemAllocAsync(byref(kept), c_size_t(64 << 20), other))
    ok(cuda.cuMemFreeAsync(kept, other))
    ok(cuda.cuStreamSynchronize(other))
size = c_size_t(SIZE)
array = Array3D(16384, 16384, SIZE >> 32, 0x20, 4, 0)  # of 16 bytes
for call in (lambda: cuda.cuMemAlloc_v2(byref(address), size),
             lambda: cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), c_size_t(1 << 20), c_size_t(SIZE >> 20), 4),
             lambda: cuda.cuArray3DCreate_v2(byref(made), byref(array)),
             lambda: cuda.cuMemCreate(byref(made), size, byref(Prop(1, 0, Location(1, 0))), c_uint64(0)),
             lambda: cuda.cuMemAllocAsync(byref(address), size, other)):
    for where in (elsewhere, lambda call: call()):
        keep()
        ok(cuda.cuStreamBeginCapture_v2(stream, MODE))
        print(launch(f, stream), where(call), launch(f, stream), *captured())
        print(call())
"""


@pytest.mark.parametrize("mode", MODES)
def test_over_its_cap_a_program_that_captures_sees_what_it_sees_on_a_device_that_is_too_small(
    contended: RunningAgent, mode: str
) -> None:
    text = OVER.replace("MODE", mode)
    answer = contended.register(40, memory=256 << 20, name="small", device="0")
    try:
        too_much = output(answer, text.replace("SIZE", str(1 << 40)), hook=False)  # too much for the whole device
        assert output(answer, text.replace("SIZE", str(1 << 30)), hook=True) == too_much
        results = [line.split()[1] for line in too_much.splitlines()[::2]]
        forbidden = {"GLOBAL": ["900", "900"], "THREAD_LOCAL": ["2", "900"], "RELAXED": ["2", "2"]}[mode]
        assert results == [*forbidden * 3, *["2"] * 4]
    finally:
        contended.stub.ReleaseShare(pb.ReleaseShareRequest(share="small"))


def test_what_is_captured_is_neither_gated_nor_billed_and_the_graph_launch_is(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path)
    arbiter.native.pause_share(share.handle, True)
    text = """
        # The share is paused: a gated launch would wait until the end of the test.
        ok(cuda.cuStreamBeginCapture_v2(stream, GLOBAL))
        ok(cuda.cuEventRecord(event, stream))
        ok(cuda.cuStreamWaitEvent(other, event, 0))
        for _ in range(50):
            ok(launch(f, stream)); ok(launch(f, other))
        ok(cuda.cuEventRecord(event, other))
        ok(cuda.cuStreamWaitEvent(stream, event, 0))
        ok(cuda.cuStreamEndCapture(stream, byref(graph)))
        print(len(nodes_of(graph)), flush=True)
        input()
        executable = instantiate(graph)
        for _ in range(7):
            run(executable, stream)
        """
    running = new_gpu().start(PREPARE + textwrap.dedent(text), **share.env)
    assert running.line() == "100"
    assert (share.usage().launches, share.usage().used_ns) == (0, 0)
    arbiter.native.pause_share(share.handle, False)
    running.tell("")
    assert running.lines() == []
    until(lambda: share.usage().processes == 0)
    assert share.usage().launches == 7
