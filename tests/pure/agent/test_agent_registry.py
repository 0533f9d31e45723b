"""Test the registry of shares, in virtual time: their life, their accounts and gangs, and the checkpoint."""

import contextlib
import errno
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from agent_doubles import A10, GIB, H200, H200_B, MemoryArbiter, ask
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sharepod.agent.devices.device import DeviceInfo, DeviceProcess
from sharepod.agent.devices.health import Health
from sharepod.agent.errors import DoesNotFit, InvalidInput, NameTaken, ShareError, UnknownShare, WrongState
from sharepod.agent.shares import checkpoint
from sharepod.agent.shares.registry import Registry, TermsChange
from sharepod.agent.shares.share import NO_COPIES, Copies, Handle, Process, ShareClass, ShareId, Turn, Usage
from sharepod.process import files

SECOND = 1_000_000_000
ID = ShareId("abcdefghjk")


def make(tmp_path: Path) -> tuple[Registry, MemoryArbiter]:
    arbiter = MemoryArbiter()
    return Registry(arbiter, tmp_path, [H200, H200_B, A10]), arbiter


def dumped(registry: Registry) -> str:
    return checkpoint.Dumper("boot").dump(registry.statuses((), 0))


def records_of(registry: Registry) -> tuple[checkpoint.Record, ...]:
    return checkpoint.parse(dumped(registry), "boot").records


def test_a_share_has_a_directory_until_it_is_released(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    share = registry.register(ask(30, 60, GIB, name="train"), unix_ns=1, now_ns=0)
    assert (tmp_path / share.id / "terms").exists()
    assert (tmp_path / share.id).stat().st_mode & 0o777 == 0o711
    arbiter.use(Handle(1), SECOND // 2)
    last = registry.release("train", SECOND)
    assert last.usages[0].usage.used_ns == SECOND // 2
    assert last.usages[0].used_1s_millipercent == 50_000
    assert list(tmp_path.iterdir()) == []
    assert arbiter.terms == {}


def test_nothing_is_left_when_the_region_cannot_be_created(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    arbiter.refuse = errno.ENOSPC
    with pytest.raises(WrongState, match="region of the share cannot be created: No space left on device: check space"):
        registry.register(ask(), unix_ns=1, now_ns=0)
    assert list(tmp_path.iterdir()) == []
    assert registry.shares() == ()


def test_a_name_belongs_to_one_share(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    first = registry.register(ask(name="train"), unix_ns=1, now_ns=0)
    named = registry.register(ask(name=ID), unix_ns=1, now_ns=0)
    for wanted, message in (
        (ask(name="train"), f"name 'train' belongs to share {first.id}: choose another, or release that one"),
        (ask(name=first.id), f"name '{first.id}' belongs to share {first.id}"),
        (replace(ask(), id=ID), f"id '{ID}' is the name of share {named.id}: choose another, or release"),
    ):
        with pytest.raises(NameTaken, match=message):
            registry.register(wanted, unix_ns=1, now_ns=0)
    registry.validate()


@pytest.mark.parametrize(
    "wrong",
    ["abcdefghj", "abcdefghjkm", "ABCDEFGHJK", "abcdefghi1", "abcdefgh/k", "../../../x", "abcdefghjk\n", "..........",
     "abcdefghé2", "\0bcdefghjk", " bcdefghjk"],
)  # fmt: skip
def test_an_id_that_is_none_never_becomes_a_path(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="is no share id: use 10 of abcdefghjkmnpqrstuvwxyz23456789") as caught:
        replace(ask(), id=ShareId(wrong))
    assert "\n" not in str(caught.value)


def test_who_registers_again_gets_the_share_as_it_is(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    first = registry.register(replace(ask(60, name="a"), id=ID, labels={"pod": "p"}), unix_ns=1, now_ns=0)
    inode = (tmp_path / ID / "terms").stat().st_ino
    registry.register(ask(name="b"), unix_ns=1, now_ns=0)
    for other in (
        ask(60, name="a"),
        ask(60),
        ask(20, name="c"),
        ask(100, memory=200 * GIB, device="17", name="b"),  # it would not fit, and its device does not exist
        replace(ask(), labels={"pod": "q"}, share_class=ShareClass.BATCH),
    ):
        assert registry.register(replace(other, id=ID), unix_ns=2, now_ns=1) is first
    changed = registry.update(ID, [TermsChange(limit_millipercent=70_000)], None)
    assert registry.register(replace(ask(60, name="a"), id=ID), unix_ns=2, now_ns=1) is changed
    assert (tmp_path / ID / "terms").stat().st_ino == inode
    assert len(registry.shares()) == 2
    registry.validate()


def test_what_lies_under_an_id_and_is_no_directory_is_not_followed(tmp_path: Path) -> None:
    shares, elsewhere = tmp_path / "shares", tmp_path / "elsewhere"
    shares.mkdir()
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (shares / ID).symlink_to(elsewhere)
    registry, _ = make(shares)
    with pytest.raises(WrongState, match="region of the share cannot be created: File exists"):
        registry.register(replace(ask(), id=ID), unix_ns=1, now_ns=0)
    assert (elsewhere / "kept").exists()
    assert registry.shares() == ()


def test_a_share_may_be_given_to_another_container_under_its_account(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    share = registry.register(replace(ask(30), labels={"pod": "p", "container": "init"}), unix_ns=1, now_ns=0)
    assert registry.update(share.id, [], None).labels == {"pod": "p", "container": "init"}
    assert registry.update(share.id, [], None, {"pod": "p", "container": "main"}).labels["container"] == "main"
    with pytest.raises(InvalidInput, match="malformed"):
        registry.update(share.id, [], None, {"pod": "p\n"})
    assert registry.find(share.id).labels == {"pod": "p", "container": "main"}


def test_an_update_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(30, device="0", name="a"), unix_ns=1, now_ns=0)
    registry.register(ask(60, device="0", name="b"), unix_ns=1, now_ns=0)
    before = dict(arbiter.terms)
    with pytest.raises(DoesNotFit, match="40 % of its time is free"):
        registry.update("a", [TermsChange(request_millipercent=50_000)], None)
    with pytest.raises(InvalidInput, match="limit 20 % is below request 30 %: raise the limit or lower the request"):
        registry.update("a", [TermsChange(limit_millipercent=20_000)], None)
    with pytest.raises(InvalidInput, match="share a has nothing on device 1: name one of GPU-aaaa"):
        registry.update("a", [TermsChange("1", limit_millipercent=90_000)], None)
    assert arbiter.terms == before
    assert registry.find("a").devices[0].terms.request_millipercent == 30_000


def test_a_share_that_yields_leaves_its_time_to_others_and_keeps_its_memory(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(100, 100, 100 * GIB, device="0", name="batch"), unix_ns=1, now_ns=0)
    registry.pause("batch", paused=True)
    with pytest.raises(DoesNotFit, match="0 % of its time is free"):  # a plain pause keeps the share's promised time
        registry.register(ask(60, device="0"), unix_ns=1, now_ns=0)
    assert registry.pause("batch", paused=True, yielding=True).yielding
    assert arbiter.paused[Handle(1)]
    room = registry.rooms()[H200.uuid]
    assert (room.free_millipercent, room.yielded_millipercent) == (100_000, 100_000)
    assert room.memory_promised_bytes == 100 * GIB
    registry.register(ask(60, device="0", name="serve"), unix_ns=1, now_ns=0)
    with pytest.raises(DoesNotFit, match="request 50 % does not fit on device 0: 40 % of its time is free: lower the"):
        registry.register(ask(50, device="0"), unix_ns=1, now_ns=0)
    with pytest.raises(DoesNotFit, match=r"memory 100 GiB does not fit on device 0: .* not promised"):
        registry.register(ask(10, memory=100 * GIB, device="0"), unix_ns=1, now_ns=0)
    registry.validate()


def test_the_request_of_a_share_that_yields_is_looked_at_when_it_wants_its_time_back(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(10, device="0", name="batch"), unix_ns=1, now_ns=0)
    registry.pause("batch", paused=True, yielding=True)
    registry.register(ask(100, device="0", name="serve"), unix_ns=1, now_ns=0)
    registry.update("batch", [TermsChange(request_millipercent=20_000)], None)
    with pytest.raises(DoesNotFit, match="its request 20 % does not fit on device 0 again, 0 % of its time is free"):
        registry.pause("batch", paused=False)
    registry.release("serve", 0)
    registry.pause("batch", paused=False)
    registry.validate()


def test_only_the_directory_of_a_share_of_ours_says_that_a_process_was_started_in_it(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    share = registry.register(ask(name="a"), unix_ns=1, now_ns=0)

    def cause(region: str, *, attached: bool = False, mps: bool = False) -> str:
        return registry.unmetered_cause(DeviceProcess(7, "python", 1, region, mps), attached=attached)

    assert cause(share.directory).startswith("it has not attached")
    assert cause(share.directory, mps=True).startswith("it is a client of MPS")
    assert cause(share.directory, attached=True).startswith("its share does not hold this device")
    registry.release("a", 0)
    assert cause(share.directory).startswith("its region is gone")
    of_shares = str(tmp_path), f"{tmp_path}/", f"{tmp_path}/..", f"{share.directory}/"
    for region in ("", "/", *of_shares, f"/elsewhere/{share.id}"):
        assert cause(region) == cause(region, mps=True) == ""


def test_the_processes_of_a_share_are_at_home_on_its_devices_alone(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    for name, device, pid in (("a", "0", 7), ("b", "0", 8), ("c", "1", 9)):
        registry.register(ask(10, device=device, name=name), unix_ns=1, now_ns=0)
        arbiter.processes[max(arbiter.terms)] = (Process(pid, 0, 0, 0),)
    assert registry.pids() == {H200.uuid: {7, 8}, registry.devices[1].uuid: {9}}


def test_a_turn_keeps_the_name_of_its_share_when_that_is_released_and_its_handle_given_out_again(
    tmp_path: Path,
) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(name="old"), unix_ns=1, now_ns=0)
    registry.release("old", 10)
    arbiter.reuse_handles()
    registry.register(ask(name="new"), unix_ns=1, now_ns=10)
    arbiter.finished.append(Turn(1, Handle(1), Handle(0), 1, 2, 3, 4, 2, 0, cogranted=False))
    arbiter.finished.append(Turn(2, Handle(1), Handle(0), 11, 12, 13, 14, 2, 0, cogranted=False))
    told = [(share.name if share else None, device) for _, share, device in registry.turns(0, 10)]
    assert told == [("old", H200.uuid), ("new", H200.uuid)]


def _copied(usage: Usage, copies: Copies) -> Usage:
    return replace(
        usage, host_to_device_bytes=copies.to_device_bytes, device_to_host_bytes=copies.to_host_bytes,
        host_to_device_copies=copies.to_device_count, device_to_host_copies=copies.to_host_count,
    )  # fmt: skip


def test_what_live_processes_count_themselves_is_not_counted_twice_after_adoption(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    gone, live = Copies(1 << 40, 2, 3, 4), Copies(50, 60, 70, 80)
    arbiter.usages[Handle(1)] = [_copied(Usage(launches=100, turns=7, gone_copies=gone), gone + live)]
    arbiter.processes[Handle(1)] = (Process(5, 0, 60, 0),)
    for agents in (1, 2):  # a second time under the agent after the next
        (record,) = records_of(registry)
        registry, arbiter = make(tmp_path)
        arbiter.told[record.share.directory] = _copied(Usage(launches=65), live)
        registry.adopt(record, 0)
        arbiter.usages[Handle(1)] = [_copied(Usage(launches=65, turns=1), live)]
        arbiter.processes[Handle(1)] = (Process(5, 0, 65, 0),)
        usage = registry.statuses((), 0)[0].usages[0].usage
        assert (usage.launches, usage.turns) == (105, 7 + agents)
        assert (usage.copies, usage.gone_copies) == (gone + live, gone)
    (record,) = records_of(registry)
    registry, arbiter = make(tmp_path)
    registry.adopt(record, 0)  # the process ended after the checkpoint; an agent cleared its slot and was then killed
    usage = registry.statuses((), 0)[0].usages[0].usage
    assert (usage.launches, usage.copies, usage.gone_copies) == (105, gone + live, gone + live)


def test_shares_of_one_gang_have_one_key_and_others_have_another(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    for name, gang in (("a", "team/job"), ("b", "team/job"), ("c", "other/job"), ("d", "")):
        registry.register(replace(ask(10, name=name), gang=gang), unix_ns=1, now_ns=0)
    a, b, c, d = (arbiter.gangs[Handle(handle)] for handle in (1, 2, 3, 4))
    assert a == b != 0
    assert c not in (0, a)
    assert d == 0
    assert registry.update("d", [], None, gang="other/job").gang == "other/job"
    assert arbiter.gangs[Handle(4)] == c
    registry.update("d", [TermsChange(limit_millipercent=80_000)], None)
    assert arbiter.gangs[Handle(4)] == c, "not given: as it was"
    assert registry.update("d", [], None, gang="").gang == ""
    assert arbiter.gangs[Handle(4)] == 0
    for name in ("a", "b"):
        registry.release(name, 0)
    registry.register(replace(ask(10, name="e"), gang="third"), unix_ns=1, now_ns=0)
    assert arbiter.gangs[Handle(5)] not in (0, a, c), "a key is not given out again"


def test_a_gang_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(10, name="a"), unix_ns=1, now_ns=0)
    for gang in ("a gang", "-first", "x" * 254):
        with pytest.raises(InvalidInput, match="is no gang's name: use 1–253 letters"):
            registry.update("a", [TermsChange(limit_millipercent=50_000)], None, gang=gang)
    assert registry.find("a").devices[0].terms.limit_millipercent == 100_000
    assert arbiter.gangs[Handle(1)] == 0


def test_a_share_is_adopted_with_its_account_its_pause_and_its_gang(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(replace(ask(30, 60, GIB, name="a"), gang="job"), unix_ns=5, now_ns=0)
    registry.register(ask(10, name="b"), unix_ns=5, now_ns=0)
    registry.pause("a", paused=True)
    arbiter.use(Handle(1), 7 * SECOND)
    fresh, other = make(tmp_path)
    for record in records_of(registry):
        fresh.adopt(record, 0)
    assert fresh.shares() == registry.shares()
    assert fresh.statuses(["a"], 0)[0].usages[0].usage.used_ns == 7 * SECOND
    assert other.paused[Handle(1)]
    assert other.gangs == {Handle(1): 1, Handle(2): 0}
    fresh.validate()


def test_adoption_gives_up_what_cannot_be_served_says_why_and_touches_no_file(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    share = registry.register(ask(device="2", name="a"), unix_ns=5, now_ns=0)
    (record,) = records_of(registry)
    fresh, arbiter = make(tmp_path)
    arbiter.refuse = errno.EPROTO
    with pytest.raises(WrongState, match="Protocol error"):
        fresh.adopt(record, 0)
    assert (tmp_path / share.id / "terms").exists()
    registry.release("a", 0)
    with pytest.raises(FileNotFoundError, match="its directory is gone"):
        make(tmp_path)[0].adopt(record, 0)


def test_a_share_of_a_device_that_was_missing_is_adopted_and_the_device_described_when_it_is_found(
    tmp_path: Path,
) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(device="2", name="a"), unix_ns=5, now_ns=0)
    (record,) = records_of(registry)
    fewer = Registry(MemoryArbiter(), tmp_path, [H200_B])
    fewer.add_device(DeviceInfo(A10.uuid, 0, "unknown", 0, nvlink_peers=(1,)))
    fewer.set_health(A10.uuid, "NVML does not list it")
    fewer.adopt(record, 0)
    assert fewer.shares() == registry.shares()
    with pytest.raises(WrongState, match="NVML does not list it"):
        fewer.register(ask(device="0"), unix_ns=5, now_ns=0)
    fewer.describe(replace(A10, index=-1))
    assert fewer.devices == (replace(A10, index=0, nvlink_peers=(1,)), H200_B)
    fewer.set_health(A10.uuid, "")
    with pytest.raises(InvalidInput, match=r"memory 25 GiB is more than the 24 GiB of device 0 \(A10\): lower it"):
        fewer.register(ask(device="0", memory=25 * GIB), unix_ns=5, now_ns=0)


def test_a_checkpoint_says_which_devices_there_were(tmp_path: Path) -> None:
    devices = (H200, replace(A10, nvlink_peers=(0, 1)))
    text = checkpoint.Dumper("boot").dump((), devices=devices)
    assert checkpoint.parse(text, "boot").devices == devices
    assert checkpoint.parse(text, "another boot").devices == ()
    assert checkpoint.parse(text.replace('"index": 0', '"index": [', 1).replace("[,", "[],"), "boot").records == ()
    assert checkpoint.parse(text.replace('"uuid"', '"uuiD"'), "boot").devices == ()


def test_a_checkpoint_of_the_version_before_is_read_and_a_number_that_it_has_not_begins_at_zero() -> None:
    text = """{"format": 1, "boot_id": "boot", "driver": "580.65", "shares": [{"share":
        {"id": "abcdefghjk", "devices": [{"device": "GPU-aaaa", "terms": {"request_millipercent": 30000,
        "limit_millipercent": 60000, "memory_limit_bytes": 1073741824}}], "share_class": 0, "directory": "/run/x",
        "registered_unix_ns": 5, "name": "a", "owner_pid": 7, "owner_start_ticks": 8, "labels": {"pod": "p"},
        "paused": true, "gang": "job"}, "live_launches": 60, "usages": [{"used_ns": 1, "charged_ns": 2,
        "estimated_ns": 3, "waited_ns": 4, "overrun_ns": 5, "turns": 6, "launches": 70, "passed": 8, "cogrants": 9,
        "faults": 10, "gone_copies": {"to_device_bytes": 11, "to_host_bytes": 12, "to_device_count": 13,
        "to_host_count": 14}}]}]}"""
    (record,) = checkpoint.parse(text, "boot").records
    assert (record.share.name, record.share.share_class, record.share.gang) == ("a", ShareClass.LATENCY, "job")
    assert record.live_launches == 60
    counted = Usage(
        used_ns=1, charged_ns=2, estimated_ns=3, waited_ns=4, overrun_ns=5, turns=6, launches=70, passed=8, cogrants=9,
        faults=10, gone_copies=Copies(11, 12, 13, 14),
    )  # fmt: skip
    assert record.usages == (counted,)
    assert counted.copies == NO_COPIES
    one_account = checkpoint.parse(text.replace('"charged_ns": 2,', ""), "boot").records[0].usages
    assert one_account == (replace(counted, charged_ns=1),)  # older agents had one account for both
    older = re.sub(r', "gone_copies": {[^}]*}', "", text.replace('"driver": "580.65", ', ""))
    assert checkpoint.parse(older, "boot").driver_version == ""
    assert checkpoint.parse(older, "boot").records[0].usages == (replace(counted, gone_copies=NO_COPIES),)


def test_a_checkpoint_says_which_devices_had_a_critical_xid() -> None:
    seen = {A10.uuid: Health("Xid 79", 5, fatal=True, down=True), H200.uuid: Health("Xid 62", 7, fatal=True)}
    text = checkpoint.Dumper("boot").dump((), critical=seen)
    assert checkpoint.parse(text, "boot").critical == {
        uuid: replace(verdict, well_since_ns=0) for uuid, verdict in seen.items()
    }
    assert checkpoint.parse(text, "another boot").critical == {}
    for malformed in (text.replace('"fault"', '"fauld"'), text.replace('"critical": [', '"critical": [1, ')):
        assert checkpoint.parse(malformed, "boot").critical == {}


def test_a_checkpoint_of_another_boot_is_ignored_and_a_broken_one_refused(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(), unix_ns=5, now_ns=0)
    text = dumped(registry)
    assert checkpoint.parse(text, "another boot").records == ()
    assert checkpoint.parse(checkpoint.Dumper("boot", "580.65").dump(()), "boot").driver_version == "580.65"
    newer = text.replace('"format": 1', '"format": 9')
    for broken in ("", "{}", "[]", "null", text[:-20], newer, "[" * 100_000):
        with pytest.raises(WrongState, match="checkpoint is unreadable"):
            checkpoint.parse(broken, "boot")


def test_a_word_that_a_newer_agent_has_written_is_left_out(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    assert not re.search('"(yielding|owner|gang|ownerless)"', dumped(registry)), "unknown to earlier agents"
    newer = dumped(registry).replace('"name":', '"colour": "blue", "name":')
    found = checkpoint.parse(newer.replace('"terms": {', '"terms": {"x": [1], '), "boot")
    assert [record.share for record in found.records] == [registry.find("a")]
    assert found.unread == ()


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("30000", "-1"),
        ('"share_class"', '"share_clasS"'),
        ('"usages": [', '"usages": [{}, '),
        ('"a", "owner', '"a", "devices": null, "owner'),
        ('"directory": "', '"directory": null, "was": "'),
        ('"used_ns": 0', '"used_ns": Infinity'),
        ('"used_ns": 0', '"used_ns": 1180591620717411303424'),
        ('"turns": 0', '"turns": -1'),
    ],
    ids=["terms", "missing", "one-too-many", "null", "no-directory", "infinite", "too-large", "negative"],
)
def test_a_share_that_cannot_be_read_is_kept_for_an_agent_that_can_and_all_others_are_read(
    good: str, bad: str, tmp_path: Path
) -> None:
    registry, _ = make(tmp_path)
    shares = [registry.register(ask(name=name), unix_ns=1, now_ns=0) for name in ("a", "b")]
    text = dumped(registry)
    damaged = text.replace(good, bad, 1)
    assert damaged != text
    found = checkpoint.parse(damaged, "boot")
    assert [record.share for record in found.records] == [shares[1]]
    (unread,) = found.unread
    assert unread.name == shares[0].id
    kept = checkpoint.Dumper("boot").dump(registry.statuses(["b"], 0), [unread.text])
    assert checkpoint.parse(kept, "boot").unread == found.unread


def test_of_two_shares_with_one_id_the_first_is_read(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    shares = [registry.register(ask(name=name), unix_ns=1, now_ns=0) for name in ("a", "b")]
    found = checkpoint.parse(dumped(registry).replace(f'"id": "{shares[1].id}"', f'"id": "{shares[0].id}"'), "boot")
    assert [record.share for record in found.records] == [shares[0]]
    assert [unread.name for unread in found.unread] == [shares[0].id]


def test_a_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path) is None
    checkpoint.write(tmp_path, "one")
    checkpoint.write(tmp_path, "two")
    assert checkpoint.read(tmp_path) == "two"
    assert (tmp_path / "checkpoint.json").stat().st_mode & 0o777 == 0o600
    for crashed in (f"checkpoint.json{files.UNFINISHED}", checkpoint.UNREADABLE):
        (tmp_path / crashed).write_text("{")
    checkpoint.remove(tmp_path)
    checkpoint.remove_unreadable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_share_used_and_waited_of_late_is_told_over_each_window(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    for second in range(1, 181):  # busy for a minute, then idle for two minutes; it waits in the last half minute
        arbiter.use(Handle(1), SECOND if second <= 60 else 0)
        if second > 150:
            arbiter.usages[Handle(1)][0] = replace(arbiter.usages[Handle(1)][0], waited_ns=(second - 150) * SECOND)
        (status,) = registry.statuses((), second * SECOND)
        (held,) = status.usages
        rates = held.used_1s_millipercent, held.used_1m_millipercent, held.used_15m_millipercent
        if second == 60:
            assert rates == (100_000, 100_000, 100_000)
        if second == 90:
            assert rates == (0, 50_000, 66_667)
    assert rates == (0, 0, 33_333)
    assert held.waited_1m_millipercent == 50_000


class Lives(RuleBasedStateMachine):
    """Shares that come, change, pause, are adopted by a new registry, and go; the invariants hold after each step."""

    shares: Bundle[str] = Bundle("shares")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="sharepod-test-"))
        self.registry, self.arbiter = make(self.directory)
        self.now_ns = 0

    @rule(target=shares, request=st.integers(0, 100), memory=st.integers(0, 30), device=st.sampled_from(["", "0", "2"]))
    def register(self, request: int, memory: int, device: str) -> str:
        try:
            return self.registry.register(ask(request, 100, memory * GIB, device), unix_ns=1, now_ns=self.now_ns).id
        except (DoesNotFit, InvalidInput):
            return ""

    @rule(share=shares, request=st.integers(-10, 120))
    def update(self, share: str, request: int) -> None:
        with contextlib.suppress(ShareError):
            self.registry.update(share, [TermsChange(request_millipercent=request * 1000)], None)

    @rule(share=shares, paused=st.booleans(), yielding=st.booleans())
    def pause(self, share: str, paused: bool, yielding: bool) -> None:
        before = self.registry.shares()
        try:
            after = self.registry.pause(share, paused=paused, yielding=yielding)
            assert (after.paused, after.yielding) == (paused, paused and yielding)
        except ShareError:
            assert self.registry.shares() == before

    @rule(share=consumes(shares))
    def release(self, share: str) -> None:
        try:
            self.registry.release(share, self.now_ns)
        except UnknownShare:
            assert not share

    @rule(wait_ns=st.integers(1, 10 * SECOND))
    def wait(self, wait_ns: int) -> None:
        self.now_ns += wait_ns
        self.registry.sample(self.now_ns)

    @rule()
    def restart(self) -> None:
        records, shares = records_of(self.registry), self.registry.shares()
        self.registry, self.arbiter = make(self.directory)
        for record in records:
            self.registry.adopt(record, self.now_ns)
        assert self.registry.shares() == shares

    @invariant()
    def valid(self) -> None:
        self.registry.validate()
        assert len(self.arbiter.terms) == len(self.registry.shares())

    def teardown(self) -> None:
        for share in self.registry.shares():
            self.registry.release(share.id, self.now_ns)
        self.directory.rmdir()


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
