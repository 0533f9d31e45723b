"""Test programs on several devices: each launch counts where it runs; one onto several devices counts as passed."""

import json
from pathlib import Path

import pytest
from metered import run_metered
from simgpu_fixtures import NewGpu

from rig.arbiter import Arbiter, Share
from rig.gpu import MakeSimgpu, uuid
from rig.until import until
from sharepod.agent.shares.diagnostics import Kind
from sharepod.agent.shares.share import ShareClass, Terms

ROUNDS = 40
PROGRAM = f"""
class Part(ctypes.Structure):
    _fields_ = [("function", c_void_p), ("sizes", c_uint * 7), ("stream", c_void_p), ("parameters", c_void_p)]
parts = []
for device in (0, 1):
    function = kernel(start(device), "together_100us")
    parts.append(Part(function, (c_uint * 7)(1, 1, 1, 32, 1, 1, 0), new_stream(), None))
for _ in range({ROUNDS}):
    ok(cuda.cuLaunchCooperativeKernelMultiDevice((Part * 2)(*parts), 2, 0))
    for part in parts:
        ok(cuda.cuStreamSynchronize(c_void_p(part.stream)))
assert cuda.cuLaunchCooperativeKernelMultiDevice(None, 2, 0) == 1  # refused: not counted
print("ready", flush=True)
sys.stdin.read()
"""


def test_it_runs_on_every_device_unbilled_and_is_counted_on_the_current_one(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    gpu, share = new_gpu("2xH200"), arbiter.share(tmp_path, (0, 1))
    program = gpu.ready(PROGRAM, **share.env)
    # The arbiter looks at a process without a turn only now and then.
    until(lambda: share.usage(1).passed >= ROUNDS)
    assert program.lines() == []
    accounts = [share.usage(device) for device in (0, 1)]
    with gpu.truth() as truth:
        assert all(device.busy_ns >= ROUNDS * 99_000 for device in truth.devices())
    assert [account.passed for account in accounts] == [0, ROUNDS]
    assert [(account.launches, account.turns, account.used_ns) for account in accounts] == [(0, 0, 0)] * 2


IN_TURN = """
import random
chance, near, counts = random.Random(7), 0, [0, 0]
functions, contexts, streams, memory = [], [], [], []
for device in (0, 1):
    functions.append(kernel(start(device), "k_20us"))
    contexts.append(c_void_p())
    ok(cuda.cuCtxGetCurrent(byref(contexts[device])))
    streams.append([None, *(new_stream() for _ in range(90))])
    memory.append(allocate(64))
ok(cuda.cuCtxSetCurrent(contexts[near]))
for _ in range(4000):
    if chance.random() < 0.2:
        near = chance.randrange(2)
        ok(cuda.cuCtxSetCurrent(contexts[near]))
    device, place = chance.randrange(2), chance.randrange(91)
    if not place or chance.random() < 0.1:
        device, place = near, 0
    if chance.random() < 0.1:
        ok(cuda.cuMemcpyHtoD_v2(c_uint64(memory[near]), bytes(64), c_size_t(64)))
    ok(launch(functions[device], streams[device][place]))
    counts[device] += 1
    if place and device == near and chance.random() < 0.1:
        ok(cuda.cuStreamDestroy_v2(streams[device][place]))
        streams[device][place] = new_stream()
for context in contexts:
    ok(cuda.cuCtxSetCurrent(context))
    ok(cuda.cuCtxSynchronize())
print(counts)
"""


def test_launches_on_many_streams_of_two_devices_in_any_order_are_each_counted_where_they_run(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    done = run_metered(make_simgpu("2xH200"), tmp_path, IN_TURN, (0, 1))
    assert [account.launches for account in done.usage] == json.loads(done.stdout)


def test_a_device_is_known_by_its_uuid_in_small_and_in_capital_letters(new_gpu: NewGpu, tmp_path: Path) -> None:
    gpu = new_gpu("2xH200", SIMGPU_SEED=str(0xABCDEF09))
    names = [uuid(number).replace("0000-0000", "abcd-ef09") for number in (0, 1)]
    with Arbiter() as arbiter:
        devices = [arbiter.native.add_device(name) for name in (names[0], names[1].replace("abcd-ef", "ABCD-EF"))]
        terms = [(device, Terms(50_000, 100_000, 0)) for device in devices]
        handle = arbiter.native.add_share(str(tmp_path), terms, ShareClass.STANDARD, [])
        env = Share(handle, (0, 1), tmp_path, arbiter.native).env
        gpu.play("for n in (0, 1): ok(launch(kernel(start(n), 'k_20us'))); ok(cuda.cuCtxSynchronize())", **env)
        assert [arbiter.native.read_usage(handle, device).launches for device in (0, 1)] == [1, 1]


STREAMS = """
start()
places = []
def add():
    context, module = c_void_p(), c_void_p()
    ok(cuda.cuCtxCreate_v2(byref(context), 0, 0))
    ok(cuda.cuModuleLoadData(byref(module), b"\\x7fELF" + bytes(64)))
    places.append((context, kernel(module, "k_1us"), [new_stream() for _ in range(100)]))
def once():
    for context, function, streams in places:
        ok(cuda.cuCtxSetCurrent(context))
        for stream in streams:
            ok(launch(function, stream))
        ok(cuda.cuCtxSynchronize())
for _ in range(11):
    add()
once()  # 76 of them pass
ok(cuda.cuCtxDestroy_v2(places.pop(0)[0]))
once()  # there is room
add()
once()
time.sleep(0.3)  # no turn of ours tells what follows
for stream in places[-1][2][-76:]:
    ok(launch(places[-1][1], stream))
"""
THREADS = """
import threading
threading.stack_size(1 << 16)
function = kernel(start(), "k_1us")
context, go = c_void_p(), threading.Barrier(1101)
ok(cuda.cuCtxGetCurrent(byref(context)))
def work():
    ok(cuda.cuCtxSetCurrent(context))
    ok(launch(function))
    go.wait()  # until all of them have
threads = [threading.Thread(target=work) for _ in range(1100)]
for thread in threads:
    thread.start()
go.wait()
for thread in threads:
    thread.join()
for _ in range(10):  # there is room again
    thread = threading.Thread(target=lambda: (ok(cuda.cuCtxSetCurrent(context)), ok(launch(function))))
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(("body", "passed", "launches"), [(STREAMS, 3 * 76, 3276), (THREADS, 77, 1110)])
def test_what_is_beyond_the_tables_of_streams_and_threads_passes_and_is_counted_so(
    body: str, passed: int, launches: int, arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path)
    program = new_gpu().ready(
        body + "\nok(cuda.cuCtxSynchronize()); print('ready', flush=True); sys.stdin.read()", **share.env
    )
    until(lambda: share.usage().passed + share.usage().launches == launches)
    assert share.usage().passed == passed
    assert Kind.CROWDED in {diagnostic.kind for diagnostic in arbiter.native.read_diagnostics(share.handle)}
    assert program.lines() == []


ELSEWHERE = """
near, far = start(0), start(1)
function, stream = kernel(far, "far_20us"), new_stream()
ok(cuda.cuDevicePrimaryCtxRetain(byref(current := c_void_p()), 0))
ok(cuda.cuCtxSetCurrent(current))
for _ in range(5):
    ok(launch(function, stream))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_launch_into_a_stream_of_a_device_that_the_share_does_not_hold_is_none_of_its_own(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path, (0,))
    program = new_gpu("2xH200").ready(ELSEWHERE, **share.env)
    until(lambda: share.usage().processes == 1)
    assert (share.usage().launches, share.usage().passed) == (0, 0)
    assert Kind.CROWDED not in {diagnostic.kind for diagnostic in arbiter.native.read_diagnostics(share.handle)}
    assert program.lines() == []
