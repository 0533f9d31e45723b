"""The ids of units, for any devices and any shares on them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.deviceplugin.unit import NOT_BOUND, UNITS_MAX, UnitId, Units, is_late

A, B, C = (f"GPU-{digit * 8}-0000-0000-0000-000000000001" for digit in "abc")
SIMULATED = [f"GPU-53474750-1234-1234-8000-0000000000{index:02x}" for index in range(3)]

uuids = st.one_of(
    st.uuids().map(lambda uuid: f"GPU-{uuid}"),
    st.uuids().map(lambda uuid: f"MIG-{uuid}"),
    st.integers(0, 255).map(lambda low: f"GPU-{UUID(int=(0x1B2C3D4E << 96) + low)}"),  # alike in their first digits
    st.tuples(st.sampled_from([A, B]), st.integers(0, 6)).map(lambda pair: f"MIG-{pair[0]}/{pair[1]}/0"),
    st.text("GPUMIG-/", min_size=1, max_size=8),
)
spares = st.sampled_from([0, 1, 60, 100, 400])
nodes = st.lists(st.tuples(uuids, st.booleans()), max_size=16, unique_by=lambda device: device[0])


def late(number: int) -> UnitId:
    return UnitId(f"u{number:04d}")


def units_of(units: Units, uuid: str, count: int = 100) -> list[UnitId]:
    return [unit for unit, _ in units.all({}) if units.device_of(unit) == uuid][:count]


@settings(deadline=None)
@given(nodes, st.booleans(), spares)
def test_ids_are_short_and_unique_and_a_hundred_per_device_and_the_spare_ones(
    devices: list[tuple[str, bool]], is_bound_late: bool, spare: int
) -> None:
    units = Units(devices, late=is_bound_late, spare_percent=spare)
    ids = [unit for unit, _ in units.all({})]
    each = 100 + spare
    assert len(ids) == len(set(ids)) == each * len(devices)
    assert all(0 < len(unit) <= 63 for unit in ids)
    assert [units.device_of(unit) for unit in ids] == (
        [None] * len(ids) if is_bound_late else [uuid for uuid, _ in devices for _ in range(each)]
    )
    assert all(is_late(unit) == is_bound_late for unit in ids)
    without = Units(devices, late=is_bound_late)
    assert {unit for unit, _ in without.all({})} <= set(ids), "the ids of pods that run stay"
    assert all(without.device_of(unit) == units.device_of(unit) for unit in ids), "also where none are spared any more"


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


def test_spare_units_go_on_after_99_and_have_room_for_their_third_digit() -> None:
    units = Units([("GPU-1B2C3D4E-5555-6666-7777-888899990000", True)], late=False, spare_percent=400)
    ids = [unit for unit, _ in units.all({})]
    assert [ids[number] for number in (0, 99, 100, 499)] == [
        "1b2c3d4e-00",
        "1b2c3d4e-99",
        "1b2c3d4e-100",
        "1b2c3d4e-499",
    ]
    twins = Units([(f"MIG-{A}/{number}/0", True) for number in range(7)], late=False, spare_percent=400)
    ids = [unit for unit, _ in twins.all({})]
    assert {len(unit) for unit in ids} == {63}
    assert len(set(ids)) == 3500


def test_of_very_many_devices_fewer_units_are_spared() -> None:
    for late_, count in ((True, 112), (False, 112), (False, 1000)):
        units = Units([(f"GPU-{number:08x}", True) for number in range(count)], late=late_, spare_percent=400)
        assert max(100 * count, UNITS_MAX - count) <= len(units.all({})) <= max(100 * count, UNITS_MAX)
    assert Units([(A, True)] * 80, late=True, spare_percent=400).spare == 400


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
    spares,
)
def test_bound_late_an_unhealthy_device_takes_its_units_out_and_spares_the_shares_of_others(
    health: list[bool], shares: list[tuple[int, int]], random: object, spare: int
) -> None:
    devices = [(f"GPU-{index:08x}", healthy) for index, healthy in enumerate(health)]
    units = Units(devices, late=True, spare_percent=spare)
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
    assert len(listed) == len({unit for unit, _ in listed}) == (100 + spare) * len(devices)
    assert len(out) == (100 + spare) * len(unhealthy)
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
@given(nodes, st.booleans(), spares, st.data())
def test_what_is_packed_is_available_and_has_all_that_it_must(
    devices: list[tuple[str, bool]], is_bound_late: bool, spare: int, data: st.DataObject
) -> None:
    units = Units(devices, late=is_bound_late, spare_percent=spare)
    ids = [unit for unit, _ in units.all({})]
    step = data.draw(st.integers(1, 7))
    available = ids[::step]
    must = available[: data.draw(st.integers(0, 20))]
    size = data.draw(st.integers(len(must), max(len(must), len(ids) + 5)))
    yielded = {uuid: data.draw(st.integers(0, 600)) for uuid, _ in devices}
    chosen = units.pack(available, must, size, yielded=yielded)
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


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 4)), min_size=1, max_size=6),
    st.integers(1, 100),
    st.sampled_from([100, 250, 400]),
)
def test_spare_units_are_of_use_only_where_shares_yield(held: list[tuple[int, int]], size: int, spare: int) -> None:
    """Per device: what runs there, and how many whole devices' worth yields."""
    names = [f"GPU-{index:08x}" for index in range(len(held))]
    units = Units([(name, True) for name in names], late=False, spare_percent=spare)
    yielded = {name: min(spare, 100 * many) for name, (_, many) in zip(names, held, strict=True)}
    available = [
        unit
        for name, (runs, _) in zip(names, held, strict=True)
        for unit in units_of(units, name, 100 + spare)[runs + yielded[name] :]
    ]
    on = [units.device_of(unit) for unit in units.pack(available, [], size, yielded=yielded)]
    rooms = {name: 100 - runs for name, (runs, _) in zip(names, held, strict=True)}
    fitting = [name for name in names if rooms[name] >= size]
    assert len(on) == min(size, len(available))
    if fitting:
        assert on == [min(fitting, key=lambda name: rooms[name])] * size, "as if nothing yielded and none were spared"
    elif any(100 + spare - runs - yielded[name] >= size for name, (runs, _) in zip(names, held, strict=True)):
        assert len(set(on)) == 1, "its start waits for room; it is not refused for good"


def test_whole_devices_are_of_as_many_devices_although_one_has_as_many_units() -> None:
    units = Units([(A, True), (B, True), (C, True)], late=False, spare_percent=100)
    whole = [unit for unit, _ in units.all({})]
    for size, most in ((200, 2), (300, 3)):
        packed = units.pack(whole, [], size)
        on = [units.device_of(unit) for unit in packed]
        assert {on.count(uuid) for uuid in set(on)} == {100}
        assert len(set(on)) == most
    # A yields all of its time to somebody who has it: only B and C are free.
    available = units_of(units, B, 200) + units_of(units, C, 200)
    assert {units.device_of(unit) for unit in units.pack(available, [], 200, yielded={A: 100})} == {B, C}
    begun = units_of(units, A, 30)
    packed = units.pack([*whole, *begun], begun, 100)
    assert {units.device_of(unit) for unit in packed} == {A}


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


def test_units_are_of_the_wanted_devices_when_these_have_so_many() -> None:
    units = Units([(A, True), (B, True), (C, True)], late=False)
    available = units_of(units, A, 10) + units_of(units, B, 40) + units_of(units, C)

    def devices(size: int, *wanted: str, must: list[UnitId] | None = None) -> set[str | None]:
        return {units.device_of(unit) for unit in units.pack(available, must or [], size, wanted)}

    assert devices(10) == {A}, "the fullest that it fits on"
    assert devices(10, C) == {C}
    assert devices(30, B) == {B}
    assert devices(50, B) == {C}, "the wanted one has not so many"
    assert devices(30, "GPU-gone") == {B}
    assert devices(30, C, must=units_of(units, B, 5)) == {B, C}
    whole = units_of(units, A) + units_of(units, B) + units_of(units, C)
    assert {units.device_of(unit) for unit in units.pack(whole, [], 200, (A, C))} == {A, C}
