from __future__ import annotations

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

from sharepod.agent import checkpoint
from sharepod.agent.device import DeviceProcess
from sharepod.agent.errors import DoesNotFit, InvalidInput, NameTaken, ShareError, UnknownShare, WrongState
from sharepod.agent.registry import Registry, TermsChange
from sharepod.agent.share import Copies, Handle, Process, ShareClass, ShareState, Turn, Usage

SECOND = 1_000_000_000


def make(tmp_path: Path) -> tuple[Registry, MemoryArbiter]:
    arbiter = MemoryArbiter()
    return Registry(arbiter, tmp_path, [H200, H200_B, A10]), arbiter


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
    with pytest.raises(
        NameTaken, match=f"name 'train' belongs to share {first.id}: choose another, or release that one"
    ):
        registry.register(ask(name="train"), unix_ns=1, now_ns=0)
    with pytest.raises(NameTaken):
        registry.register(ask(name=first.id), unix_ns=1, now_ns=0)
    registry.validate()


def test_an_unknown_share_is_named_with_the_remedy(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(), unix_ns=1, now_ns=0)
    for reference in ("nobody", ""):
        for call in (
            lambda r=reference: registry.find(r),
            lambda r=reference: registry.release(r, 0),
            lambda r=reference: registry.pause(r, paused=True),
            lambda r=reference: registry.update(r, [], None),
            lambda r=reference: registry.statuses([r], 0),
        ):
            with pytest.raises(UnknownShare, match=f"no share '{reference}' on this node: `sharepod ps` lists"):
                call()


def test_an_update_changes_what_is_given_and_keeps_the_rest(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(30, 60, GIB, name="train"), unix_ns=1, now_ns=0)
    share = registry.update("train", [TermsChange(limit_millipercent=80_000)], ShareClass.LATENCY)
    terms = share.devices[0].terms
    assert (terms.request_millipercent, terms.limit_millipercent, terms.memory_limit_bytes) == (30_000, 80_000, GIB)
    assert arbiter.classes[Handle(1)] is ShareClass.LATENCY
    assert arbiter.terms[Handle(1)][0][1] == terms


def test_an_update_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(30, device="0", name="a"), unix_ns=1, now_ns=0)
    registry.register(ask(60, device="0", name="b"), unix_ns=1, now_ns=0)
    before = dict(arbiter.terms)
    with pytest.raises(DoesNotFit, match="40 % of its time is free"):
        registry.update("a", [TermsChange(request_millipercent=50_000)], None)
    with pytest.raises(InvalidInput, match="limit 20 % is below request 30 %"):
        registry.update("a", [TermsChange(limit_millipercent=20_000)], None)
    with pytest.raises(InvalidInput, match="share a has nothing on device 1: name one of GPU-aaaa"):
        registry.update("a", [TermsChange("1", limit_millipercent=90_000)], None)
    assert arbiter.terms == before
    assert registry.find("a").devices[0].terms.request_millipercent == 30_000


def test_a_paused_share_says_so(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    registry.pause("a", paused=True)
    registry.pause("a", paused=True)
    assert arbiter.paused[Handle(1)]
    assert registry.statuses(["a"], 0)[0].usages[0].usage.state is ShareState.PAUSED
    assert not registry.pause("a", paused=False).paused
    assert not arbiter.paused[Handle(1)]


def test_a_share_that_yields_leaves_its_time_to_others_and_keeps_its_memory(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(100, 100, 100 * GIB, device="0", name="batch"), unix_ns=1, now_ns=0)
    registry.pause("batch", paused=True)
    with pytest.raises(DoesNotFit, match="0 % of its time is free"):  # a plain pause keeps its promise
        registry.register(ask(60, device="0"), unix_ns=1, now_ns=0)
    assert registry.pause("batch", paused=True, yielding=True).yielding
    assert arbiter.paused[Handle(1)]
    room = registry.rooms()[H200.uuid]
    assert (room.free_millipercent, room.yielded_millipercent) == (100_000, 100_000)
    assert room.memory_promised_bytes == 100 * GIB
    registry.register(ask(60, device="0", name="serve"), unix_ns=1, now_ns=0)
    with pytest.raises(DoesNotFit, match="request 50 % does not fit on device 0: 40 % of its time is free"):
        registry.register(ask(50, device="0"), unix_ns=1, now_ns=0)
    with pytest.raises(DoesNotFit, match=r"memory 100 GiB does not fit on device 0: .* not promised"):
        registry.register(ask(10, memory=100 * GIB, device="0"), unix_ns=1, now_ns=0)
    registry.validate()


def test_a_share_that_yields_stays_paused_until_its_request_fits_again(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(100, device="0", name="batch"), unix_ns=1, now_ns=0)
    registry.pause("batch", paused=True, yielding=True)
    registry.register(ask(60, device="0", name="serve"), unix_ns=1, now_ns=0)
    text = (
        "share batch stays paused: its request 100 % does not fit on device 0 again, 40 % of its time is free: "
        "wait until others end there, or lower a request"
    )
    for paused in (True, False):  # a plain pause would promise its time twice, too
        with pytest.raises(DoesNotFit, match=f"^{re.escape(text)}$"):
            registry.pause("batch", paused=paused)
        assert (registry.find("batch").paused, registry.find("batch").yielding) == (True, True)
        assert arbiter.paused[Handle(1)]
    registry.update("batch", [TermsChange(request_millipercent=40_000)], None)
    share = registry.pause("batch", paused=False, yielding=True)  # who runs does not yield
    assert (share.paused, share.yielding) == (False, False)
    assert not arbiter.paused[Handle(1)]
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


def test_an_unhealthy_device_takes_no_new_share(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.set_health(H200.uuid, "Xid 79")
    with pytest.raises(WrongState, match="device 0 is unhealthy"):
        registry.register(ask(device="0"), unix_ns=1, now_ns=0)
    registry.set_health(H200.uuid, "")
    registry.register(ask(device="0"), unix_ns=1, now_ns=0)


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
    for region in (
        "",
        "/",
        str(tmp_path),
        f"{tmp_path}/",
        f"{tmp_path}/..",
        f"/elsewhere/{share.id}",
        f"{share.directory}/",
    ):
        assert cause(region) == cause(region, mps=True) == ""


def test_the_processes_of_a_share_are_at_home_on_its_devices_alone(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    for name, device, pid in (("a", "0", 7), ("b", "0", 8), ("c", "1", 9)):
        registry.register(ask(10, device=device, name=name), unix_ns=1, now_ns=0)
        arbiter.processes[max(arbiter.terms)] = (Process(pid, 0, 0, 0),)
    assert registry.pids() == {H200.uuid: {7, 8}, registry.devices[1].uuid: {9}}


def test_turns_keep_the_name_of_a_released_share(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    share = registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    arbiter.finished.append(Turn(1, Handle(1), Handle(0), 1, 2, 3, 4, 2, 0, cogranted=False))
    registry.release("a", 0)
    ((_, owner, device),) = registry.turns(0, 10)
    assert owner is not None
    assert owner.id == share.id
    assert device == H200.uuid


def test_turns_of_a_handle_that_was_given_out_again_belong_to_their_own_share(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(name="old"), unix_ns=1, now_ns=0)
    registry.release("old", 10)
    arbiter.reuse_handles()
    registry.register(ask(name="new"), unix_ns=1, now_ns=10)
    arbiter.finished.append(Turn(1, Handle(1), Handle(0), 1, 2, 3, 4, 2, 0, cogranted=False))
    arbiter.finished.append(Turn(2, Handle(1), Handle(0), 11, 12, 13, 14, 2, 0, cogranted=False))
    assert [share.name if share else None for _, share, _ in registry.turns(0, 10)] == ["old", "new"]


def test_launches_of_live_processes_are_not_counted_twice_after_adoption(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    arbiter.usages[Handle(1)] = [Usage(launches=100, turns=7)]
    arbiter.processes[Handle(1)] = (Process(5, 0, 60, 0),)
    (record,) = checkpoint.parse(checkpoint.Dumper("boot").dump(registry.statuses((), 0)), "boot").records
    fresh, other = make(tmp_path)
    fresh.adopt(record, 0)
    other.usages[Handle(1)] = [Usage(launches=65, turns=1)]
    usage = fresh.statuses((), 0)[0].usages[0].usage
    assert (usage.launches, usage.turns) == (105, 8)


def test_host_copies_of_live_processes_are_not_counted_twice_after_adoption(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    gone, live = Copies(1 << 40, 2, 3, 4), Copies(50, 60, 70, 80)
    arbiter.usages[Handle(1)] = [Usage(copies=gone + live, gone_copies=gone)]
    text = checkpoint.Dumper("boot").dump(registry.statuses((), 0))
    for _ in range(2):  # and again under the agent after that
        (record,) = checkpoint.parse(text, "boot").records
        fresh, other = make(tmp_path)
        fresh.adopt(record, 0)
        other.usages[Handle(1)] = [Usage(copies=live)]
        usage = fresh.statuses((), 0)[0].usages[0].usage
        assert (usage.copies, usage.gone_copies) == (gone + live, gone)
        text = checkpoint.Dumper("boot").dump(fresh.statuses((), 0))


def test_a_checkpoint_of_an_agent_that_did_not_count_host_copies_is_read(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    text = checkpoint.Dumper("boot").dump(registry.statuses((), 0))
    older = re.sub(r', "gone_copies": {[^}]*}', "", text)
    assert older != text
    (record,) = checkpoint.parse(older, "boot").records
    assert record.usages == (Usage(),)


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
    with pytest.raises(InvalidInput, match="gang 'a gang' is no gang's name: use 1–253 letters"):
        registry.update("a", [TermsChange(limit_millipercent=50_000)], None, gang="a gang")
    assert registry.find("a").devices[0].terms.limit_millipercent == 100_000
    assert arbiter.gangs[Handle(1)] == 0


def test_a_gang_is_adopted_and_its_name_is_written_only_where_there_is_one(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(10, name="a"), unix_ns=5, now_ns=0)
    assert '"gang"' not in checkpoint.Dumper("boot").dump(registry.statuses((), 0))
    registry.register(replace(ask(10, name="b"), gang="job"), unix_ns=5, now_ns=0)
    fresh, arbiter = make(tmp_path)
    for record in checkpoint.parse(checkpoint.Dumper("boot").dump(registry.statuses((), 0)), "boot").records:
        fresh.adopt(record, 0)
    assert fresh.shares() == registry.shares()
    assert arbiter.gangs == {Handle(1): 0, Handle(2): 1}


def test_a_share_is_adopted_with_its_account_and_its_pause(tmp_path: Path) -> None:
    registry, arbiter = make(tmp_path)
    registry.register(ask(30, 60, GIB, name="a"), unix_ns=5, now_ns=0)
    registry.pause("a", paused=True)
    arbiter.use(Handle(1), 7 * SECOND)
    text = checkpoint.Dumper("boot").dump(registry.statuses((), 0))

    (record,) = checkpoint.parse(text, "boot").records
    assert record.share == registry.find("a")
    fresh, other = make(tmp_path)
    fresh.adopt(record, 0)
    assert fresh.find("a") == registry.find("a")
    assert fresh.statuses((), 0)[0].usages[0].usage.used_ns == 7 * SECOND
    assert other.paused[Handle(1)]
    assert fresh.remove_orphans() == []


def test_a_share_that_yields_is_adopted_beside_the_one_it_made_room_for(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(100, device="0", name="batch"), unix_ns=5, now_ns=0)
    registry.pause("batch", paused=True, yielding=True)
    registry.register(ask(60, device="0", name="serve"), unix_ns=5, now_ns=0)
    text = checkpoint.Dumper("boot").dump(registry.statuses((), 0))
    fresh, arbiter = make(tmp_path)
    for record in checkpoint.parse(text, "boot").records:
        fresh.adopt(record, 0)
    assert fresh.shares() == registry.shares()
    assert arbiter.paused[Handle(1)]
    with pytest.raises(DoesNotFit, match="share batch stays paused"):
        fresh.pause("batch", paused=False)


def test_a_checkpoint_in_which_nobody_yields_is_as_agents_before_wrote_it(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=1, now_ns=0)
    registry.pause("a", paused=True)
    text = checkpoint.Dumper("boot").dump(registry.statuses((), 0))
    assert "yielding" not in text
    (record,) = checkpoint.parse(text, "boot").records
    assert (record.share.paused, record.share.yielding) == (True, False)


def test_adoption_gives_up_what_cannot_be_served_and_says_why(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    share = registry.register(ask(device="2", name="a"), unix_ns=5, now_ns=0)
    (record,) = checkpoint.parse(checkpoint.Dumper("boot").dump(registry.statuses((), 0)), "boot").records
    fewer = Registry(MemoryArbiter(), tmp_path, [H200])
    with pytest.raises(WrongState, match="share a is not adopted: device GPU-cccc is gone: its programs run unmetered"):
        fewer.adopt(record, 0)
    assert not (tmp_path / share.id).exists()
    with pytest.raises(WrongState, match="its directory is gone"):
        make(tmp_path)[0].adopt(record, 0)


def test_adoption_gives_up_a_region_of_another_abi(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(name="a"), unix_ns=5, now_ns=0)
    (record,) = checkpoint.parse(checkpoint.Dumper("boot").dump(registry.statuses((), 0)), "boot").records
    fresh, arbiter = make(tmp_path)
    arbiter.refuse = errno.EPROTO
    with pytest.raises(WrongState, match="Protocol error"):
        fresh.adopt(record, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_boot_is_ignored_and_a_broken_one_refused(tmp_path: Path) -> None:
    registry, _ = make(tmp_path)
    registry.register(ask(), unix_ns=5, now_ns=0)
    text = checkpoint.Dumper("boot").dump(registry.statuses((), 0))
    assert checkpoint.parse(text, "another boot").records == ()
    assert checkpoint.parse(text.replace('"driver": "", ', ""), "boot").driver_version == ""  # of an older agent
    assert checkpoint.parse(checkpoint.Dumper("boot", "580.65").dump(()), "boot").driver_version == "580.65"
    for broken in (
        "",
        "{}",
        "[]",
        "null",
        text[:-20],
        text.replace('"format": 1', '"format": 9'),
        text.replace("30000", "-1"),
    ):
        with pytest.raises(WrongState, match="checkpoint is unreadable"):
            checkpoint.parse(broken, "boot")


def test_a_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path) is None
    checkpoint.write(tmp_path, "one")
    checkpoint.write(tmp_path, "two")
    assert checkpoint.read(tmp_path) == "two"
    assert (tmp_path / "checkpoint.json").stat().st_mode & 0o777 == 0o600
    checkpoint.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []


class Lives(RuleBasedStateMachine):
    """Shares come, change, pause, are adopted by a new registry, and go: the invariants hold after each step."""

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
        statuses = self.registry.statuses((), self.now_ns)
        records = checkpoint.parse(checkpoint.Dumper("boot").dump(statuses), "boot").records
        self.registry, self.arbiter = make(self.directory)
        for record in records:
            self.registry.adopt(record, self.now_ns)
        assert [s.share for s in self.registry.statuses((), self.now_ns)] == [s.share for s in statuses]

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
