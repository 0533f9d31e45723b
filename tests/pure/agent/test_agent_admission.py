"""Test which device a share gets and how much of it, as a pure function.

The refusals over the socket, with their texts, are rows of test_agent_end_to_end.py.
"""

from collections.abc import Sequence

import pytest
from agent_doubles import A10, GIB, H200, H200_B
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.agent.devices.device import DeviceInfo
from sharepod.agent.errors import DoesNotFit, InvalidInput
from sharepod.agent.shares import admission
from sharepod.agent.shares.share import DeviceAsk, DeviceTerms, DeviceUuid, Share, ShareAsk, ShareClass, ShareId, Terms

MIB = 2**20
DEVICES = [H200, H200_B, A10]


def share(name: str, *held: tuple[DeviceInfo, int, int]) -> Share:
    terms = tuple(DeviceTerms(d.uuid, Terms(request * 1000, 100_000, memory)) for d, request, memory in held)
    return Share(ShareId(name), terms, ShareClass.STANDARD, f"/x/{name}", 0)


def place(
    asks: list[DeviceAsk], *shares: Share, overcommit: bool = False, devices: Sequence[DeviceInfo] = DEVICES
) -> tuple[DeviceTerms, ...]:
    return admission.place(asks, admission.rooms(devices, shares, {}), overcommit=overcommit)


def one(request: int, memory: int = 0, device: str = "") -> list[DeviceAsk]:
    return [DeviceAsk(device, Terms(request * 1000, 100_000, memory))]


@pytest.mark.parametrize(("request_mp", "limit_mp"), [(500, 100_000), (0, 500)])
def test_less_than_one_per_cent_is_refused_unless_it_is_nothing(request_mp: int, limit_mp: int) -> None:
    with pytest.raises(InvalidInput, match=r" 0.5 % is outside 1–100 %"):
        Terms(request_mp, limit_mp, 0)


@pytest.mark.parametrize("name", ["-x", "x/y", "a b", "x" * 64, "é", "x\n", "."])
def test_a_name_that_cannot_be_typed_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is no share name: use 1–63"):
        ShareAsk(tuple(one(10)), name=name)


def test_malformed_labels_are_refused() -> None:
    for labels in ({"a b": "x"}, {"": "x"}, {"pod": "x" * 254}, {"pod": "a\nb"}):
        with pytest.raises(InvalidInput, match="label"):
            ShareAsk(tuple(one(10)), labels=labels)


@pytest.mark.parametrize(
    ("asks", "shares", "chosen"),
    [
        (one(30), [share("a", (H200_B, 60, 0))], H200_B),  # the device that has the least time left afterwards
        (one(0), [share("a", (H200, 60, 0)), share("b", (A10, 10, 0))], H200_B),  # best effort: the freest device
        (one(30, 30 * GIB), [share("a", (A10, 60, 0))], H200),  # the A10 is too small
        (one(30, device=A10.uuid), [], A10),
        (one(30, device="2"), [], A10),
    ],
)
def test_a_share_gets_the_device_that_is_named_or_fits_best(
    asks: list[DeviceAsk], shares: list[Share], chosen: DeviceInfo
) -> None:
    assert [terms.device for terms in place(asks, *shares)] == [chosen.uuid]


def test_a_request_that_fits_nowhere_names_the_roomiest_device_and_goes_there_under_overcommit() -> None:
    shares = [share("a", (H200, 70, 0)), share("b", (H200_B, 80, 0)), share("c", (A10, 90, 0))]
    with pytest.raises(DoesNotFit, match=r"fits on none of the 3 devices: the roomiest, 0, has 30 %"):
        place(one(50), *shares)
    assert place(one(50), *shares, overcommit=True)[0].device == H200.uuid


def test_a_gang_gets_distinct_devices_and_one_larger_than_the_node_is_refused() -> None:
    chosen = place(one(100) * 3)
    assert {terms.device for terms in chosen} == {info.uuid for info in DEVICES}
    with pytest.raises(DoesNotFit, match="4 devices asked for, this node has 3: ask for fewer"):
        place(one(10) * 4)


def test_a_device_asked_for_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="asked for twice"):
        place(one(10, device="0") + one(10, device=H200.uuid))


def test_what_shrinks_always_fits() -> None:
    crowded = [share("a", (H200, 80, 0)), share("b", (H200, 60, 0))]
    room = admission.rooms(DEVICES, crowded, {}, without=ShareId("a"))
    smaller = (DeviceTerms(H200.uuid, Terms(70_000, 100_000, 0)),)
    admission.check_change(crowded[0], smaller, room, overcommit=False)
    larger = (DeviceTerms(H200.uuid, Terms(90_000, 100_000, 0)),)
    with pytest.raises(DoesNotFit):
        admission.check_change(crowded[0], larger, room, overcommit=False)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 24)), max_size=40))
@settings(deadline=None)
def test_no_sequence_of_admissions_promises_more_than_there_is(asks: list[tuple[int, int]]) -> None:
    shares: list[Share] = []
    for number, (request, gib) in enumerate(asks):
        try:
            placed = place(one(request, gib * GIB), *shares)
        except DoesNotFit:
            free = admission.rooms(DEVICES, shares, {})
            assert all(room.free_millipercent < request * 1000 or room.free_bytes < gib * GIB for room in free.values())
            continue
        shares.append(Share(ShareId(str(number)), placed, ShareClass.STANDARD, "/x", 0))
    for room in admission.rooms(DEVICES, shares, {}).values():
        assert room.requested_millipercent <= 100_000
        assert room.memory_promised_bytes <= room.info.memory_total_bytes


# ---- memory in proportion to the request


def in_proportion(request: int, device: str = "") -> list[DeviceAsk]:
    return [DeviceAsk(device, Terms(request, 100_000, 0), memory_in_proportion=True)]


def test_memory_in_proportion_is_that_of_each_device_that_is_chosen() -> None:
    placed = place(in_proportion(50_000, "0") + in_proportion(50_000, "2"))
    parts = [held.terms.memory_limit_bytes for held in placed]
    assert parts == [H200.memory_total_bytes // 2, A10.memory_total_bytes // 2]
    crowded = share("a", (A10, 60, 0))
    assert place(in_proportion(30_000), crowded) == (
        DeviceTerms(A10.uuid, Terms(30_000, 100_000, A10.memory_total_bytes * 3 // 10 // MIB * MIB)),
    )


def test_a_device_whose_memory_is_promised_is_left_out_in_proportion_too() -> None:
    full, two = share("a", (A10, 10, 20 * GIB)), [A10, H200]
    assert place(in_proportion(50_000), full, devices=two)[0].device == H200.uuid
    assert place(in_proportion(10_000), full, devices=two)[0].device == A10.uuid
    with pytest.raises(DoesNotFit, match=r"memory 12 GiB does not fit on device 2: 4 GiB of 24 GiB are not promised"):
        place(in_proportion(50_000), full, devices=[A10])
    with pytest.raises(DoesNotFit, match=r"request 100 % with as much of the memory fits on none of the 2 devices"):
        place(in_proportion(100_000), full, share("b", (H200, 1, 0)), devices=two)


def test_memory_in_proportion_is_no_cap_where_there_is_nothing_to_take_a_part_of() -> None:
    unified = DeviceInfo(DeviceUuid("GPU-dddd"), 0, "GB10", 0)
    assert place(in_proportion(0), devices=[H200])[0].terms.memory_limit_bytes == 0
    assert place(in_proportion(30_000), devices=[unified])[0].terms.memory_limit_bytes == 0


def test_memory_in_proportion_goes_not_together_with_a_cap() -> None:
    with pytest.raises(InvalidInput, match="memory 1 GiB is given together with memory in proportion to the request"):
        DeviceAsk("", Terms(30_000, 100_000, GIB), memory_in_proportion=True)


@given(st.integers(1, 300 * GIB), st.lists(st.integers(1000, 100_000), min_size=1, max_size=100))
@settings(deadline=None)
def test_what_fits_by_time_fits_by_memory_in_proportion(total: int, requests: list[int]) -> None:
    device = DeviceInfo(DeviceUuid("GPU-x"), 0, "X", total)
    shares: list[Share] = []
    free = 100_000
    for number, request in enumerate(requests):
        if request > free or total < 200 * MIB:
            continue
        placed = place(in_proportion(request), *shares, devices=[device])
        cap = placed[0].terms.memory_limit_bytes
        assert cap % MIB == 0
        assert total * request // 100_000 - MIB < cap <= total * request // 100_000
        shares.append(Share(ShareId(str(number)), placed, ShareClass.STANDARD, "/x", 0))
        free -= request
