"""The bars on the simulated device, in a few seconds each: at most twice the bar, on the median of three runs.

`make bench` measures the bars themselves; what guards them here must hold on a noisy two-core machine.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

from bench import costs, figures, memory, neighbours, pauses, shares, streams
from bench.scale import TEST
from rig.loads import Load, Terms
from rig.node import Node

pytestmark = pytest.mark.timeout(240)

MS = 1_000_000
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
    [(shares.CASES[0], 1 - 2 * 0.01), (shares.CASES[4], 0)],
    ids=lambda value: getattr(value, "what", ""),
)
def test_saturated_shares_get_and_pay_for_what_they_asked_for_and_lose_little(case: shares.Case, used: float) -> None:
    def error_to_bar_used_and_bill_error() -> tuple[float, float, float]:
        run = shares.run(case, TEST.short_s)
        error = figures.median(figures.share_errors(run.samples, case.targets, 1))
        return error / shares.error_bar_pp(1, run, case), figures.utilisation(run.samples), shares.bill_error(run)

    two_of_three(
        error_to_bar_used_and_bill_error,
        lambda made: made[0] <= 2 and made[1] >= used and made[2] <= 2 * 0.5,
    )


@pytest.mark.parametrize("case", [streams.CASES[n] for n in (3, 5, 7, 8)], ids=lambda case: case.what)
def test_work_on_several_streams_is_billed_as_the_union_of_its_spans(case: streams.Case) -> None:
    def error_percent() -> float:  # by the sum of the spans: 139, 60
        return abs(streams.bill_errors(case, STREAMS_S)["a"])

    two_of_three(error_percent, lambda error: error <= 2 * streams.BAR_PERCENT)


def test_nobody_stalls_when_an_equal_joins_and_leaves() -> None:
    loads = {"a": shares.saturating(50, "500us"), "late": shares.saturating(50, "500us")}

    def pause_to_bar() -> float:
        pause_ns, _, quantum_ns = pauses.joined(loads, "late", TEST.alone_s, hook=True)
        return pause_ns / max(100 * MS, 2 * quantum_ns + MS // 2)

    two_of_three(pause_to_bar, lambda ratio: ratio <= 2)


def test_a_limit_holds_on_an_idle_device_and_is_smooth() -> None:
    def error_and_longest_pause_ns() -> tuple[float, float]:
        with Node(log_kernels=pauses.LOG_KERNELS) as node:
            samples = node.run({"a": Load(Terms(30, 30), "saturate", {"unit": "500us", "depth": 4})}, TEST.short_s)
            longest_ns = figures.longest_pause_ns(node.kernels(), "a", samples[0].now_ns, samples[-1].now_ns)
            return figures.median(figures.limit_errors(samples, "a", 0.3)), longest_ns

    two_of_three(error_and_longest_pause_ns, lambda made: made[0] <= 2 and made[1] <= 200 * MS)


def test_a_launch_through_the_open_gate_costs_nanoseconds() -> None:
    (line, _) = costs.launch_cost(TEST)
    assert float(line.result.split()[0]) <= 40, line.detail


def test_a_latency_share_beside_batch_stays_near_its_solo_latency() -> None:
    solo = neighbours.serve(TEST.requests, beside={}, hook=False)
    two_of_three(
        lambda: neighbours.serve(TEST.requests, beside={"batch": neighbours.BATCH}, hook=True),
        lambda shared: shared.p99_ns <= 3 * solo.p99_ns and shared.kept >= 0.8,
    )


def test_the_memory_cap_is_exact_and_nothing_leaks() -> None:
    *lines, pair, anywhere = memory.caps(TEST)
    assert [line for line in lines if line.met is False] == []
    assert float(pair.result.split()[0]) <= 200, pair.detail
    added, cold = (int(word) for word in anywhere.result.split() if word.isdigit())
    assert added - cold <= 200, anywhere.detail
    exact = [line.what.split(": ")[1].split(",")[0] for line in lines if line.met and "memory cap" in line.what]
    assert set(exact) >= {"linear", "managed", "pitched"}


def test_a_trainer_keeps_nearly_all_beside_shares_that_mostly_idle() -> None:
    two_of_three(
        lambda: [float(line.result) for line in neighbours.trainer(TEST)], lambda kept: figures.median(kept) >= 0.8
    )
