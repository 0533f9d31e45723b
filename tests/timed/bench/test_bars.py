"""The bars on the simulated device, in a few seconds each: at most twice the bar, on the median of three runs.

`make bench` measures the bars themselves; what guards them here must hold on a noisy two-core machine.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

from bench.bars import costs, figures, memory, neighbours, pauses, shares, streams
from bench.bars.bar import BILL, BILL_ABOVE, KEPT, LATENCY, LAUNCH, LIMIT_ERROR, LIMIT_PAUSE, STALL
from bench.bars.rig import run
from bench.bars.simulated import SimulatedRig
from bench.scale import TEST
from rig.loads import MS, SECOND, Case

pytestmark = pytest.mark.timeout(240)

RIG = SimulatedRig(TEST)
STREAMS_S = 2
Measured = TypeVar("Measured")


def two_of_three(measure: Callable[[], Measured], fine: Callable[[Measured], bool]) -> None:
    """Assert that the median of three runs is fine: two of them are. The third is made only where it decides."""
    made = [measure(), measure()]
    if sum(map(fine, made)) == 1:
        made.append(measure())
    assert sum(map(fine, made)) >= 2, made


@pytest.mark.parametrize(
    ("case", "used"),
    [(shares.KERNELS, 1 - 2 * 0.01), (shares.GRAPHS, 0)],
    ids=lambda value: getattr(value, "what", ""),
)
def test_saturated_shares_get_and_pay_for_what_they_asked_for_and_lose_little(case: Case, used: float) -> None:
    def error_to_bar_used_and_bill_error() -> tuple[float, float, float]:
        done = run(RIG, case.loads, TEST.share_steps)
        error = figures.median(figures.share_errors(done.samples, case.targets, 1))
        bar = shares.error_bar_pp(SECOND, done, case)
        return error / bar, figures.utilisation(done.samples), shares.bill_error(done)

    two_of_three(
        error_to_bar_used_and_bill_error,
        lambda made: made[0] <= 2 and made[1] >= used and made[2] <= 2 * BILL.bound,
    )


# The gap behind a timing event of a typical device is billed, 3 to 4 % of short bursts: bench/README.md has it missed.
@pytest.mark.parametrize(
    ("number", "profile"), [(3, "typical"), (5, "typical"), (7, "ideal"), (8, "ideal")], ids=lambda value: str(value)
)
def test_work_on_several_streams_is_billed_as_the_union_of_its_spans(number: int, profile: str) -> None:
    rig, case = SimulatedRig(TEST, profile=profile), streams.CASES[number]

    def error_percent() -> float:  # by the sum of the spans: 139, 60
        return abs(streams.bill_errors(rig, case, STREAMS_S)["a"])

    two_of_three(error_percent, lambda error: error <= 2 * BILL_ABOVE.bound)


def test_nobody_stalls_when_an_equal_joins_and_leaves() -> None:
    def pause_to_bar() -> float:
        pause_ns, _, quantum_ns = pauses.joined(RIG, pauses.EQUAL.loads, hook=True)
        return pause_ns / max(STALL.bound, 2 * quantum_ns + MS // 2)

    two_of_three(pause_to_bar, lambda ratio: ratio <= 2)


def test_a_limit_holds_on_an_idle_device_and_is_smooth() -> None:
    def error_and_longest_pause_ns() -> tuple[float, float]:
        done = run(RIG, pauses.LIMIT.loads, TEST.short_steps, log=True)
        began, ended = done.samples[0].now_ns, done.samples[-1].now_ns
        longest_ns = figures.longest_pause_ns(done.kernels, "a", began, ended)
        return figures.median(figures.limit_errors(done.samples, "a", 0.3)), longest_ns

    two_of_three(
        error_and_longest_pause_ns,
        lambda made: made[0] <= 2 * LIMIT_ERROR.bound and made[1] <= 2 * LIMIT_PAUSE.bound,
    )


def test_a_launch_through_the_open_gate_costs_nanoseconds() -> None:
    (line, _) = costs.launch(RIG)
    assert float(line.result.split()[0]) <= 2 * LAUNCH.bound, line.detail


def test_a_latency_share_beside_batch_stays_near_its_solo_latency() -> None:
    solo = neighbours.serve(RIG, {}, hook=False)
    two_of_three(
        lambda: neighbours.serve(RIG, {"batch": neighbours.BATCH}, hook=True),
        lambda shared: shared.p99_ns <= 2 * LATENCY.bound * solo.p99_ns and shared.kept >= 1 - 2 * (1 - KEPT.bound),
    )


def test_the_memory_cap_is_exact_and_nothing_leaks() -> None:
    lines, (pair, anywhere) = memory.caps(RIG), memory.beside_many(RIG)
    assert [line for line in lines if line.met is False] == []
    assert float(pair.result.split()[0]) <= 200, pair.detail
    added, cold = (int(word) for word in anywhere.result.split() if word.isdigit())
    assert added - cold <= 200, anywhere.detail
    exact = [line.what.split(": ")[1].split(",")[0] for line in lines if line.met and "memory cap" in line.what]
    assert set(exact) >= {"linear", "managed", "pitched"}


def test_a_trainer_keeps_nearly_all_beside_shares_that_mostly_idle() -> None:
    two_of_three(lambda: float(neighbours.duty(RIG)[0].result), lambda kept: kept >= 1 - 2 * (1 - KEPT.bound))
