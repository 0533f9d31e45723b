"""Test streams and contexts that end while their work is under way or the keeper waits for their last marker."""

from pathlib import Path

import pytest
from metered import run_metered
from simgpu_fixtures import NewGpu

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.until import until
from sharepod.agent.shares.share import ShareState

ROUNDS = 300
PROGRAM = f"""
for round in range({ROUNDS}):
    f, stream = kernel(start(), "k_20us"), new_stream()
    for _ in range(5):
        ok(launch(f, stream))
    if round % 2:
        ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuStreamDestroy_v2(stream))
    ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
print("done")
"""


def test_no_marker_outlives_its_stream_or_its_context(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    done = run_metered(make_simgpu(), tmp_path, PROGRAM)
    assert done.stdout == "done\n"
    assert done.usage[0].used_ns >= ROUNDS * 5 * 20_000


@pytest.mark.parametrize("begin", ["", "ok(cuda.cuStreamBeginCapture_v2(stream, RELAXED))"])
def test_work_of_a_destroyed_stream_does_not_hold_the_turn_for_ever(
    make_simgpu: MakeSimgpu, tmp_path: Path, begin: str
) -> None:
    body = f"""
module, stream = start(), new_stream()
for number in range(40):  # each unknown, so each is marked alone: more markers than a stream may have
    ok(launch(kernel(module, f"unit{{number}}_1ms"), stream))
{begin}
ok(cuda.cuStreamDestroy_v2(stream))
time.sleep(0.5)
"""
    done = run_metered(make_simgpu(), tmp_path, body)
    [account], [busy_ns] = done.usage, done.busy_ns
    assert busy_ns >= 40_000_000
    assert account.launches == 40
    assert account.used_ns <= busy_ns + 100_000_000  # the idle half second is not billed


LOST = """
module, streams = start(), [new_stream() for _ in range(3)]
fault, work = kernel(module, "fault_5ms"), kernel(module, "k_1us")
for stream in streams:  # known from here on: nothing of it has to be marked at its launch
    for _ in range(3):
        ok(launch(work, stream))
ok(cuda.cuCtxSynchronize())
ok(launch(fault, streams[0]))
launched = 10
for stream in streams * 20:
    launched += launch(work, stream) == 0
while cuda.cuCtxSynchronize() == 0:
    pass
assert launch(work) == 700
assert launched == 70
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_lost_context_holds_no_turn_and_all_that_was_launched_into_it_is_counted(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    gpu, lost, other = new_gpu(), arbiter.share(tmp_path / "lost"), arbiter.share(tmp_path / "other")
    program = gpu.ready(LOST, **lost.env)
    until(lambda: (lost.usage().state, lost.usage().launches) == (ShareState.IDLE, 70))
    for _ in range(3):
        gpu.play("f = kernel(start(), 'k_1ms'); ok(launch(f)); ok(cuda.cuCtxSynchronize())", **other.env)
    assert other.usage().launches == 3
    assert program.lines() == []
