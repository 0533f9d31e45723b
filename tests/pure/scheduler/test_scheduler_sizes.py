"""The size in effect of a share: what fits on one device adds up to one at most, and the bound is reached."""

from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.scheduler.mix import Kind, Mix
from sharepod.scheduler.sizes import effective_sizes


def fills(sizes: list[int]) -> list[tuple[int, ...]]:
    """Return every way to put shares on one device."""
    most = 1000 // min(sizes)
    return [
        fill
        for count in range(1, most + 1)
        for fill in combinations_with_replacement(sizes, count)
        if sum(fill) <= 1000
    ]


def test_halves_thirds_and_what_leaves_a_hole_that_nothing_fills() -> None:
    assert effective_sizes({500: 1.0}) == {500: pytest.approx(0.5)}
    assert effective_sizes({340: 1.0}) == {340: pytest.approx(0.5)}
    assert effective_sizes({330: 1.0}) == {330: pytest.approx(1 / 3)}
    assert effective_sizes({510: 1.0}) == {510: pytest.approx(1.0)}
    assert effective_sizes({1000: 2.0, 810: 3.0}) == {810: pytest.approx(1.0), 1000: pytest.approx(1.0)}
    assert effective_sizes({}) == {}


def test_what_fills_the_holes_of_the_many_takes_nothing() -> None:
    sizes = effective_sizes({810: 0.9, 190: 0.1})
    assert sizes == {810: pytest.approx(1.0), 190: pytest.approx(0.0)}
    sizes = effective_sizes({810: 0.1, 190: 0.9})
    assert sizes[190] == pytest.approx(0.2)
    assert sizes[810] == pytest.approx(0.8)


@given(st.dictionaries(st.integers(20, 100).map(lambda step: 10 * step), st.floats(0.01, 1.0), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_no_device_holds_more_than_one_and_no_prices_are_higher_that_obey_it(demand: dict[int, float]) -> None:
    sizes = effective_sizes(demand)
    assert all(sum(sizes[size] for size in fill) <= 1 + 1e-6 for fill in fills(sorted(demand)))
    # Any feasible prices bound the devices from below; the even ones and those of the time itself are two.
    bound = sum(part * sizes[size] for size, part in demand.items())
    for other in (lambda size: 1 / (1000 // size), lambda size: size / 1000):
        prices = {size: other(size) for size in demand}
        if all(sum(prices[size] for size in fill) <= 1 + 1e-9 for fill in fills(sorted(demand))):
            assert bound >= sum(part * prices[size] for size, part in demand.items()) - 1e-6


def test_what_takes_several_devices_counts_as_so_many_whole_ones() -> None:
    mix = Mix.counted({Kind(4, 1000, 0, ()): 1, Kind(1, 300, 0, ()): 3, Kind(0, 0, 500, ()): 4})
    assert mix.demand() == {300: pytest.approx(3 / 8), 1000: pytest.approx(4 / 8)}
    assert sum(part for _, part in mix.with_devices().parts) == pytest.approx(1.0)


def test_a_size_for_every_thousandth_is_found_in_time() -> None:
    sizes = effective_sizes(dict.fromkeys(range(1, 1001), 1.0))
    assert sizes[1000] == pytest.approx(1.0)
    assert sizes[501] == sizes[510]
    assert sizes[500] <= 0.5 + 1e-6


def test_the_most_frequent_kinds_make_up_the_part_that_is_asked_for() -> None:
    mix = Mix.counted({Kind(1, 300, 0, ()): 5, Kind(1, 200, 0, ()): 3, Kind(0, 0, 500, ()): 1, Kind(1, 100, 0, ()): 1})
    assert [kind.milli for kind, _ in mix.most_frequent(0.8).parts] == [200, 300]
    assert [kind.milli for kind, _ in mix.most_frequent(0.81).parts] == [0, 200, 300]
    assert mix.most_frequent(1.0) == mix
    assert sum(part for _, part in mix.most_frequent(0.5).parts) == pytest.approx(1.0)
