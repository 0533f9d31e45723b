"""Test that the bill has everything: work without a wait, work of killed processes, and a program's last moment."""

import subprocess
from pathlib import Path

import pytest
from hooklab import C, compile_c
from last_work import BESIDE_CAPTURES, CAPTURES, DESTROYED, IN_DESTROYED_STREAMS
from metered import run_metered
from simgpu_fixtures import NewGpu

from rig import REPO_ROOT
from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.until import until
from sharepod.simgpu.truth import Truth

BURSTS = 40
# Each burst is too short to be marked at its launch, but longer than a linger.
PROGRAM = f"""
module, stream = start(), STREAM
function = kernel(module, "left_3ms")
for _ in range(2):  # it is known from here on
    ok(launch(function, stream))
    ok(cuda.cuStreamSynchronize(stream))
for _ in range({BURSTS}):
    ok(launch(function, stream))
    time.sleep(0.012)
"""

WORKING = """
import os, signal
function = kernel(start(), "work_1ms")
for _ in range(200):
    ok(launch(function))
    ok(cuda.cuCtxSynchronize())
os.kill(os.getpid(), signal.SIGKILL)
"""

# Work that was launched just before a capture cannot be marked while its stream's capture is open.
IN_FRONT_OF_CAPTURES = f"""
function, stream, graph = kernel(start(), "front_100us"), new_stream(), c_void_p()
for _ in range(20):
    ok(launch(function, stream))
    ok(cuda.cuStreamSynchronize(stream))
for _ in range({CAPTURES // 3}):
    for _ in range(3):
        ok(launch(function, stream))
    ok(cuda.cuStreamBeginCapture_v2(stream, 2))
    time.sleep(0.12)  # longer than any drain is waited for
    ok(cuda.cuStreamEndCapture(stream, byref(graph)))
"""

# The same while a capture of another stream is open, which this stream does not join.
BESIDE_A_CAPTURE = f"""
function, captured, stream, graph = kernel(start(), "front_100us"), new_stream(), new_stream(), c_void_p()
for _ in range(20):
    ok(launch(function, stream))
    ok(cuda.cuStreamSynchronize(stream))
for _ in range({CAPTURES // 3}):
    ok(cuda.cuStreamBeginCapture_v2(captured, 2))
    for _ in range(3):
        ok(launch(function, stream))
    time.sleep(0.12)
    ok(cuda.cuStreamEndCapture(captured, byref(graph)))
"""

RUNS = 10


@pytest.mark.parametrize("stream", ["new_stream()", "c_void_p(2)"], ids=["a stream", "the thread's own"])
def test_work_that_nobody_waits_for_is_billed_to_its_end(make_simgpu: MakeSimgpu, tmp_path: Path, stream: str) -> None:
    done = run_metered(make_simgpu(), tmp_path, PROGRAM.replace("STREAM", stream))
    assert done.usage[0].used_ns >= 0.9 * done.busy_ns[0]


def test_work_beside_an_open_capture_is_billed_when_it_can_be_marked(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    done = run_metered(make_simgpu(), tmp_path, BESIDE_CAPTURES)
    assert done.busy_ns[0] >= (20 + 4 * CAPTURES) * 1_000_000
    assert done.usage[0].used_ns >= 0.75 * done.busy_ns[0]


def test_work_in_streams_that_are_destroyed_is_billed_and_not_passed(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    done = run_metered(make_simgpu(), tmp_path, IN_DESTROYED_STREAMS)
    assert done.usage[0].launches == 20 + 3 * DESTROYED
    assert done.usage[0].passed == 0
    assert done.usage[0].used_ns >= 0.9 * done.busy_ns[0]


@pytest.mark.parametrize("program", [IN_FRONT_OF_CAPTURES, BESIDE_A_CAPTURE], ids=["in the stream", "in another one"])
def test_the_end_of_work_is_told_while_a_capture_is_open(make_simgpu: MakeSimgpu, tmp_path: Path, program: str) -> None:
    account = run_metered(make_simgpu(), tmp_path, program, beside=True).usage[0]
    assert account.launches == 20 + CAPTURES
    assert account.cogrants < CAPTURES // 6, "so often another share had waited in vain for the device"


def test_the_bill_of_a_turn_that_was_given_back_and_entered_again_is_current(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    gpu, share = new_gpu(SIMGPU_PROFILE="typical"), arbiter.share(tmp_path / "share")
    gpu.ready(f"{PROGRAM.replace('STREAM', 'new_stream()')}\nprint('ready', flush=True)\ninput()", **share.env)
    with gpu.truth() as truth:
        busy_ns = truth.devices()[0].busy_ns
    assert busy_ns >= BURSTS * 3_000_000
    # A share that is alone holds one turn throughout and enters it for each burst; the last burst had no wait.
    until(lambda: share.usage().used_ns >= 0.9 * busy_ns, lambda: f"{share.usage()} of {busy_ns}", 10)
    assert share.usage().turns <= 2


def test_what_processes_used_that_were_killed_in_their_turns_stays_in_the_bill(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    gpu, share = new_gpu(SIMGPU_PROFILE="typical"), arbiter.share(tmp_path / "share")
    for _ in range(3):
        gpu.start(WORKING, **share.env).lines(returncode=-9)
        until(lambda: share.usage().processes == 0)
    with gpu.truth() as truth:
        busy_ns = truth.devices()[0].busy_ns
    assert busy_ns >= 600_000_000
    assert share.usage().used_ns >= 0.97 * busy_ns


def test_what_a_program_did_until_its_last_moment_is_counted_and_billed(
    arbiter: Arbiter, make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    program = compile_c(tmp_path / "brief", "-O2", f"-I{REPO_ROOT / 'rig' / 'c'}", C / "brief_program.c", "-ldl")
    gpu, share = make_simgpu(), arbiter.share(tmp_path / "share")
    for _ in range(RUNS):
        subprocess.run([program], env=gpu.env | share.env, check=True)
    until(lambda: share.usage().processes == 0)
    with Truth(gpu.state) as truth:
        busy_ns = truth.devices()[0].busy_ns
    assert share.usage().launches == RUNS * 20
    assert share.usage().used_ns >= 0.97 * busy_ns
