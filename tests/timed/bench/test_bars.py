"""Test the bars on the simulated device, in a few seconds each: one run within the bar, or a median within twice of it.

`make bench` measures the bars themselves. These tests guard them and must hold on a noisy two-core machine.
"""

from collections.abc import Callable

import pytest

from bench.bars import costs, figures, memory, neighbours, pauses, shares, streams
from bench.bars.bar import ALLOCATION, BILL, BILL_ABOVE, KEPT, LATENCY, LAUNCH, LIMIT_ERROR, LIMIT_PAUSE, STALL
from bench.bars.rig import run
from bench.bars.simulated import SimulatedRig
from bench.scale import TEST
from bench.table import Line
from rig.loads import MS, SECOND, Case

RIG = SimulatedRig(TEST)
STREAMS_S = 2
BARE_LAUNCH_NS = 3
"""How long a launch without the hook takes on an empty driver on the machine of bench/results; elsewhere it took 11."""


def within_twice(times_the_bar: Callable[[], float]) -> None:
    """Assert that one run is within the bar, or that the median of three runs is within twice the bar.

    A run returns its result as a multiple of the bar. The second and third run are made only if they decide.
    """
    made = [times_the_bar()]
    if made[0] <= 1:
        return
    made.append(times_the_bar())
    if (made[0] <= 2) != (made[1] <= 2):
        made.append(times_the_bar())
    assert sum(times <= 2 for times in made) >= 2, made


@pytest.mark.parametrize(
    ("case", "lost"),
    [(shares.KERNELS, 0.01), (shares.GRAPHS, 1)],
    ids=lambda value: getattr(value, "what", ""),
)
def test_saturated_shares_get_and_pay_for_what_they_asked_for_and_lose_little(case: Case, lost: float) -> None:
    def measured() -> float:
        done = run(RIG, case.loads, TEST.share_steps)
        error = figures.median(figures.share_errors(done.samples, case.targets, 1))
        bar = shares.error_bar_pp(SECOND, done, case)
        idle = 1 - figures.utilisation(done.samples)
        return max(error / bar, idle / lost, shares.bill_error(done) / BILL.bound)

    within_twice(measured)


# If launches take 5 µs to arrive, a slow host has a microsecond of each launch into an empty stream billed: 2 % of the
# shortest bursts. So these are judged on a device where launches arrive at once; `make bench` judges them on both.
@pytest.mark.parametrize(
    ("number", "profile"),
    [(0, "ideal"), (1, "typical"), (3, "typical"), (5, "typical"), (7, "ideal"), (9, "ideal")],
    ids=lambda value: str(value),
)
def test_work_on_several_streams_is_billed_as_the_union_of_its_spans(number: int, profile: str) -> None:
    rig, case = SimulatedRig(TEST, profile=profile), streams.CASES[number]

    # A bill by the sum of the spans would be off by 139 and 60 %.
    within_twice(lambda: abs(streams.bill_errors(rig, case, STREAMS_S)["a"]) / BILL_ABOVE.bound)


@pytest.mark.parametrize("number", [20, 22], ids=["upload", "host function"])
def test_neither_what_waits_in_front_of_kernels_nor_the_busy_share_beside_it_is_billed_for_that(number: int) -> None:
    rig, case = SimulatedRig(TEST), streams.CASES[number]

    # The busy share's turns contain kernels of the other, and the time for the device's switches to them and back.
    within_twice(lambda: max(map(abs, streams.bill_errors(rig, case, STREAMS_S).values())) / BILL_ABOVE.bound)


def test_nobody_stalls_when_an_equal_joins_and_leaves() -> None:
    def pause_to_bar() -> float:
        pause_ns, _, quantum_ns = pauses.joined(RIG, pauses.EQUAL.loads, hook=True)
        return pause_ns / max(STALL.bound, 2 * quantum_ns + MS // 2)

    within_twice(pause_to_bar)


def test_a_limit_holds_on_an_idle_device_and_is_smooth() -> None:
    def measured() -> float:
        done = run(RIG, pauses.LIMIT.loads, TEST.short_steps, log=True)
        began, ended = done.samples[0].now_ns, done.samples[-1].now_ns
        longest_ns = figures.longest_pause_ns(done.kernels, "a", began, ended)
        error = figures.median(figures.limit_errors(done.samples, "a", 0.3))
        return max(error / LIMIT_ERROR.bound, longest_ns / LIMIT_PAUSE.bound)

    within_twice(measured)


@pytest.fixture(scope="module")
def launch() -> Line:
    """Return the bench's row of what the hook adds to a launch on an empty driver."""
    line, *_ = costs.launch(RIG)
    return line


@pytest.fixture(scope="module")
def slowness(launch: Line) -> float:
    """Return how many times longer a call takes on this machine than on that of bench/results, at least 1."""
    return max(1, figures.median(launch.detail["bare_ns"]) / BARE_LAUNCH_NS)


def test_a_launch_through_the_open_gate_costs_nanoseconds(launch: Line, slowness: float) -> None:
    assert float(launch.result.split()[0]) <= 2 * LAUNCH.bound * slowness, launch.detail


def test_a_latency_share_beside_batch_stays_near_its_solo_latency() -> None:
    solo = neighbours.serve(RIG, {}, hook=False)

    def measured() -> float:
        shared = neighbours.serve(RIG, {"batch": neighbours.BATCH}, hook=True)
        return max(shared.p99_ns / (LATENCY.bound * solo.p99_ns), (1 - shared.kept) / (1 - KEPT.bound))

    within_twice(measured)


def test_the_memory_cap_is_exact_and_nothing_leaks(slowness: float) -> None:
    lines, (pair, anywhere) = memory.caps(RIG), memory.beside_many(RIG)
    assert [line for line in lines if line.met is False] == []
    assert float(pair.result.split()[0]) <= 2 * ALLOCATION.bound * slowness, pair.detail
    added, cold = (int(word) for word in anywhere.result.split() if word.isdigit())
    assert added - cold <= 2 * ALLOCATION.bound * slowness, anywhere.detail
    exact = [line.what.split(": ")[1].split(",")[0] for line in lines if line.met and "memory cap" in line.what]
    assert set(exact) >= {"linear", "managed", "pitched"}


def test_a_trainer_keeps_nearly_all_beside_shares_that_mostly_idle() -> None:
    within_twice(lambda: (1 - float(neighbours.duty(RIG)[0].result)) / (1 - KEPT.bound))
