"""Test that a call that waits for its work ends a burst: the turn is given back then, and not a linger later."""

import statistics
import subprocess
from pathlib import Path

from metered import run_metered

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu, SimulatedGpu
from rig.script import script
from sharepod.agent.shares.share import Turn
from sharepod.simgpu.truth import KernelTruth, Truth

BURSTS = 100
RUNS = 3
IDLE = 0
"""The reason of a turn that was given back."""
# The program waits for every other burst. It begins the next burst 5 ms after the end of each.
BURSTING = f"""
module = start()
waited, left = kernel(module, "waited_1ms"), kernel(module, "left_1ms")
for _ in range({BURSTS}):
    ok(launch(waited))
    ok(cuda.cuCtxSynchronize())
    time.sleep(0.005)
    ok(launch(left))
    time.sleep(0.006)
"""
SATURATING = """
function = kernel(start(), "rival_500us")
while True:
    for _ in range(4):
        ok(launch(function))
    ok(cuda.cuCtxSynchronize())
"""


def kept_ns(turns: list[Turn], kernels: list[KernelTruth], name: str) -> list[int]:
    """Return, for each turn with a single kernel, of that name, how long after the kernel's end it was closed."""
    kept = []
    for turn in turns:
        inside = [work for work in kernels if turn.granted_ns <= work.started_ns < turn.closed_ns]
        if turn.end == IDLE and [work.name for work in inside] == [name]:
            kept.append(turn.closed_ns - inside[0].ended_ns)
    return kept


def run(gpu: SimulatedGpu, directory: Path) -> tuple[float, float]:
    """Run both programs; return `kept_ns` without noise, for bursts with a wait and for the others."""
    running: list[subprocess.Popen[bytes]] = []
    with Arbiter() as arbiter:
        try:
            for name, text in (("rival", SATURATING), ("bursting", BURSTING)):
                share = arbiter.share(directory / name)
                running.append(subprocess.Popen(script(text), env=gpu.env | share.env))
            assert running[1].wait(60) == 0
            turns = [turn for turn in arbiter.native.read_turns(0, 65536) if turn.share == share.handle]
            with Truth(gpu.state) as truth:
                kernels = [work for work in truth.kernels(0) if work.pid == running[1].pid]
        finally:
            for program in running:
                program.kill()
                program.wait()
    waited, left = (kept_ns(turns, kernels, name) for name in ("waited_1ms", "left_1ms"))
    assert min(len(waited), len(left)) > BURSTS // 4
    return statistics.quantiles(waited, n=10)[0], statistics.quantiles(left, n=10)[0]


def test_a_burst_that_is_waited_for_is_given_back_before_a_linger(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    # Noise can only make these times longer, so the shortest tenth counts. A machine that is slow throughout gets three
    # tries. A linger (50 µs) after the wait would make the ratio 0.42 instead of 0.2 in every run.
    tries = []
    for number in range(RUNS):
        waited_ns, left_ns = run(make_simgpu(SIMGPU_LOG_KERNELS="100000"), tmp_path / str(number))
        tries.append(waited_ns / left_ns)
        if tries[-1] < 1 / 3:
            break
    assert min(tries) < 1 / 3


def test_who_waits_for_an_event_does_not_wait_once_more_for_a_marker(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    done = run_metered(
        make_simgpu(),
        tmp_path,
        """
function, stream, event = kernel(start(), "k_20us"), c_void_p(), c_void_p()
ok(cuda.cuStreamCreate(byref(stream), 1))
ok(cuda.cuEventCreate(byref(event), 0))
def step():
    ok(launch(function, stream))
    ok(cuda.cuEventRecord(event, stream))
    ok(cuda.cuEventSynchronize(event))
def step_and_stream():
    step()
    ok(cuda.cuStreamSynchronize(stream))
least = {step: 1.0, step_and_stream: 1.0}
for one in [step, step_and_stream] * 25:
    begun = time.monotonic()
    for _ in range(200):
        one()
    least[one] = min(least[one], time.monotonic() - begun)
print(least[step_and_stream] / least[step])
""",
    )
    assert float(done.stdout) < 1.15  # it was 1.44 with a marker
