"""Test random schedules on the simulated device: no kernel runs outside a turn, nothing is lost, nothing hangs."""

import os

import pytest

from bench import stress

SECONDS = float(os.environ.get("SHAREPOD_TEST_STRESS_SECONDS", "20"))
SEED = int(os.environ.get("SHAREPOD_TEST_STRESS_SEED", "20261121"))


@pytest.mark.timeout(SECONDS + 100)
def test_random_schedules_lose_no_launch_no_wake_up_and_no_turn_and_never_deadlock() -> None:
    verdict = stress.stress(SECONDS, SEED)
    assert verdict.faults == ()
    assert verdict.episodes >= 500
    assert verdict.kernels > verdict.episodes
