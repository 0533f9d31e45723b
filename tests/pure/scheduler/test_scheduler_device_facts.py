"""Test that measured use, promises and links decide between equal places, and never whether a pod fits."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.scheduler.placement.mix import Mix
from sharepod.scheduler.placement.native import Place, Snapshot, Verdict
from sharepod.scheduler.placement.policy import ROWS, WEIGHTS, Policy
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest

NODE = NodeSpec("n", 64_000, 65_536, 4, "A")
MIX = Mix.of(
    [
        PodRequest(1000, 0, (ShareRequest(300),)),
        PodRequest(0, 0, (ShareRequest(470),)),
        PodRequest(0, 0, (ShareRequest(1000, 2),)),
    ]
)
FINE = 1e-6
"""A grain so fine that costs are reported as exactly as they are computed."""
Use = tuple[int, int, int, int]
IDLE: Use = (0, 0, 0, 0)


def use(snapshot: Snapshot, node: int, device: int, values: Use) -> None:
    busy, waited, latency, limits = values
    snapshot.set_use(node, device, busy_milli=busy, waited_milli=waited, latency_milli=latency, limits_milli=limits)


def share(
    milli: int = 300, share_class: str = "standard", limit_milli: int | None = 1000, devices: int = 1
) -> PodRequest:
    return PodRequest(shares=(ShareRequest(milli, devices, share_class=share_class, limit_milli=limit_milli),))


def place(snapshot: Snapshot, request: PodRequest, name: str) -> Place | None:
    return snapshot.best(request, Policy(name, snapshot, MIX).native)


HARM = [
    ("latency", (900, 0, 0, 0)),
    ("latency", (0, 500, 0, 0)),
    ("standard", (0, 500, 0, 0)),
    ("standard", (0, 0, 400, 0)),
    ("batch", (0, 0, 400, 0)),
    ("batch", (0, 0, 0, 3000)),
    ("latency", (0, 0, 0, 3000)),
]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("share_class", "harm"), HARM)
def test_a_place_that_suits_a_share_less_loses_to_one_that_is_equal_else(
    name: str, share_class: str, harm: Use
) -> None:
    snapshot = Snapshot([NODE, NODE])
    for node in (0, 1):
        for device in range(4):
            snapshot.take(share(300), Place(node, ((device,),)))
    for device in (0, 1, 3):
        use(snapshot, 0, device, harm)
    assert place(snapshot, share(300, share_class), name) == Place(0, ((2,),)), "a device of a node"
    use(snapshot, 0, 2, harm)
    assert place(snapshot, share(300, share_class), name) == Place(1, ((0,),)), "a node"


USES = st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 9000))
LEFTS = st.lists(st.integers(0, 100).map(lambda tenth: tenth * 10), min_size=4, max_size=4)
ASKS = st.builds(
    lambda milli, share_class, most: share(milli, share_class, max(milli, most)),
    st.sampled_from([50, 160, 300, 470, 810, 1000]),
    st.sampled_from(["latency", "standard", "batch"]),
    st.sampled_from([300, 600, 1000]),
)


def snapshot_of(lefts: list[list[int]]) -> Snapshot:
    snapshot = Snapshot([NODE] * len(lefts))
    for node, left in enumerate(lefts):
        snapshot.set_left(node, 64_000, 65_536, left, [0] * 4)
    return snapshot


def extra_of(values: Use, one: ShareRequest) -> float:
    """Return what a device costs a share, by the formula of docs/placement.md."""
    busy, waited, latency, limits = values
    limit = one.milli if one.limit_milli is None else one.limit_milli
    if one.share_class == "latency":
        extra = WEIGHTS["busy"] * busy + WEIGHTS["waited_latency"] * waited
    else:
        extra = WEIGHTS["latency"] * latency * limit / 1000 + WEIGHTS["waited"] * waited
    return extra + WEIGHTS["promised"] * min(max(0, limits + limit - 1000), WEIGHTS["promised_most"])


@given(LEFTS, st.lists(USES, min_size=4, max_size=4), ASKS)
@settings(max_examples=150, deadline=None)
def test_the_cost_of_a_device_is_its_loss_and_what_is_measured_there(
    left: list[int], values: list[Use], request: PodRequest
) -> None:
    plain, used = snapshot_of([left]), snapshot_of([left])
    rule = Policy("worth", plain, MIX).native
    rule.native.grain_milli = FINE
    for device in range(4):
        use(used, 0, device, values[device])
    expected = {}
    for device in range(4):
        [loss] = plain.rank(request, rule, [0], allowed=[1 << device])
        [judged] = used.rank(request, rule, [0], allowed=[1 << device])
        assert judged.verdict is loss.verdict
        if loss.verdict is Verdict.FITS:
            expected[device] = loss.cost * FINE + extra_of(values[device], request.shares[0])
            assert judged.cost * FINE == pytest.approx(expected[device], abs=1e-3)
    [judged] = used.rank(request, rule, [0])
    assert (judged.verdict is Verdict.FITS) == bool(expected)
    if expected:
        assert expected[judged.devices[0][0]] == pytest.approx(min(expected.values()), abs=1e-3)


@st.composite
def links(draw: st.DrawFn, devices: int) -> tuple[list[int], list[int]]:
    masks = [0] * devices
    for one, other in combinations(range(devices), 2):
        if draw(st.booleans()):
            masks[one] |= 1 << other
            masks[other] |= 1 << one
    return masks, draw(st.lists(st.integers(0, 1), min_size=devices, max_size=devices))


@given(links(6), st.integers(0, 63), st.integers(2, 4), st.sampled_from(sorted(ROWS)), st.data())
@settings(max_examples=100, deadline=None)
def test_of_all_sets_of_devices_the_cheapest_is_taken(
    found: tuple[list[int], list[int]], begun: int, count: int, name: str, data: st.DataObject
) -> None:
    snapshot = Snapshot([NodeSpec("n", 64_000, 65_536, 6, "A")])
    snapshot.set_left(0, 64_000, 65_536, [990 if begun >> device & 1 else 1000 for device in range(6)], [0] * 6)
    snapshot.set_links(0, *found)
    for device in range(6):
        use(snapshot, 0, device, data.draw(USES))
    request = share(1000, "latency", 1000, count)
    rule = Policy(name, snapshot, MIX).native
    rule.native.grain_milli = FINE
    [judged] = snapshot.rank(request, rule, [0])
    costs = {}
    for devices in combinations(range(6), count):
        [forced] = snapshot.rank(request, rule, [0], allowed=[sum(1 << device for device in devices)])
        if forced.verdict is Verdict.FITS:
            assert forced.devices == (devices,)
            costs[devices] = forced.cost
    assert (judged.verdict is Verdict.FITS) == bool(costs)
    if costs:
        assert judged.cost == costs[judged.devices[0]]
        assert judged.cost == pytest.approx(min(costs.values()), abs=max(1, 1e-3 / FINE if name == "worth" else 1))


@pytest.mark.parametrize("name", ROWS)
def test_several_devices_are_linked_ones_and_on_one_memory_node(name: str) -> None:
    snapshot = Snapshot([NODE])
    snapshot.set_links(0, [0b0100, 0b1000, 0b0001, 0b0010])
    assert place(snapshot, share(1000, devices=2), name) == Place(0, ((0, 2),))
    snapshot.set_links(0, [0b1110, 0b1101, 0b1011, 0b0111], [0, 1, 1, 0])
    assert place(snapshot, share(1000, devices=2), name) == Place(0, ((0, 3),))
    snapshot = Snapshot([NODE, NODE])
    snapshot.set_links(0, [0, 0, 0, 0])
    snapshot.set_links(1, [0b1110, 0b1101, 0b1011, 0b0111])
    assert place(snapshot, share(1000, devices=2), name) == Place(1, ((0, 1),))


@pytest.mark.parametrize("name", ROWS)
def test_on_sixteen_devices_a_group_that_is_linked_is_found(name: str) -> None:
    snapshot = Snapshot([NodeSpec("n", 64_000, 65_536, 16, "A")])
    groups = [(0, 5, 10, 15), (1, 4, 11, 14), (2, 7, 8, 13), (3, 6, 9, 12)]
    masks = [0] * 16
    for group in groups:
        for one in group:
            masks[one] = sum(1 << other for other in group if other != one)
    snapshot.set_links(0, masks)
    snapshot.take(share(1000), Place(0, ((5,),)))
    assert place(snapshot, share(1000, devices=4), name) == Place(0, (groups[1],))


@given(
    st.lists(LEFTS, min_size=1, max_size=3),
    st.lists(USES, min_size=4, max_size=4),
    links(4),
    st.sampled_from([(300, 1), (300, 3), (1000, 2)]),
    st.sampled_from(sorted(ROWS)),
)
@settings(max_examples=100, deadline=None)
def test_what_is_known_of_devices_never_decides_whether_a_pod_fits(
    lefts: list[list[int]], values: list[Use], found: tuple[list[int], list[int]], one: tuple[int, int], name: str
) -> None:
    plain, known = snapshot_of(lefts), snapshot_of(lefts)
    for node in range(len(lefts)):
        known.set_links(node, *found)
        for device in range(4):
            use(known, node, device, values[device])
    request = PodRequest(shares=(ShareRequest(one[0], one[1], limit_milli=1000), ShareRequest(200)))
    nodes = range(len(lefts))
    rule = Policy(name, plain, MIX).native
    verdicts = [judged.verdict for judged in plain.rank(request, rule, nodes)]
    assert verdicts == [judged.verdict for judged in known.rank(request, rule, nodes)]
    assert verdicts == known.fit_array(request, nodes).tolist()


@pytest.mark.parametrize(
    ("told", "counts"), [((10**12, -5, 2_000, 10**9), (1000, 0, 1000, 32_000)), ((1, 2, 3, 4), (1, 2, 3, 4))]
)
@pytest.mark.parametrize("share_class", ["latency", "standard"])
def test_what_a_feed_may_say_is_bounded(told: Use, counts: Use, share_class: str) -> None:
    snapshots = [Snapshot([NODE]) for _ in range(3)]
    snapshots[0].set_uses(0, [told, IDLE, IDLE, IDLE])
    use(snapshots[1], 0, 0, told)
    use(snapshots[2], 0, 0, counts)
    first, *others = (
        snapshot.rank(share(300, share_class), Policy("worth", snapshot, MIX).native, [0], allowed=[1])
        for snapshot in snapshots
    )
    assert all(other == first for other in others)
