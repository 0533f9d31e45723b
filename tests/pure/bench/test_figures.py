"""Test the arithmetic behind the bench's table on values that are small enough to check by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.bars import figures
from rig.truth import Held, Kernel, Sample

SECOND = 1_000_000_000


def samples(*busy: tuple[float, float]) -> list[Sample]:
    return [Sample(i * SECOND, {"a": round(a * SECOND), "b": round(b * SECOND)}) for i, (a, b) in enumerate(busy)]


def test_the_percentile_is_the_nearest_rank() -> None:
    values = [float(v) for v in range(1, 101)]
    assert [figures.percentile(values, percent) for percent in (50, 99, 100)] == [50, 99, 100]
    assert figures.percentile([7.0], 1) == 7


def test_figures_of_nothing_are_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        figures.percentile([], 50)
    with pytest.raises(ValueError, match="nothing was measured"):
        figures.median([])


def test_the_share_error_is_the_worst_owner_of_each_window() -> None:
    observed = samples((0, 0), (0.7, 0.3), (1.5, 0.5))
    assert figures.share_errors(observed, {"a": 0.7, "b": 0.3}, 1) == pytest.approx([0, 10])
    assert figures.share_errors(observed, {"a": 0.7, "b": 0.3}, 2) == pytest.approx([5])


def test_time_that_nobody_used_is_not_a_share_error() -> None:
    observed = samples((0, 0), (0.35, 0.15))
    assert figures.share_errors(observed, {"a": 0.7, "b": 0.3}, 1) == pytest.approx([0])
    assert figures.utilisation(observed) == pytest.approx(0.5)
    assert figures.utilisation(observed, ["a"]) == pytest.approx(0.35)


def test_a_window_without_any_work_misses_by_the_largest_target() -> None:
    assert figures.share_errors(samples((0, 0), (0, 0)), {"a": 0.7, "b": 0.3}, 1) == pytest.approx([70])


def test_the_limit_error_counts_elapsed_time() -> None:
    assert figures.limit_errors(samples((0, 0), (0.32, 0), (0.61, 0)), "a", 0.3) == pytest.approx([2, 1])


def test_the_longest_pause_looks_at_one_owner_and_at_both_ends_and_a_long_kernel_hides_those_under_it() -> None:
    kernels = [Kernel("a", 0, 10, 20), Kernel("b", 0, 20, 50), Kernel("a", 0, 50, 60)]
    assert figures.longest_pause_ns(kernels, "a", 10, 60) == 30
    assert figures.longest_pause_ns(kernels, "a", 0, 100) == 40
    assert figures.longest_pause_ns(kernels, "c", 0, 100) == 100
    kernels = [Kernel("a", 0, 0, 90), Kernel("a", 0, 10, 20), Kernel("a", 0, 95, 100)]
    assert figures.longest_pause_ns(kernels, "a", 0, 100) == 5


def test_a_hand_off_is_counted_where_the_owner_changes() -> None:
    kernels = [Kernel("a", 0, 0, 10), Kernel("a", 5, 10, 20), Kernel("b", 23, 26, 30), Kernel("a", 28, 30, 40)]
    assert figures.hand_offs(kernels) == [figures.HandOff(3, 6), figures.HandOff(-2, 0)]


def test_a_kernel_that_starts_outside_every_turn_of_its_owner_is_found() -> None:
    turns = [Held("a", 0, 10), Held("b", 10, 20), Held("a", 20, 30)]
    inside = [Kernel("a", 0, 0, 5), Kernel("a", 0, 10, 12), Kernel("b", 0, 15, 25), Kernel("a", 0, 25, 99)]
    outside = [Kernel("a", 0, 15, 16), Kernel("c", 0, 5, 6), Kernel("a", 0, 5, 6, device=1), Kernel("b", 0, 9, 12)]
    assert figures.outside_turns([*inside, *outside], turns) == outside


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50), st.integers(0, 20)), max_size=8),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 80)), max_size=8),
)
def test_finding_kernels_outside_turns_agrees_with_looking_at_every_turn(
    spans: list[tuple[str, int, int]], starts: list[tuple[str, int]]
) -> None:
    # Move overlapping turns apart, as the turns of one share on one device never overlap.
    turns: list[Held] = []
    for owner, granted, length in sorted(spans):
        after = max((t.drained_ns + 1 for t in turns if t.owner == owner), default=0)
        turns.append(Held(owner, max(granted, after), max(granted, after) + length))
    kernels = [Kernel(owner, 0, started, started + 1) for owner, started in starts]
    expected = [
        k
        for k in kernels
        if not any(t.owner == k.owner and t.granted_ns <= k.started_ns <= t.drained_ns for t in turns)
    ]
    assert figures.outside_turns(kernels, turns) == expected


def test_a_wait_beside_an_idle_device_is_a_lost_wake_up() -> None:
    kernels = [Kernel("a", 0, 0, 100), Kernel("a", 0, 300, 400)]
    assert figures.lost_wake_ups(kernels, [(0, 100), (90, 310)], bound_ns=150) == [(90, 310)]
    assert figures.lost_wake_ups(kernels, [(0, 120), (90, 310)], bound_ns=250) == []
