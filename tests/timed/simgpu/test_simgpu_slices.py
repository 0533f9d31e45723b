"""Time slices of the simulated device: how much of it each program gets."""

import time

import pytest
from contenders import LOOP, Start

from rig.gpu import MakeSimgpu, SimulatedGpu
from sharepod.simgpu.truth import Truth


def measure_shares(gpu: SimulatedGpu, start: Start, *loops: tuple[str, str], seconds: float = 0.8) -> list[float]:
    """Return each program's busy time as a percentage of the time that passed."""
    processes = [start(gpu, LOOP, *loop) for loop in loops]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    with Truth(gpu.state) as truth:
        time.sleep(0.1)
        before = {c.pid: c.busy_ns for c in truth.contexts(0)}
        begin_ns = truth.now_ns()
        time.sleep(seconds)
        after = {c.pid: c.busy_ns for c in truth.contexts(0)}
        end_ns = truth.now_ns()
    for process in processes:
        process.kill()
        process.communicate()
    return [100 * (after[p.pid] - before[p.pid]) / (end_ns - begin_ns) for p in processes]


NO_COST = {"SIMGPU_SWITCH_US": "0", "SIMGPU_DRAIN_SWITCH_US": "0"}


def test_two_deep_queues_share_equally_and_lose_about_a_tenth_to_switching(
    make_simgpu: MakeSimgpu, start: Start
) -> None:
    first, second = measure_shares(make_simgpu(), start, ("k_1ms", "deep"), ("k_1ms", "deep"))
    assert first == pytest.approx(second, abs=1)
    assert 90 <= first + second <= 92.5


def test_two_deep_queues_and_a_loop_share_by_the_formula(make_simgpu: MakeSimgpu, start: Start) -> None:
    shares = measure_shares(
        make_simgpu(**NO_COST), start, ("k_1ms", "deep"), ("k_1ms", "deep"), ("k_500us", "sync"), seconds=1.2
    )
    assert shares == pytest.approx([44.4, 44.4, 11.1], abs=1.5)
