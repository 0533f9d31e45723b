"""Test the ids of units for any devices and any shares on them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.deviceplugin.core.unit import NOT_BOUND, UNITS_MAX, UnitId, Units, pack

A, B = (f"GPU-{digit * 8}-0000-0000-0000-000000000001" for digit in "ab")
spares = st.sampled_from([0, 1, 60, 100, 400])


def unit(number: int) -> UnitId:
    return UnitId(f"u{number:04d}")


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=16), spares)
def test_ids_are_the_lowest_numbers_a_hundred_per_device_and_the_spare_ones(health: list[bool], spare: int) -> None:
    devices = [(f"GPU-{index:08x}", healthy) for index, healthy in enumerate(health)]
    ids = [name for name, _ in Units(devices, spare_percent=spare).all({})]
    assert ids == [unit(number) for number in range((100 + spare) * len(devices))]


def test_of_very_many_devices_fewer_units_are_spared() -> None:
    for count in (112, 1000):
        units = Units([(f"GPU-{number:08x}", True) for number in range(count)], spare_percent=400)
        assert max(100 * count, UNITS_MAX - count) <= len(units.all({})) <= max(100 * count, UNITS_MAX)
    assert Units([(A, True)] * 80, spare_percent=400).spare == 400


@settings(deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(-1, 7), st.integers(1, 130)), max_size=8),
    st.randoms(use_true_random=False),
    spares,
)
def test_an_unhealthy_device_takes_its_units_out_and_spares_the_shares_of_others(
    health: list[bool], shares: list[tuple[int, int]], random: object, spare: int
) -> None:
    devices = [(f"GPU-{index:08x}", healthy) for index, healthy in enumerate(health)]
    units = Units(devices, spare_percent=spare)
    free = [name for name, _ in units.all({})]
    random.shuffle(free)  # type: ignore[attr-defined]
    taken: dict[str, set[UnitId]] = {}
    for index, size in shares:
        uuid = NOT_BOUND if index < 0 else devices[index % len(devices)][0]
        taken.setdefault(uuid, set()).update(free[:size])
        del free[:size]
    listed = units.all(taken)
    out = {name for name, healthy in listed if not healthy}
    unhealthy = {uuid for uuid, healthy in devices if not healthy}
    theirs = {name for uuid in unhealthy for name in taken.get(uuid, ())}
    others = {name for uuid, held in taken.items() if uuid not in unhealthy for name in held}
    assert len(listed) == len({name for name, _ in listed}) == (100 + spare) * len(devices)
    assert len(out) == (100 + spare) * len(unhealthy)
    assert theirs <= out or out <= theirs
    assert not out & others or theirs | set(free) <= out
    assert units.all(taken) == listed


def test_a_share_on_a_lost_device_keeps_no_room_from_others_and_others_keep_their_ids() -> None:
    two = Units([(A, True), (B, True)])
    high = [name for name, _ in two.all({})][150:180]
    taken = {A: set(high), B: {unit(0), unit(1)}}
    one = [name for name, _ in Units([(A, True)]).all(taken)]
    assert len(one) == 100
    assert set(high) <= set(one)
    assert not {unit(0), unit(1)} & set(one)
    assert set(one) - set(high) == {unit(number) for number in range(2, 72)}


@settings(deadline=None)
@given(st.sets(st.integers(0, 12_000).map(unit)), st.data())
def test_what_is_packed_is_available_and_has_all_that_it_must(available: set[UnitId], data: st.DataObject) -> None:
    must = set(data.draw(st.lists(st.sampled_from(sorted(available)), max_size=20))) if available else set()
    size = data.draw(st.integers(len(must), len(available) + 5))
    chosen = pack(available, must, size)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    assert must <= set(chosen) <= available


def test_the_lowest_units_are_given_out_first() -> None:
    available = [name for name, _ in Units([(f"GPU-{index:08x}", True) for index in range(101)]).all({})][9998:]
    assert len(available) == 102
    assert pack(available[::-1], [available[50]], 3) == [available[50], unit(9998), unit(9999)]
