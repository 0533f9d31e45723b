"""The ids of units, for any devices and any shares on them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.deviceplugin.unit import NOT_BOUND, UnitId, Units, is_late

A, B, C = (f"GPU-{digit * 8}-0000-0000-0000-000000000001" for digit in "abc")
SIMULATED = [f"GPU-53474750-1234-1234-8000-0000000000{index:02x}" for index in range(3)]

uuids = st.one_of(
    st.uuids().map(lambda uuid: f"GPU-{uuid}"),
    st.uuids().map(lambda uuid: f"MIG-{uuid}"),
    st.integers(0, 255).map(lambda low: f"GPU-{UUID(int=(0x1B2C3D4E << 96) + low)}"),  # alike in their first digits
    st.tuples(st.sampled_from([A, B]), st.integers(0, 6)).map(lambda pair: f"MIG-{pair[0]}/{pair[1]}/0"),
    st.text("GPUMIG-/", min_size=1, max_size=8),
)
nodes = st.lists(st.tuples(uuids, st.booleans()), max_size=16, unique_by=lambda device: device[0])


def late(number: int) -> UnitId:
    return UnitId(f"u{number:04d}")


def units_of(units: Units, uuid: str, count: int = 100) -> list[UnitId]:
    return [unit for unit, _ in units.all({}) if units.device_of(unit) == uuid][:count]


@settings(deadline=None)
@given(nodes, st.booleans())
def test_ids_are_short_and_unique_and_a_hundred_per_device(
    devices: list[tuple[str, bool]], is_bound_late: bool
) -> None:
    units = Units(devices, late=is_bound_late)
    ids = [unit for unit, _ in units.all({})]
    assert len(ids) == len(set(ids)) == 100 * len(devices)
    assert all(0 < len(unit) <= 63 for unit in ids)
    assert [units.device_of(unit) for unit in ids] == (
        [None] * len(ids) if is_bound_late else [uuid for uuid, _ in devices for _ in range(100)]
    )
    assert all(is_late(unit) == is_bound_late for unit in ids)


@settings(deadline=None)
@given(nodes, st.data())
def test_a_device_that_is_added_or_lost_changes_no_other_devices_ids(
    devices: list[tuple[str, bool]], data: st.DataObject
) -> None:
    some = data.draw(st.permutations(devices)) if devices else []
    some = some[: data.draw(st.integers(0, len(some)))]
    few, many = Units(some, late=False), Units(devices, late=False)
    changed = {uuid for uuid, _ in some if units_of(few, uuid) != units_of(many, uuid)}
    names = [("".join(c for c in uuid.lower() if c in "0123456789abcdef")[:8], uuid) for uuid, _ in devices]
    twins = {uuid for name, uuid in names if [other for other, _ in names].count(name) > 1}
    assert changed <= twins


def test_an_id_begins_with_the_first_eight_digits_of_its_device() -> None:
    units = Units([("GPU-1B2C3D4E-5555-6666-7777-888899990000", True), (f"MIG-{A[4:]}", True)], late=False)
    ids = [unit for unit, _ in units.all({})]
    assert ids[7] == "1b2c3d4e-07"
    assert ids[199] == "aaaaaaaa-99"


def test_devices_that_begin_alike_have_all_their_digits_and_a_third_one_changes_nothing() -> None:
    two, three = (Units([(uuid, True) for uuid in SIMULATED[:count]], late=False) for count in (2, 3))
    assert two.all({}) == three.all({})[:200]
    assert two.all({})[0][0] == "53474750123412348000000000000000-00"


def test_what_is_no_unit_is_of_no_device() -> None:
    units = Units([(A, True)], late=False)
    for word in (
        "",
        "u0001",
        "aaaaaaaa",
        "aaaaaaaa-",
        "aaaaaaaa-1",
        "aaaaaaaa-001",
        "aaaaaaaa-x1",
        "bbbbbbbb-01",
        "-01",
    ):
        assert units.device_of(UnitId(word)) is None
    assert units.device_of(UnitId("aaaaaaaa-01")) == A
    assert Units([(A, True)], late=True).device_of(UnitId("aaaaaaaa-01")) == A


def test_bound_early_the_units_of_an_unhealthy_device_are_unhealthy() -> None:
    units = Units([(A, False), (B, True)], late=False)
    assert {(units.device_of(unit), healthy) for unit, healthy in units.all({})} == {(A, False), (B, True)}


@settings(deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(-1, 7), st.integers(1, 130)), max_size=8),
    st.randoms(use_true_random=False),
)
def test_bound_late_an_unhealthy_device_takes_a_hundred_units_out_and_spares_the_shares_of_others(
    health: list[bool], shares: list[tuple[int, int]], random: object
) -> None:
    devices = [(f"GPU-{index:08x}", healthy) for index, healthy in enumerate(health)]
    units = Units(devices, late=True)
    free = [unit for unit, _ in units.all({})]
    random.shuffle(free)  # type: ignore[attr-defined]
    taken: dict[str, set[UnitId]] = {}
    for index, size in shares:
        uuid = NOT_BOUND if index < 0 else devices[index % len(devices)][0]
        taken.setdefault(uuid, set()).update(free[:size])
        del free[:size]
    listed = units.all(taken)
    out = {unit for unit, healthy in listed if not healthy}
    unhealthy = {uuid for uuid, healthy in devices if not healthy}
    theirs = {unit for uuid in unhealthy for unit in taken.get(uuid, ())}
    others = {unit for uuid, held in taken.items() if uuid not in unhealthy for unit in held}
    assert len(listed) == len({unit for unit, _ in listed}) == 100 * len(devices)
    assert len(out) == 100 * len(unhealthy)
    assert theirs <= out or out <= theirs
    assert not out & others or theirs | set(free) <= out
    assert units.all(taken) == listed


def test_bound_late_a_share_on_a_lost_device_keeps_no_room_from_others_and_others_keep_their_ids() -> None:
    two = Units([(A, True), (B, True)], late=True)
    high = [unit for unit, _ in two.all({})][150:180]
    taken = {A: set(high), B: {late(0), late(1)}}
    one = [unit for unit, _ in Units([(A, True)], late=True).all(taken)]
    assert len(one) == 100
    assert set(high) <= set(one)
    assert not {late(0), late(1)} & set(one)
    assert set(one) - set(high) == {late(number) for number in range(2, 72)}


@settings(deadline=None)
@given(nodes, st.booleans(), st.data())
def test_what_is_packed_is_available_and_has_all_that_it_must(
    devices: list[tuple[str, bool]], is_bound_late: bool, data: st.DataObject
) -> None:
    units = Units(devices, late=is_bound_late)
    ids = [unit for unit, _ in units.all({})]
    step = data.draw(st.integers(1, 7))
    available = ids[::step]
    must = available[: data.draw(st.integers(0, 20))]
    size = data.draw(st.integers(len(must), max(len(must), len(ids) + 5)))
    chosen = units.pack(available, must, size)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    assert set(must) <= set(chosen) <= set(available)


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(1, 100))
def test_a_share_of_one_device_goes_where_the_least_is_left(free: list[int], size: int) -> None:
    units = Units([(f"GPU-{index:08x}", True) for index in range(len(free))], late=False)
    available = [unit for index, count in enumerate(free) for unit in units_of(units, f"GPU-{index:08x}", count)]
    on = [units.device_of(unit) for unit in units.pack(available, [], size)]
    fitting = [count for count in free if count >= size]
    if fitting:
        assert len(set(on)) == 1
        assert on == [f"GPU-{free.index(min(fitting)):08x}"] * size


def test_whole_devices_are_packed_whole_and_what_is_over_where_it_fits_best() -> None:
    units = Units([(A, True), (B, True), (C, True)], late=False)
    available = units_of(units, A, 60) + units_of(units, B) + units_of(units, C)
    assert sorted(units.pack(available, [], 200)) == sorted(units_of(units, B) + units_of(units, C))
    packed = units.pack(available, [], 150)
    assert sum(units.device_of(unit) == A for unit in packed) == 50
    assert sum(units.device_of(unit) == B for unit in packed) == 100
    # What an init container has of a device counts for it.
    begun = units_of(units, A, 30)
    assert {units.device_of(unit) for unit in units.pack(available, begun, 50)} == {A}
    whole = units_of(units, A) + units_of(units, B) + units_of(units, C, 99)
    assert {units.device_of(unit) for unit in units.pack(whole, begun, 200)} == {A, B}


def test_bound_late_the_lowest_units_are_given_out_first() -> None:
    units = Units([(f"GPU-{index:08x}", True) for index in range(101)], late=True)
    available = [unit for unit, _ in units.all({})][9998:]
    assert len(available) == 102
    assert units.pack(reversed(available), [available[50]], 3) == [available[50], late(9998), late(9999)]
