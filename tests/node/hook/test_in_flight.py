"""Test how much a program may have in flight, by the device's log, and that a wait for less ends."""

from pathlib import Path

import pytest
from in_flight import BEFORE, even_work_in_flight, in_flight
from metered import run_metered

from rig.gpu import MakeSimgpu

ALONE = 50 // 5
"""Kernels of 5 ms that fit into what a share may have in flight while no other waits."""


def test_a_program_alone_queues_50_ms_of_known_work_and_no_more(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    most, passed = in_flight(
        make_simgpu,
        tmp_path,
        """
        module, stream = start(), new_stream()
        function = kernel(module, "known_5ms")
        for count in (1, 1, 60):
            for _ in range(count):
                ok(launch(function, stream))
            ok(cuda.cuStreamSynchronize(stream))
        time.sleep(0.3)  # the idle turn is given back, and with it the last counts
        """,
        "known",
    )
    assert 4 < most <= ALONE + 2 + passed, passed


def test_of_kernels_that_are_not_known_two_are_in_flight(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    most, passed = in_flight(
        make_simgpu,
        tmp_path,
        """
        module, stream = start(), new_stream()
        for number in range(10):
            ok(launch(kernel(module, f"new{number}_40ms"), stream))
        ok(cuda.cuStreamSynchronize(stream))
        time.sleep(0.3)
        """,
        "new",
    )
    assert 2 <= most <= 2 + passed, passed


@pytest.mark.parametrize("before", BEFORE)
def test_even_work_is_bounded_in_flight_whatever_was_before(
    before: str, make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    most, passed = even_work_in_flight(make_simgpu, tmp_path, before)
    # On a busy machine the other share is late, and while it does not wait this one counts as alone. On a machine with
    # a free core it is two units, and none passes: tests/timed/hook/test_two_in_flight.py.
    assert 2 <= most <= ALONE + 2 + passed, passed


def test_a_launch_for_which_work_in_flight_spins_passes_in_time_and_is_counted(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    account = run_metered(
        make_simgpu(),
        tmp_path,
        """
        module, spins, frees, word = start(), new_stream(), new_stream(), allocate(4)
        ok(cuda.cuMemcpyHtoD_v2(c_uint64(word), bytes(4), c_size_t(4)))
        ok(launch(kernel(module, "spin_until"), spins, word=word))
        ok(launch(kernel(module, "behind_1ms"), spins))  # neither is known: more does not fit
        ok(cuda.cuMemsetD32Async(c_uint64(word), 1, c_size_t(1), frees))
        ok(cuda.cuStreamSynchronize(spins))
        time.sleep(0.3)
        """,
    ).usage[0]
    assert account.launches == 3
    assert account.passed == 1
