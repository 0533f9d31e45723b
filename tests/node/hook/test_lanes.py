"""What the hook remembers of a stream goes with it."""

from pathlib import Path

import pytest
from hooklab import run
from metered import run_metered

from rig.gpu import MakeSimgpu
from sharepod.hook import LIBRARY
from sharepod.simgpu.truth import Truth

MANY = """
module, stream = start(), new_stream()
for number in range(40):  # each unknown, so each is marked alone: more markers than a stream may have
    ok(launch(kernel(module, f"unit{number}_1ms"), stream))
"""


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


@pytest.mark.parametrize("ended", ["ok(cuda.cuStreamEndCapture(stream, byref(graph)))", "pass"])
def test_a_capture_is_counted_until_its_end_or_its_streams(make_simgpu: MakeSimgpu, tmp_path: Path, ended: str) -> None:
    # The count is the hook's own: while it is not zero, every launch asks the driver for its stream's state.
    symbols = [line.split() for line in run(["nm", LIBRARY]).stdout.splitlines()]
    offset = next(int(symbol[0], 16) for symbol in symbols if symbol[-1] == "sp_guest") + 4
    body = f"""
def captures():
    maps = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith({LIBRARY.name!r})]
    return c_uint32.from_address(int(maps[0][0].split("-")[0], 16) + {offset}).value
start()
stream, joined, event, graph = new_stream(), new_stream(), new_event(), c_void_p()
counts = [captures()]
ok(cuda.cuStreamBeginCapture_v2(stream, RELAXED))
ok(cuda.cuEventRecord(event, stream))
ok(cuda.cuStreamWaitEvent(joined, event, 0))
counts.append(captures())
if {ended!r} == "pass":
    ok(cuda.cuStreamDestroy_v2(joined))
    counts.append(captures())
else:
    ok(cuda.cuEventRecord(event, joined))
    ok(cuda.cuStreamWaitEvent(stream, event, 0))
    counts.append(captures())
    {ended}
ok(cuda.cuStreamDestroy_v2(stream))
counts.append(captures())
print(counts)
"""
    assert run_metered(make_simgpu(), tmp_path, body).stdout == "[0, 1, 1, 0]\n"
