"""Test that the tables of `worth` and the sizes in effect equal their definitions and serve their purpose."""

import pickle
from functools import cache
from itertools import combinations_with_replacement
from math import exp, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.cutting_stock import effective_sizes
from sharepod.scheduler.placement.mix import Kind, Mix
from sharepod.scheduler.placement.models import Models
from sharepod.scheduler.placement.native import Place, Snapshot, Verdict
from sharepod.scheduler.placement.policy import Numbers, Outline, Policy
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.placement.tables import PRICES, STEPS, worth_tables

KINDS = [
    (Kind(1, 300, 1000, ()), 0.5, 333.0),
    (Kind(1, 1000, 4000, ("A",)), 0.25, 1000.0),
    (Kind(1, 70, 0, ("B",)), 0.25, 0.0),
    (Kind(2, 1000, 0, ()), 0.1, 1000.0),
]


def expected(model: str, price: float, offers: int) -> list[float]:
    """Return the worth of each residue by the definition, recursively from the last offer."""
    worth = [0.0] * STEPS
    for _ in range(offers):
        worth = [
            value
            + sum(
                part * max(0.0, gain - price * kind.cpu_milli + worth[step - -(-kind.milli // 10)] - value)
                for kind, part, gain in KINDS
                if kind.devices == 1 and (not kind.models or model in kind.models) and step >= -(-kind.milli // 10)
            )
            for step, value in enumerate(worth)
        ]
    return worth


def test_the_tables_are_their_definition() -> None:
    prices = [0.0, *(0.01 * step for step in range(1, PRICES))]
    tables = worth_tables(Models("AB"), KINDS, prices, 7)
    for index, model in enumerate("AB"):
        for at in (0, 1, 7, PRICES - 1):
            found = [float(value) for value in tables[index, :, at]]
            assert found == pytest.approx(expected(model, prices[at], 7), rel=1e-5, abs=1e-3)


def share(milli: int, cpu_milli: int = 0, devices: int = 1, models: str = "") -> PodRequest:
    return PodRequest(cpu_milli, 0, (ShareRequest(milli, devices, mib=0),), frozenset(models.split()))


def place(snapshot: Snapshot, mix: list[PodRequest], request: PodRequest) -> Place:
    policy = Policy("worth", snapshot, Mix.of(mix))
    policy.refresh()
    found = snapshot.best(request, policy.native)
    assert found
    return found


def test_a_share_goes_where_little_is_lost_and_not_where_it_spoils_what_others_need() -> None:
    snapshot = Snapshot([NodeSpec("half", 64_000, 0, 1), NodeSpec("hole", 64_000, 0, 1)])
    snapshot.take(share(500), Place(0, ((0,),)))
    snapshot.take(share(700), Place(1, ((0,),)))
    mix = [share(500)] * 6 + [share(300)] + [share(700)]
    assert place(snapshot, mix, share(300)).node == 1


def test_who_needs_many_processors_goes_where_they_are_not_what_runs_out() -> None:
    few, many = NodeSpec("few", 8_000, 0, 8), NodeSpec("many", 64_000, 0, 8)
    mix = [share(1000, 1000)] * 3 + [share(1000, 6000)]
    assert place(Snapshot([few, many]), mix, share(1000, 6000)).node == 1


def test_room_for_the_wide_is_not_broken_when_it_is_scarce() -> None:
    snapshot = Snapshot([NodeSpec("whole", 64_000, 0, 8), NodeSpec("begun", 64_000, 0, 8)])
    snapshot.take(share(1000), Place(1, ((0,),)))
    mix = [share(1000, devices=8)] * 3 + [share(1000)] * 8
    assert place(snapshot, mix, share(1000)).node == 1


def test_devices_that_some_insist_on_are_left_to_them() -> None:
    nodes = [NodeSpec("wanted", 64_000, 0, 4, "A"), NodeSpec("other", 64_000, 0, 4, "B")]
    mix = [share(1000, models="A"), share(1000)]
    assert place(Snapshot(nodes), mix, share(1000)).node == 1
    assert place(Snapshot(nodes), mix, share(1000, models="A")).node == 0
    full = Snapshot(nodes)
    for device in range(4):
        full.take(share(1000), Place(1, ((device,),)))
    assert place(full, mix, share(1000)).node == 0, "a pod that fits is never refused"


def test_without_an_expectation_every_pod_finds_its_place() -> None:
    snapshot = Snapshot([NodeSpec("n", 1000, 0, 1)])
    assert place(snapshot, [], share(400)) == Place(0, ((0,),))


WIDE = [share(1000, cpu, devices) for devices in (2, 3, 4, 8) for cpu in (0, 3000, 9000, 20_000)]
WIDE += [share(400, 2000, 2), share(700, 5000, 2), share(1000, 1000, 2, "A")]


PAIR = [NodeSpec("a", 40_000, 0, 8, "A"), NodeSpec("b", 40_000, 0, 8, "B")]


@cache
def numbers_of_pair() -> Numbers:
    return Numbers.of("worth", Outline.of(Snapshot(PAIR)), Mix.of([*WIDE, share(300, 1000), share(650, 500)]))


def copies(left: list[int], cpu_milli: int, request: PodRequest, model: str) -> int:
    """Return how many copies of a pod with several devices would fit, each on devices of its own and nothing else."""
    [one] = request.shares
    if request.models and model not in request.models:
        return 0
    by_devices = sum(milli >= one.milli for milli in left) // one.devices
    return min(by_devices, cpu_milli // request.cpu_milli) if request.cpu_milli else by_devices


@given(
    st.lists(st.integers(0, 100).map(lambda step: 10 * step), min_size=8, max_size=8),
    st.lists(st.integers(0, 100).map(lambda step: 10 * step), min_size=8, max_size=8),
    st.integers(0, 40_000),
    st.sampled_from([share(300), share(650, 2000), share(1000, 1000)]),
)
@settings(max_examples=60, deadline=None)
def test_the_cost_of_a_place_is_the_worth_that_the_node_loses(
    left: list[int], other: list[int], cpu_milli: int, request: PodRequest
) -> None:
    snapshot = Snapshot(PAIR)
    snapshot.set_left(0, cpu_milli, 0, left, [0] * 8)
    snapshot.set_left(1, 40_000, 0, other, [0] * 8)
    numbers = numbers_of_pair()
    policy = Policy.made_of(numbers, snapshot)
    native = policy.native.native
    native.grain_milli = 1e-6
    kinds = [(kind, native.kind[index].wanted) for index, (kind, _, _) in enumerate(numbers.kinds)]

    rooms = snapshot.rooms(policy.native)
    for index, (kind, _) in enumerate(kinds):
        pod = share(kind.milli, kind.cpu_milli, max(1, kind.devices), " ".join(kind.models))
        expected_room = copies(left, cpu_milli, pod, "A") + copies(other, 40_000, pod, "B")
        assert rooms[index] == (expected_room if kind.devices > 1 else 0)

    def worth(left: list[int], cpu_milli: int) -> float:
        assert numbers.tables is not None
        singles = min(
            price * cpu_milli + sum(float(numbers.tables[0, milli // 10, at]) for milli in left)
            for at, price in enumerate(numbers.prices)
        )
        wide = sum(
            wanted * kind.milli * kind.devices
            * copies(left, cpu_milli, share(kind.milli, kind.cpu_milli, kind.devices, " ".join(kind.models)), "A")
            for kind, wanted in kinds
            if kind.devices > 1
        )  # fmt: skip
        return singles + wide

    [one] = request.shares
    for device in range(8):
        [judged] = snapshot.rank(request, policy.native, [0], allowed=[1 << device])
        if judged.verdict is not Verdict.FITS:
            continue
        after = [milli - one.milli * (at == device) for at, milli in enumerate(left)]
        loss = worth(left, cpu_milli) - worth(after, cpu_milli - request.cpu_milli)
        assert judged.cost * 1e-6 == pytest.approx(loss + native.crowding[0] * one.milli, abs=1e-3)


def test_numbers_made_elsewhere_make_the_same_policy() -> None:
    snapshot = Snapshot([NodeSpec("n", 64_000, 0, 4, "A")])
    mix = Mix.of([share(300, 1000), share(1000, 2000, 2)])
    numbers = pickle.loads(pickle.dumps(Numbers.of("worth", Outline.of(snapshot), mix)))  # noqa: S301 - ours
    ours, theirs = Policy("worth", snapshot, mix), Policy.made_of(numbers, snapshot)
    assert snapshot.rank(share(300), ours.native, [0]) == snapshot.rank(share(300), theirs.native, [0])
    with pytest.raises(PlacementError, match="another snapshot's"):
        Policy.made_of(numbers, Snapshot([NodeSpec("n", 1, 0, 1, "B")]))


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
    # Any feasible prices are a lower bound for the devices; even prices and prices by time are two such sets.
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


PARTS = st.sampled_from([100, 300, 500, 700, 1000])
NODE_DEVICES = [(node, device) for node, devices in enumerate((4, 2)) for device in range(devices)]


@settings(max_examples=80, deadline=None)
@given(
    taken=st.lists(st.tuples(st.sampled_from(NODE_DEVICES), PARTS), max_size=8),
    milli=PARTS,
    mix=st.lists(st.builds(share, PARTS, st.sampled_from([0, 4000, 9000]), st.integers(1, 3)), min_size=1, max_size=6),
)
def test_fgd_takes_the_device_after_which_the_least_is_of_no_use_to_the_mix(
    taken: list[tuple[tuple[int, int], int]], milli: int, mix: list[PodRequest]
) -> None:
    def after(*more: tuple[tuple[int, int], int]) -> Snapshot:
        snapshot = Snapshot([NodeSpec("four", 16_000, 0, 4), NodeSpec("two", 8_000, 0, 2)])
        for (node, device), part in (*taken, *more):
            if snapshot.left(node)[2][device] >= part:
                snapshot.take(share(part), Place(node, ((device,),)))
        return snapshot

    snapshot = after()
    policy = Policy("fgd", snapshot, Mix.of(mix))
    policy.refresh()
    now = snapshot.fragmentation(policy.native)
    growth = {
        (node, device): after(((node, device), milli)).fragmentation(policy.native) - now
        for node, device in NODE_DEVICES
        if snapshot.left(node)[2][device] >= milli
    }
    levels = {node: max((_level(growth[n, d]) for n, d in growth if n == node), default=-1) for node in (0, 1)}
    found = snapshot.best(share(milli), policy.native)
    assert (found is None) == (not growth)
    if found:
        assert found.node == max(levels, key=lambda node: (levels[node], -node))
        least = min(grown for (node, _), grown in growth.items() if node == found.node)
        assert growth[found.node, found.devices[0][0]] == pytest.approx(least, abs=1e-6)


def _level(growth: float) -> int:
    return floor(100 / (1 + exp(growth / 1000)) + 1e-9)
