"""Programs of several devices: each launch counts where it runs; one onto several of them is counted as passed."""

import json
from pathlib import Path

from metered import run_metered
from simgpu_fixtures import NewGpu

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.until import until

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
    # The arbiter looks at a process without a turn now and then.
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
