"""What the hook remembers of a stream goes with it."""

from pathlib import Path

import pytest
from metered import run_metered
from simulated_gpu import MakeSimgpu

from sharepod.simgpu.truth import Truth

MANY = """
module, stream = start(), new_stream()
for number in range(40):  # each unknown, so each is marked alone: more markers than a stream may have
    ok(launch(kernel(module, f"unit{number}_1ms"), stream))
"""


@pytest.mark.realtime
@pytest.mark.parametrize("captured", [False, True])
def test_work_of_a_destroyed_stream_does_not_hold_the_turn_for_ever(
    make_simgpu: MakeSimgpu, tmp_path: Path, captured: bool
) -> None:
    gpu = make_simgpu()
    begin = "ok(cuda.cuStreamBeginCapture_v2(stream, RELAXED))" if captured else ""
    body = f"{MANY}{begin}\nok(cuda.cuStreamDestroy_v2(stream))\ntime.sleep(0.5)\n"
    account = run_metered(gpu, tmp_path, body).usage[0]
    with Truth(gpu.state) as truth:
        busy_ns = truth.devices()[0].busy_ns
    assert busy_ns >= 40_000_000
    assert account.launches == 40
    assert account.used_ns <= busy_ns + 100_000_000  # and not the idle half second
