"""Test the drain of work in a context that is not current."""

from pathlib import Path

import pytest
from hooklab import run
from metered import neighbour

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.script import script

OTHER = """
other, current = c_void_p(), c_void_p()
function = kernel(start(), "own_500us")
ok(cuda.cuCtxGetCurrent(byref(current)))
ok(cuda.cuCtxCreate_v2(byref(other), 0, 0))
module, far, memory = c_void_p(), new_stream(), allocate(1 << 20)
ok(cuda.cuModuleLoadData(byref(module), b"\\x7fELF" + bytes(64)))
far_function = kernel(module, "far_500us")
ok(cuda.cuCtxSetCurrent(current))
"""

WAYS = {
    "memset": "ok(cuda.cuMemsetD8Async(c_uint64(memory), 0, c_size_t(1 << 20), far))",
    "kernel": "ok(launch(far_function, far))",
    "copy": "ok(cuda.cuMemcpyDtoDAsync_v2(c_uint64(memory), c_uint64(memory + (1 << 19)), c_size_t(1 << 18), far))",
}

GOES_ON = """
end = time.monotonic() + 1
while time.monotonic() < end:
    for _ in range(4):
        ok(launch(function))
    ok(cuda.cuCtxSynchronize())
print("ended")
"""


def beside_a_neighbour(arbiter: Arbiter, make_simgpu: MakeSimgpu, directory: Path, body: str) -> None:
    """Run a program for a second beside another share, with a hand-off of the device every few milliseconds."""
    gpu = make_simgpu("1xH200")
    other, share = arbiter.share(directory / "other"), arbiter.share(directory / "share")
    with neighbour(gpu, other):
        done = run(script(body), gpu.env | share.env)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    turns = arbiter.native.read_turns(0, 10_000)
    drains = sorted(turn.drained_ns - turn.closed_ns for turn in turns)
    assert share.usage(0).turns > 20, turns
    assert drains[len(drains) * 9 // 10] < 10_000_000, drains


@pytest.mark.parametrize("way", WAYS)
def test_work_for_a_context_that_is_not_current_does_not_hold_the_turn(
    way: str, arbiter: Arbiter, make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    body = OTHER + WAYS[way] + GOES_ON
    beside_a_neighbour(arbiter, make_simgpu, tmp_path, body)
