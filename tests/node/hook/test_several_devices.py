"""One launch onto several devices takes no turn on any of them, and is counted as passed."""

from pathlib import Path

from simgpu_fixtures import NewGpu

from rig.arbiter import Arbiter
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
