"""A pod of higher priority displaces as little as possible, on the devices where it helps."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Node

from sharepod.scheduler import victims
from sharepod.scheduler.ask import NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.victims import Rest, Running, least_victims

SPEC = NodeSpec("n", 10_000, 10_000, 2, "A", 1000)


def share(milli: int, devices: int = 1, cpu_milli: int = 0) -> PodAsk:
    return PodAsk(cpu_milli, 0, (ShareAsk(milli, devices),))


def pod(uid: str, milli: int, device: int, priority: int = 0, started_s: float = 0.0, cpu_milli: int = 0) -> Running:
    return Running(uid, priority, started_s, share(milli, cpu_milli=cpu_milli), ((device,),))


def rest_of(running: list[Running], spec: NodeSpec = SPEC) -> Rest:
    milli, mib = [1000] * spec.devices, [spec.device_mib] * spec.devices
    for one in running:
        for asked, devices in zip(one.ask.shares, one.devices, strict=True):
            for device in devices:
                milli[device] -= asked.milli
                mib[device] -= spec.device_mib * asked.milli // 1000
    cpu_milli = spec.cpu_milli - sum(one.ask.cpu_milli for one in running)
    return Rest(spec, cpu_milli, spec.memory_mib, tuple(milli), tuple(mib))


def test_victims_that_do_not_help_on_one_device_are_replaced() -> None:
    running = [pod("a", 300, 0), pod("b", 300, 0), pod("c", 400, 0), pod("d", 300, 1), pod("e", 600, 1)]
    rest = rest_of(running)
    # 300 and 300 are enough by sums, and on neither device.
    assert least_victims(rest, share(500), 1, running, ["a", "d"]) == ("e",)
    assert least_victims(rest, share(500), 1, running, ["a", "b"]) == ("a", "b")


def test_of_those_proposed_none_goes_that_need_not() -> None:
    running = [pod("a", 500, 0), pod("b", 500, 0), pod("c", 1000, 1)]
    assert least_victims(rest_of(running), share(500), 1, running, ["a", "b", "c"]) == ("a",)
    assert least_victims(rest_of(running), share(1000), 1, running, ["a", "b", "c"]) == ("c",)


def test_higher_priorities_stay_then_more_time_then_the_older() -> None:
    running = [pod("a", 500, 0, priority=5), pod("b", 500, 0, priority=5), pod("c", 500, 1), pod("d", 500, 1)]
    assert least_victims(rest_of(running), share(1000), 9, running) == ("c", "d")
    running = [pod("a", 700, 0), pod("b", 300, 0), pod("c", 600, 1), pod("d", 400, 1)]
    assert least_victims(rest_of(running), share(300), 9, running) == ("b",)
    running = [pod("a", 500, 0, started_s=1), pod("b", 500, 0, started_s=3), pod("c", 1000, 1, started_s=9)]
    assert least_victims(rest_of(running), share(500), 9, running) == ("b",)


def test_nobody_goes_where_it_would_not_help_or_is_not_needed() -> None:
    running = [pod("a", 600, 0, priority=3), pod("b", 600, 1, priority=2)]
    assert least_victims(rest_of(running), share(500), 2, running) is None, "an equal priority stays"
    assert least_victims(rest_of(running), share(500), 3, running, ["a"]) == ("b",)
    assert least_victims(rest_of(running), share(400), 9, running, ["a", "b"]) == ()
    assert least_victims(rest_of(running), share(500, 2), 3, running) is None


def test_room_that_an_over_booked_device_owes_is_not_room() -> None:
    running = [pod("a", 500, 0), pod("b", 500, 0), pod("c", 500, 0), pod("d", 1000, 1)]
    rest = rest_of(running)
    assert rest.free_milli[0] == -500
    assert least_victims(rest, share(500), 1, running[:3]) == ("a", "b")


def test_devices_that_the_pod_may_not_have_are_not_cleared() -> None:
    running = [pod("a", 100, 0), pod("b", 900, 0), pod("c", 1000, 1)]
    assert least_victims(replace(rest_of(running), allowed=0b10), share(100), 1, running) == ("c",)


def test_among_many_pods_none_goes_that_could_stay() -> None:
    spec = NodeSpec("n", 100_000, 0, 16, "A", 1000)
    running = [pod(f"p{n:02}", 250, n // 4, priority=n % 3, started_s=n) for n in range(64)]
    rest = rest_of(running, spec)
    gone = least_victims(rest, share(500, 4), 9, running)
    assert gone is not None
    rest = [one for one in running if one.uid not in gone]
    assert least_victims(rest_of(rest, spec), share(500, 4), 9, rest) == ()
    for uid in gone:
        but_one = [one for one in running if one.uid == uid or one.uid not in gone]
        assert least_victims(rest_of(but_one, spec), share(500, 4), -1, but_one) is None


def test_the_search_ends_and_what_it_found_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "LOOKS_MAX", 20)
    running = [pod(f"p{n}", 160, n // 6, priority=n % 2) for n in range(12)]
    gone = least_victims(rest_of(running), share(900, 2), 9, running)
    assert gone is not None
    rest = [one for one in running if one.uid not in gone]
    assert least_victims(rest_of(rest), share(900, 2), -1, rest) == ()


def test_what_cannot_be_of_a_node_is_refused() -> None:
    with pytest.raises(PlacementError, match="n has 2 devices"):
        Rest(SPEC, 1, 1, (1,), (1,))
    for devices in (((2,),), ((-1,),), ()):
        with pytest.raises(PlacementError, match="pod a "):
            least_victims(rest_of([]), share(1), 1, [replace(pod("a", 1, 0), devices=devices)])


SIZES = st.sampled_from([200, 250, 500, 700])
PODS = st.lists(
    st.tuples(SIZES, st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.integers(0, 4000)), max_size=8
)


@given(PODS, st.sampled_from([(300, 1), (500, 1), (1000, 1), (600, 2)]), st.integers(0, 5000), st.integers(0, 255))
@settings(max_examples=80, deadline=None)
def test_the_set_is_the_least_of_all(
    wanted: list[tuple[int, int, int, int, int]], size: tuple[int, int], cpu_milli: int, bits: int
) -> None:
    spec = replace(SPEC, devices=3)
    state, running = Node(spec), []
    for number, (milli, device, priority, started_s, own_cpu) in enumerate(wanted):
        one = pod(f"p{number}", milli, device, priority, started_s, own_cpu)
        if state.milli[device] >= milli and state.cpu_milli >= own_cpu:
            state.take(one.ask, one.devices)
            running.append(one)
    ask = share(*size, cpu_milli=cpu_milli)
    proposed = [one.uid for number, one in enumerate(running) if bits >> number & 1]

    def makes_room(gone: tuple[Running, ...]) -> bool:
        for one in gone:
            state.take(one.ask, one.devices, -1)
        fits = state.fits(ask)
        for one in gone:
            state.take(one.ask, one.devices)
        return fits

    def dearness(gone: tuple[Running, ...]) -> tuple[object, ...]:
        counts = tuple(sum(one.priority == priority for one in gone) for priority in (1, 0))
        ages = sorted(running, key=lambda one: (-one.started_s, one.uid))
        oldest_first = [one in gone for one in reversed(ages)]
        return counts, sum(one.ask.milli for one in gone), oldest_first

    lower = [one for one in running if one.priority < 2]
    expected = None
    for among in ([one for one in lower if one.uid in proposed], lower):
        sets = [gone for count in range(len(among) + 1) for gone in combinations(among, count) if makes_room(gone)]
        if sets:
            expected = tuple(sorted(one.uid for one in min(sets, key=dearness)))
            break
    rest = Rest(spec, state.cpu_milli, state.memory_mib, tuple(state.milli), tuple(state.mib))
    assert least_victims(rest, ask, 2, running, proposed) == expected
