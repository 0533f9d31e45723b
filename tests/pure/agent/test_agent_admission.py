from __future__ import annotations

import pytest
from agent_doubles import A10, GIB, H200, H200_B
from hypothesis import given
from hypothesis import strategies as st

from sharepod.agent import admission
from sharepod.agent.errors import DoesNotFit, InvalidInput, UnknownDevice, WrongState
from sharepod.agent.share import DeviceAsk, DeviceTerms, Share, ShareAsk, ShareClass, ShareId, Terms

DEVICES = [H200, H200_B, A10]


def share(name: str, *held: tuple[object, int, int]) -> Share:
    terms = tuple(DeviceTerms(d.uuid, Terms(request * 1000, 100_000, memory)) for d, request, memory in held)  # type: ignore[attr-defined]
    return Share(ShareId(name), terms, ShareClass.STANDARD, f"/x/{name}", 0)


def place(asks: list[DeviceAsk], *shares: Share, overcommit: bool = False, devices=DEVICES, health=None):  # type: ignore[no-untyped-def]
    return admission.place(asks, admission.rooms(devices, shares, health or {}), overcommit=overcommit)


def one(request: int, memory: int = 0, device: str = "") -> list[DeviceAsk]:
    return [DeviceAsk(device, Terms(request * 1000, 100_000, memory))]


@pytest.mark.parametrize(
    ("request_percent", "limit", "memory", "message"),
    [
        (101, 100, 0, "request 101 % is outside 1–100 %: give a percentage of one device's time"),
        (-5, 100, 0, "request -5 % is outside 1–100 %"),
        (0.5, 100, 0, "request 0.5 % is outside 1–100 %"),
        (30, 101, 0, "limit 101 % is outside 1–100 %: give the most"),
        (0, 0.5, 0, "limit 0.5 % is outside 1–100 %"),
        (60, 40, 0, "limit 40 % is below request 60 %: raise the limit or lower the request"),
        (30, 100, -1, "memory -1 bytes is below 0: give a size, or 0 for no cap"),
    ],
)
def test_terms_out_of_range_are_refused_with_limit_and_remedy(
    request_percent: float, limit: float, memory: int, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        Terms(int(request_percent * 1000), int(limit * 1000), memory)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["-x", "x/y", "a b", "x" * 64, "é", "x\n", "."])
def test_a_name_that_cannot_be_typed_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is no share name: use 1–63"):
        ShareAsk(tuple(one(10)), name=name)


def test_no_device_and_too_many_devices_are_refused() -> None:
    for count in (0, 17):
        with pytest.raises(InvalidInput, match=f"{count} devices asked for, outside 1–16: split"):
            ShareAsk(tuple(one(10) * count))


def test_malformed_labels_are_refused() -> None:
    for labels in ({"a b": "x"}, {"": "x"}, {"pod": "x" * 254}, {"pod": "a\nb"}):
        with pytest.raises(InvalidInput, match="label"):
            ShareAsk(tuple(one(10)), labels=labels)


def test_a_request_goes_where_the_least_time_is_left_afterwards() -> None:
    chosen = place(one(30), share("a", (H200_B, 60, 0)))
    assert chosen[0].device == H200_B.uuid


def test_a_best_effort_share_goes_where_most_is_free() -> None:
    chosen = place(one(0), share("a", (H200, 60, 0)), share("b", (A10, 10, 0)))
    assert chosen[0].device == H200_B.uuid


def test_a_device_that_is_too_small_is_left_out() -> None:
    chosen = place(one(30, 30 * GIB), share("a", (A10, 60, 0)))
    assert chosen[0].device != A10.uuid


def test_an_unhealthy_device_is_left_out_and_refused_by_name() -> None:
    health = {H200.uuid: "Xid 79"}
    assert place(one(30), health=health)[0].device != H200.uuid
    with pytest.raises(WrongState, match=r"device 0 is unhealthy \(Xid 79\): name another"):
        place(one(30, device="0"), health=health)


def test_a_device_can_be_named_by_uuid_or_index() -> None:
    assert place(one(30, device=A10.uuid))[0].device == A10.uuid
    assert place(one(30, device="2"))[0].device == A10.uuid


def test_an_unknown_device_names_those_that_are_there() -> None:
    with pytest.raises(UnknownDevice) as caught:
        place(one(30, device="7"))
    assert "unknown device '7': this node has 0 (GPU-aaaa), 1 (GPU-bbbb), 2 (GPU-cccc): name one" in str(caught.value)


def test_a_request_that_no_longer_fits_says_what_is_free() -> None:
    with pytest.raises(DoesNotFit) as caught:
        place(one(50, device="0"), share("a", (H200, 70, 0)))
    assert str(caught.value).startswith(
        "request 50 % does not fit on device 0: 30 % of its time is free: lower the request, release a share"
    )


def test_a_request_that_fits_nowhere_names_the_roomiest_device() -> None:
    shares = [share("a", (H200, 70, 0)), share("b", (H200_B, 80, 0)), share("c", (A10, 90, 0))]
    with pytest.raises(DoesNotFit, match=r"fits on none of the 3 devices: the roomiest, 0, has 30 %"):
        place(one(50), *shares)


def test_overcommit_admits_it_on_the_least_loaded_device() -> None:
    shares = [share("a", (H200, 70, 0)), share("b", (H200_B, 80, 0)), share("c", (A10, 90, 0))]
    assert place(one(50), *shares, overcommit=True)[0].device == H200.uuid


def test_more_memory_than_the_device_has_is_refused_even_with_overcommit() -> None:
    for overcommit in (False, True):
        with pytest.raises(
            InvalidInput, match=r"memory 200 GiB is more than the 141 GiB of device 0 \(H200\): lower it"
        ):
            place(one(10, 200 * GIB, "0"), overcommit=overcommit)
    with pytest.raises(InvalidInput, match="memory 200 GiB is more than any device here has"):
        place(one(10, 200 * GIB))


def test_memory_that_others_hold_is_refused_unless_overcommitted() -> None:
    with pytest.raises(DoesNotFit, match="memory 100 GiB does not fit on device 0: 41 GiB of 141 GiB are not promised"):
        place(one(10, 100 * GIB, "0"), share("a", (H200, 10, 100 * GIB)))
    assert place(one(10, 100 * GIB, "0"), share("a", (H200, 10, 100 * GIB)), overcommit=True)


def test_a_gang_gets_distinct_devices() -> None:
    chosen = place(one(100) * 3)
    assert {terms.device for terms in chosen} == {info.uuid for info in DEVICES}


def test_a_gang_larger_than_the_node_is_refused() -> None:
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
def test_no_sequence_of_admissions_promises_more_than_there_is(asks: list[tuple[int, int]]) -> None:
    shares: list[Share] = []
    for number, (request, gib) in enumerate(asks):
        if 0 < request < 1:
            continue
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
