"""What the device plugin needs of the agent: ids that it chooses, and memory in proportion to the request."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from agent_doubles import A10, GIB, H200, H200_B, MemoryArbiter, ask
from hypothesis import given
from hypothesis import strategies as st

from rig.until import until
from sharepod.agent import admission
from sharepod.agent.device import DeviceInfo
from sharepod.agent.errors import DoesNotFit, InvalidInput, NameTaken, WrongState
from sharepod.agent.registry import Registry, TermsChange
from sharepod.agent.share import DeviceAsk, DeviceTerms, DeviceUuid, Share, ShareAsk, ShareClass, ShareId, Terms
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from rig.agent import RunningAgent

ID = ShareId("abcdefghjk")
MIB = 2**20
UNIFIED = DeviceInfo(DeviceUuid("GPU-dddd"), 0, "GB10", 0)


def make(directory: Path) -> Registry:
    return Registry(MemoryArbiter(), directory, [H200, H200_B, A10])


def in_proportion(request: int, device: str = "") -> DeviceAsk:
    return DeviceAsk(device, Terms(request, 100_000, 0), memory_in_proportion=True)


def place(asked: DeviceAsk, devices: list[DeviceInfo], *shares: Share) -> DeviceTerms:
    [placed] = admission.place([asked], admission.rooms(devices, shares, {}), overcommit=False)
    return placed


def holding(name: str, placed: DeviceTerms) -> Share:
    return Share(ShareId(name), (placed,), ShareClass.STANDARD, f"/x/{name}", 0)


# ---- ids


@pytest.mark.parametrize(
    "wrong",
    ["abcdefghj", "abcdefghjkm", "ABCDEFGHJK", "abcdefghi1", "abcdefgh/k", "../../../x", "abcdefghjk\n", "..........",
     "abcdefghé2", "\0bcdefghjk", " bcdefghjk"],
)  # fmt: skip
def test_an_id_that_is_none_never_becomes_a_path(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="is no share id: use 10 of abcdefghjkmnpqrstuvwxyz23456789") as caught:
        replace(ask(), id=ShareId(wrong))
    assert "\n" not in str(caught.value)


def test_a_share_has_the_id_that_was_asked_for(tmp_path: Path) -> None:
    registry = make(tmp_path)
    share = registry.register(replace(ask(), id=ID), unix_ns=1, now_ns=0)
    assert share.id == ID
    assert (tmp_path / ID / "terms").exists()
    registry.validate()


def test_who_registers_again_gets_the_share_as_it_is(tmp_path: Path) -> None:
    registry = make(tmp_path)
    first = registry.register(replace(ask(60, name="a"), id=ID, labels={"pod": "p"}), unix_ns=1, now_ns=0)
    inode = (tmp_path / ID / "terms").stat().st_ino
    registry.register(ask(name="b"), unix_ns=1, now_ns=0)
    for other in (
        ask(60, name="a"),
        ask(60),
        ask(20, name="c"),
        ask(100, memory=200 * GIB, device="17", name="b"),  # which would neither fit nor be there
        replace(ask(), labels={"pod": "q"}, share_class=ShareClass.BATCH),
    ):
        assert registry.register(replace(other, id=ID), unix_ns=2, now_ns=1) is first
    changed = registry.update(ID, [TermsChange(limit_millipercent=70_000)], None)
    assert registry.register(replace(ask(60, name="a"), id=ID), unix_ns=2, now_ns=1) is changed
    assert (tmp_path / ID / "terms").stat().st_ino == inode
    assert len(registry.shares()) == 2
    registry.validate()


def test_what_is_left_under_an_id_is_cleaned_first(tmp_path: Path) -> None:
    registry = make(tmp_path)
    (tmp_path / ID / "deep").mkdir(parents=True)
    (tmp_path / ID / "deep" / "old").touch()
    (tmp_path / ID / "terms").write_text("of before")
    registry.register(replace(ask(), id=ID), unix_ns=1, now_ns=0)
    assert sorted(path.name for path in (tmp_path / ID).iterdir()) == ["slots", "terms"]
    assert (tmp_path / ID / "terms").read_text() == ""
    assert (tmp_path / ID).stat().st_mode & 0o777 == 0o711
    registry.release(ID, 1)
    again = registry.register(replace(ask(10), id=ID), unix_ns=2, now_ns=2)
    assert (again.id, again.registered_unix_ns) == (ID, 2)
    registry.validate()


def test_what_lies_under_an_id_and_is_no_directory_is_not_followed(tmp_path: Path) -> None:
    shares, elsewhere = tmp_path / "shares", tmp_path / "elsewhere"
    shares.mkdir()
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (shares / ID).symlink_to(elsewhere)
    registry = make(shares)
    with pytest.raises(WrongState, match="region of the share cannot be created: File exists"):
        registry.register(replace(ask(), id=ID), unix_ns=1, now_ns=0)
    assert (elsewhere / "kept").exists()
    assert registry.shares() == ()


def test_an_id_that_is_anothers_name_is_refused(tmp_path: Path) -> None:
    registry = make(tmp_path)
    named = registry.register(ask(name=ID), unix_ns=1, now_ns=0)
    with pytest.raises(NameTaken, match=f"id {ID!r} is the name of share {named.id}: choose another, or release"):
        registry.register(replace(ask(), id=ID), unix_ns=1, now_ns=0)
    registry.validate()


def test_the_agent_returns_a_share_after_a_crash_and_cleans_what_was_given_up(agent: RunningAgent) -> None:
    first = agent.register(30, id=ID, labels={"pod": "p", "pod_uid": "u"})
    assert first.share.id == ID
    assert first.environment["SHAREPOD_REGION"].endswith(f"/shares/{ID}")
    agent.stop(signal.SIGKILL)
    agent.start()
    again = agent.register(50, id=ID, name="other")
    assert again.share.registered_unix_ns == first.share.registered_unix_ns
    assert (again.share.name, dict(again.share.labels)) == ("", {"pod": "p", "pod_uid": "u"})
    assert again.share.devices[0].request_millipercent == 30_000
    assert again.environment == first.environment
    assert again.hook_path == first.hook_path

    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=ID))
    (agent.directory / "shares" / ID).mkdir()
    (agent.directory / "shares" / ID / "left").touch()
    agent.register(50, id=ID)
    assert not (agent.directory / "shares" / ID / "left").exists()
    for wrong in ("../../evil", "short", "abcdefghj1"):
        with pytest.raises(grpc.RpcError) as caught:
            agent.register(10, id=wrong)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        assert "is no share id" in caught.value.details()  # type: ignore[attr-defined]
    assert agent.directories() == {ID}


def test_who_registers_again_does_not_change_the_owner(agent: RunningAgent) -> None:
    with subprocess.Popen(["sleep", "60"]) as owner:
        agent.register(30, id=ID, owner_pid=owner.pid)
        assert agent.register(30, id=ID, owner_pid=os.getpid()).share.owner_pid == owner.pid
        owner.kill()
    until(lambda: not agent.shares())


# ---- memory in proportion


def test_memory_in_proportion_is_that_of_the_device_that_is_chosen() -> None:
    assert place(in_proportion(50_000, "0"), [H200, A10]).terms.memory_limit_bytes == H200.memory_total_bytes // 2
    assert place(in_proportion(50_000, "2"), [H200, A10]).terms.memory_limit_bytes == A10.memory_total_bytes // 2
    crowded = holding("a", DeviceTerms(A10.uuid, Terms(60_000, 100_000, 0)))
    assert place(in_proportion(30_000), [H200, A10], crowded) == DeviceTerms(
        A10.uuid, Terms(30_000, 100_000, A10.memory_total_bytes * 3 // 10 // MIB * MIB)
    )


def test_a_device_whose_memory_is_promised_is_left_out_in_proportion_too() -> None:
    full = holding("a", DeviceTerms(A10.uuid, Terms(10_000, 100_000, 20 * GIB)))
    assert place(in_proportion(50_000), [A10, H200], full).device == H200.uuid
    assert place(in_proportion(10_000), [A10, H200], full).device == A10.uuid
    with pytest.raises(DoesNotFit, match=r"memory 12 GiB does not fit on device 2: 4 GiB of 24 GiB are not promised"):
        place(in_proportion(50_000), [A10], full)
    with pytest.raises(DoesNotFit, match=r"request 100 % with as much of the memory fits on none of the 2 devices"):
        place(in_proportion(100_000), [A10, H200], full, holding("b", DeviceTerms(H200.uuid, Terms(1000, 100_000, 0))))


def test_memory_in_proportion_is_no_cap_where_there_is_nothing_to_take_a_part_of() -> None:
    assert place(in_proportion(0), [H200]).terms.memory_limit_bytes == 0
    assert place(in_proportion(30_000), [UNIFIED]).terms.memory_limit_bytes == 0


def test_memory_in_proportion_goes_not_together_with_a_cap() -> None:
    with pytest.raises(InvalidInput, match="memory 1 GiB is given together with memory in proportion to the request"):
        DeviceAsk("", Terms(30_000, 100_000, GIB), memory_in_proportion=True)


def test_each_device_of_a_gang_has_its_own_part() -> None:
    placed = admission.place(
        [in_proportion(50_000, "0"), in_proportion(50_000, "2")],
        admission.rooms([H200, A10], (), {}),
        overcommit=False,
    )
    assert [held.terms.memory_limit_bytes for held in placed] == [
        H200.memory_total_bytes // 2,
        A10.memory_total_bytes // 2,
    ]


@given(st.integers(1, 300 * GIB), st.lists(st.integers(1000, 100_000), min_size=1, max_size=100))
def test_what_fits_by_time_fits_by_memory_in_proportion(total: int, requests: list[int]) -> None:
    device = DeviceInfo(DeviceUuid("GPU-x"), 0, "X", total)
    shares: list[Share] = []
    free = 100_000
    for number, request in enumerate(requests):
        if request > free or total < 200 * MIB:
            continue
        placed = place(in_proportion(request), [device], *shares)
        cap = placed.terms.memory_limit_bytes
        assert cap % MIB == 0
        assert total * request // 100_000 - MIB < cap <= total * request // 100_000
        shares.append(holding(str(number), placed))
        free -= request


def test_the_agent_resolves_memory_in_proportion(agent: RunningAgent) -> None:
    [device, _] = agent.stub.GetNode(pb.GetNodeRequest()).devices
    item = pb.DeviceAsk(request_millipercent=30_000, memory_in_proportion=True)
    share = agent.stub.RegisterShare(pb.RegisterShareRequest(devices=[item])).share
    assert share.devices[0].memory_limit_bytes == device.memory_total_bytes * 3 // 10 // MIB * MIB
    item.memory_limit_bytes = GIB
    with pytest.raises(grpc.RpcError) as caught:
        agent.stub.RegisterShare(pb.RegisterShareRequest(devices=[item]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    best_effort = pb.DeviceAsk(memory_in_proportion=True)
    share = agent.stub.RegisterShare(pb.RegisterShareRequest(devices=[best_effort])).share
    assert share.devices[0].memory_limit_bytes == 0


def test_an_ask_without_an_id_gets_one(tmp_path: Path) -> None:
    registry = make(tmp_path)
    ids = {registry.register(ShareAsk((in_proportion(1000),)), unix_ns=1, now_ns=0).id for _ in range(20)}
    assert len(ids) == 20
    registry.validate()


def test_a_share_may_be_given_to_another_container_under_its_account(tmp_path: Path) -> None:
    registry = make(tmp_path)
    share = registry.register(replace(ask(30), labels={"pod": "p", "container": "init"}), unix_ns=1, now_ns=0)
    assert registry.update(share.id, [], None).labels == {"pod": "p", "container": "init"}
    assert registry.update(share.id, [], None, {"pod": "p", "container": "main"}).labels["container"] == "main"
    with pytest.raises(InvalidInput, match="malformed"):
        registry.update(share.id, [], None, {"pod": "p\n"})
    assert registry.find(share.id).labels == {"pod": "p", "container": "main"}
