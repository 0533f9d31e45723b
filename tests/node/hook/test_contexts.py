"""Streams and contexts that end while work of theirs is under way, or the keeper waits for their last marker."""

from pathlib import Path

import pytest
from metered import run_metered

from rig.gpu import MakeSimgpu

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
    assert account.used_ns <= busy_ns + 100_000_000  # and not the idle half second
