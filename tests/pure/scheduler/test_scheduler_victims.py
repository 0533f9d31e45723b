"""A pod of higher priority displaces as little as possible, on the devices where it helps."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Node

from sharepod.scheduler.ask import NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.victims import Rest, Room, Running, least_set

SPEC = NodeSpec("n", 10_000, 10_000, 2, "A", 1000)


def share(milli: int, devices: int = 1, cpu_milli: int = 0) -> PodAsk:
    return PodAsk(cpu_milli, 0, (ShareAsk(milli, devices),))


def pod(uid: str, milli: int, device: int, cpu_milli: int = 0) -> Running:
    return Running(uid, share(milli, cpu_milli=cpu_milli), ((device,),))


def rest_of(running: list[Running], spec: NodeSpec = SPEC) -> Rest:
    milli, mib = [1000] * spec.devices, [spec.device_mib] * spec.devices
    for one in running:
        for asked, devices in zip(one.ask.shares, one.devices, strict=True):
            for device in devices:
                milli[device] -= asked.milli
                mib[device] -= spec.device_mib * asked.milli // 1000
    cpu_milli = spec.cpu_milli - sum(one.ask.cpu_milli for one in running)
    return Rest(spec, cpu_milli, spec.memory_mib, tuple(milli), tuple(mib))


def least(rest: Rest, ask: PodAsk, running: list[Running], looks_max: int = 2000) -> list[str]:
    """Return the uids of the least time of devices that has to go."""
    found = least_set(Room(rest, ask).is_made_by, running, [one.ask.milli for one in running], looks_max)
    return [one.uid for one in found]


def test_room_comes_to_be_on_a_device_and_not_over_the_node() -> None:
    running = [pod("a", 300, 0), pod("b", 300, 0), pod("c", 400, 0), pod("d", 300, 1), pod("e", 600, 1)]
    room = Room(rest_of(running), share(500))
    assert not room.is_made_by([running[0], running[3]]), "300 and 300 are enough by sums, and on neither device"
    assert room.is_made_by([running[0], running[1]])
    assert least(rest_of(running), share(300), running) == ["d"], "100 of that device are free"


def test_room_that_an_over_booked_device_owes_is_not_room() -> None:
    running = [pod("a", 500, 0), pod("b", 500, 0), pod("c", 500, 0), pod("d", 1000, 1)]
    rest = rest_of(running)
    assert rest.free_milli[0] == -500
    assert least(rest, share(500), running) in (["a", "b"], ["a", "c"], ["b", "c"], ["d"])
    assert not Room(rest, share(500)).is_made_by(running[:1])


def test_devices_that_the_pod_may_not_have_are_not_cleared() -> None:
    running = [pod("a", 100, 0), pod("b", 900, 0), pod("c", 1000, 1)]
    assert least(replace(rest_of(running), allowed=0b10), share(100), running) == ["c"]


def test_among_many_pods_none_goes_that_could_stay() -> None:
    spec = NodeSpec("n", 100_000, 0, 16, "A", 1000)
    running = [pod(f"p{n:02}", 250, n // 4) for n in range(64)]
    gone = least(rest_of(running, spec), share(500, 4), running)
    room = Room(rest_of(running, spec), share(500, 4))
    assert room.is_made_by([one for one in running if one.uid in gone])
    for uid in gone:
        assert not room.is_made_by([one for one in running if one.uid in gone and one.uid != uid])


def test_the_search_ends_and_what_it_found_makes_room() -> None:
    running = [pod(f"p{n}", 160, n // 6) for n in range(12)]
    gone = least(rest_of(running), share(900, 2), running, looks_max=20)
    assert Room(rest_of(running), share(900, 2)).is_made_by([one for one in running if one.uid in gone])


def test_a_rest_that_cannot_be_of_its_node_is_refused() -> None:
    with pytest.raises(PlacementError, match="n has 2 devices"):
        Rest(SPEC, 1, 1, (1,), (1,))


SIZES = st.sampled_from([200, 250, 500, 700])
PODS = st.lists(st.tuples(SIZES, st.integers(0, 2), st.integers(0, 4000)), max_size=8)


@given(PODS, st.sampled_from([(300, 1), (500, 1), (1000, 1), (600, 2)]), st.integers(0, 5000))
@settings(max_examples=80, deadline=None)
def test_the_set_is_the_least_of_all(wanted: list[tuple[int, int, int]], size: tuple[int, int], cpu_milli: int) -> None:
    spec = replace(SPEC, devices=3)
    state, running = Node(spec), []
    for number, (milli, device, own_cpu) in enumerate(wanted):
        one = pod(f"p{number}", milli, device, own_cpu)
        if state.milli[device] >= milli and state.cpu_milli >= own_cpu:
            state.take(one.ask, one.devices)
            running.append(one)
    ask = share(*size, cpu_milli=cpu_milli)

    def makes_room(gone: tuple[Running, ...]) -> bool:
        for one in gone:
            state.take(one.ask, one.devices, -1)
        fits = state.fits(ask)
        for one in gone:
            state.take(one.ask, one.devices)
        return fits

    sets = [gone for count in range(len(running) + 1) for gone in combinations(running, count) if makes_room(gone)]
    rest = Rest(spec, state.cpu_milli, state.memory_mib, tuple(state.milli), tuple(state.mib))
    if not sets:
        assert not Room(rest, ask).is_made_by(running)
        return
    found = least(rest, ask, running)
    assert makes_room(tuple(one for one in running if one.uid in found))
    milli = sum(one.ask.milli for one in running if one.uid in found)
    assert milli == min(sum(one.ask.milli for one in gone) for gone in sets)
