"""Test the agent at its edges: bounds to the unit, tables that forget, and conditions that matter for few shares."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_doubles import A10, GIB, H200, H200_B, MemoryArbiter, ask, identity

from rig.until import eventually
from sharepod.agent import node as node_module
from sharepod.agent.devices import health
from sharepod.agent.devices.device import DeviceCounters, DeviceInfo, DeviceLook, DeviceProcess, Unlisted
from sharepod.agent.devices.monitor import Devices
from sharepod.agent.devices.unmanaged import UnmanagedProcesses
from sharepod.agent.errors import DoesNotFit, InvalidInput, UnknownShare
from sharepod.agent.node import OWNERLESS_NS, Node
from sharepod.agent.shares import admission, checkpoint, ledger
from sharepod.agent.shares.gangs import Gangs
from sharepod.agent.shares.ledger import FINE_NS, MINUTE_NS, QUARTER_NS, Account
from sharepod.agent.shares.ledger import SECOND_NS as S
from sharepod.agent.shares.leftovers import Leftovers
from sharepod.agent.shares.owners import Owners, start_ticks
from sharepod.agent.shares.registry import Registry
from sharepod.agent.shares.share import (
    Copies,
    DeviceAsk,
    DeviceTerms,
    DeviceUsage,
    DeviceUuid,
    Handle,
    Process,
    Share,
    ShareClass,
    ShareId,
    ShareState,
    ShareStatus,
    Terms,
    Usage,
)
from sharepod.agent.shares.spending import Spent

A, B = ShareId("aaaaaaaaaa"), ShareId("bbbbbbbbbb")
NOBODY = 2**22 + 1
"""No process has this pid."""
Held = tuple[DeviceInfo, int, int]
"""A part of a device: its request in per cent, and its memory cap."""


class Machine(MemoryArbiter):
    """The arbiter in memory, with what a node asks of it besides."""

    def read_device(self, _: Handle) -> DeviceCounters:
        return DeviceCounters()

    def read_holdings(self, *_: int) -> tuple[()]:
        return ()

    def context_bytes(self, *_: int) -> int:
        return 0

    def close(self) -> None:
        self.terms.clear()


def status(name: str, *held: Held, directory: str = "") -> ShareStatus:
    """Return a share with these parts of devices."""
    terms = tuple(DeviceTerms(info.uuid, Terms(request * 1000, 100_000, memory)) for info, request, memory in held)
    share = Share(ShareId(name), terms, ShareClass.STANDARD, directory, 0)
    return ShareStatus(share, tuple(DeviceUsage(one.device, Usage()) for one in terms), ())


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}


def test_a_rate_is_that_of_its_window_to_the_second_and_of_a_quarter_of_an_hour_to_fifteen() -> None:
    account = Account()
    for second in range(931):  # busy in the first 31 s
        used = min(second, 31) * S
        account.add(second * S, used)
        account.validate()
        for window_s in (1, 60) if second else ():
            begin = max(0, second - window_s)
            expected = round((min(second, 31) - min(begin, 31)) * 100_000 / (second - begin))
            assert account.rate_millipercent(second * S, used, window_s * S) == expected
    assert account.rate_millipercent(930 * S, used, QUARTER_NS) == round(100_000 / 900)


def test_samples_are_a_tenth_of_a_second_apart_and_dense_for_two_seconds_only() -> None:
    for first_ns, expected in ((FINE_NS, 0), (FINE_NS - 1, 9091)):  # kept, and dropped
        account = Account()
        account.add(0, 0)
        account.add(first_ns, first_ns)
        assert account.rate_millipercent(first_ns + S, first_ns, S) == expected
    account = Account()
    for tenth in range(200):  # a tenth of the first 1.5 s is used
        account.add(tenth * FINE_NS, min(tenth, 15) * FINE_NS // 10)
        account.validate()
        assert tenth != 25 or account.rate_millipercent(tenth * FINE_NS, 15 * FINE_NS // 10, S) == 0


def test_a_window_that_begins_with_a_sample_goes_back_no_further_and_no_rate_is_negative() -> None:
    account = Account()
    for second, used in ((0, 0), (3, 3), (4, 3)):
        account.add(second * S, used * S)
    assert account.rate_millipercent(4 * S, 3 * S, S) == 0
    assert account.rate_millipercent(4 * S, 9 * S, 0) == 0, "no time has passed"
    assert account.rate_millipercent(5 * S, 0, S) == 0, "read before the last sample"
    assert Account().rate_millipercent(0, 2**62, S) == 0, "no sample"
    account = Account()
    account.add(0, 0, 5 * S)
    account.add(S, 0, S)  # only the time waited falls
    assert account.waited_millipercent(2 * S, 3 * S // 2, MINUTE_NS) == 50_000


def test_nothing_of_an_account_is_lost_when_it_goes_on() -> None:
    assert ledger.carried([Usage(launches=1)], 0, [Usage()])[0].launches == 1
    both = ledger.total(Usage(gone_copies=Copies(1, 2, 3, 4)), Usage(gone_copies=Copies(10, 20, 30, 40)))
    assert both.gone_copies == Copies(11, 22, 33, 44)


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_an_owner_is_known_by_its_start_its_end_is_told_once_and_no_descriptor_stays() -> None:
    ended: list[ShareId] = []
    owners, before, tick_ns = Owners(ended.append), descriptors(), 10**9 // os.sysconf("SC_CLK_TCK")
    began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with sleeper() as first, sleeper() as second:
        ticks = start_ticks(first.pid)
        assert began_ns - tick_ns < ticks * tick_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for pid, started in ((first.pid, ticks + 1), (NOBODY, 0)):  # its pid is another process's now, or nobody's
            with pytest.raises(InvalidInput, match="is not running"):
                owners.watch(A, pid, started)
        assert descriptors() == before
        owners.watch(A, first.pid, ticks)
        owners.forget(A)
        assert descriptors() == before
        owners.watch(B, first.pid, ticks)  # with the same descriptor
        owners.watch(A, second.pid, start_ticks(second.pid))
        first.kill()
        await eventually(lambda: ended)
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended == [B]
        assert start_ticks(first.pid) == start_ticks(NOBODY) == 0, "it has ended, and nobody has waited for it"
        with pytest.raises(InvalidInput, match="is not running"):
            owners.watch(B, first.pid, 0)
        owners.close()
        assert descriptors() == before


def test_a_gang_keeps_its_key_while_a_share_names_it_and_no_longer() -> None:
    gangs, a, b = Gangs(), ("", "a"), ("", "b")
    assert [gangs.key(*a, ()), gangs.key(*b, {a}), gangs.key(*a, {a, b})] == [1, 2, 1]
    assert [gangs.key(*b, {b}), gangs.key(*a, {a, b})] == [2, 3]


def place(*asks: tuple[int, int, str], held: Iterable[Held] = (), lost: str = "") -> list[DeviceUuid]:
    """Place asks, each for a request, a memory cap and a device, beside a share of `held`; a device may be lost."""
    rooms = admission.rooms([H200, H200_B, A10], [status("s", *held).share], {DeviceUuid(lost): "lost"})
    wanted = [DeviceAsk(device, Terms(request * 1000, 100_000, memory)) for request, memory, device in asks]
    return [terms.device for terms in admission.place(wanted, rooms, overcommit=False)]


def test_a_share_fits_where_exactly_as_much_is_left_and_of_devices_alike_the_emptier_is_taken() -> None:
    for promised in (0, 20 * GIB, 24 * GIB):  # what is left is all, a part, or nothing
        assert place((10, 24 * GIB - promised, "2"), held=[(A10, 10, promised)]) == [A10.uuid]
    assert place((0, 0, "")) == [H200.uuid], "of devices alike the one with the most memory left"
    assert place((0, 0, ""), held=[(H200, 0, 0)]) == [H200_B.uuid], "and before that the one with the fewest shares"
    largest_first = place((30, 0, ""), (90, 0, ""), held=[(A10, 80, 0), (H200, 10, 0)])
    assert largest_first == [H200_B.uuid, H200.uuid]


def test_a_refusal_of_all_devices_tells_the_most_that_a_healthy_one_has() -> None:
    held = (H200, 70, 0), (H200_B, 80, 0)
    with pytest.raises(DoesNotFit, match="fits on none of the 3 devices: the roomiest, 2, has 100 % and 24 GiB"):
        place((50, 30 * GIB, ""), held=held)  # the third device is too small, the others have no time
    with pytest.raises(DoesNotFit, match="the roomiest, 0, has 30 %"):
        place((50, 0, ""), held=held, lost=A10.uuid)
    with pytest.raises(InvalidInput, match=r"more than any device here has \(141 GiB\)"):
        place((1, 200 * GIB, ""))


def test_of_a_change_only_what_grows_is_weighed() -> None:
    for before, after, others, refused in (
        ((80, 20 * GIB), (80, 20 * GIB), (60, 20 * GIB), ""),  # on an overcommitted device nothing grows
        ((10, 4 * GIB), (10, 9 * GIB), (10, 16 * GIB), "memory 9 GiB does not fit"),  # only memory grows
        ((10, 0), (20, 0), (10, 24 * GIB), ""),  # only time grows, where no memory is left
    ):
        share, changed = status("a", (A10, *before)).share, status("a", (A10, *after)).share.devices
        rooms = admission.rooms([A10], [share, status("b", (A10, *others)).share], {}, without=share.id)
        said = ""
        try:
            admission.check_change(share, changed, rooms, overcommit=False)
        except DoesNotFit as refusal:
            said = str(refusal)
        assert said.startswith(refused) if refused else not said


def test_a_share_without_a_name_is_found_by_its_id_alone_and_goes_when_its_directory_is_gone(tmp_path: Path) -> None:
    arbiter: Any = MemoryArbiter()
    registry = Registry(arbiter, tmp_path, [H200])
    share = registry.register(ask(), unix_ns=1, now_ns=0, owner_uid=os.getuid())
    assert share.title == share.id
    slots = (tmp_path / share.id / "slots").stat()
    assert (slots.st_mode & 0o777, slots.st_gid) == (0o600, os.getgid())
    with pytest.raises(UnknownShare):
        registry.find("")
    arbiter.use(Handle(1), S)
    registry.sample(S)
    assert registry.statuses((), 2 * S)[0].usages[0].used_1s_millipercent == 0, "it was used before the sample"
    registry.pause(share.id, paused=True)
    for state in ShareState:  # what is under way when it is paused is still told
        arbiter.usages[Handle(1)] = [Usage(state=state)]
        told = registry.statuses((), 0)[0].usages[0].usage.state
        assert told == (state if state in (ShareState.HOLDING, ShareState.DRAINING) else ShareState.PAUSED)
    shutil.rmtree(share.directory)
    assert registry.release(share.id, 0).share.id == share.id


def test_a_share_yields_twice_and_on_an_overcommitted_device_pauses_and_goes_on(tmp_path: Path) -> None:
    arbiter: Any = MemoryArbiter()
    registry = Registry(arbiter, tmp_path, [H200], overcommit=True)
    for name in ("a", "b"):
        registry.register(ask(80, name=name), unix_ns=1, now_ns=0)
    for yields in (True, False):
        assert registry.pause("a", paused=yields, yielding=yields).yielding == yields
    careful = Registry(arbiter, tmp_path, [H200])  # a new agent, without --overcommit
    for record in checkpoint.parse(checkpoint.Dumper("").dump(registry.statuses((), 0)), "").records:
        careful.adopt(record, 0)
    for paused in (True, False):
        assert careful.pause("a", paused=paused).paused == paused
    for _ in range(2):
        assert careful.pause("a", paused=True, yielding=True).yielding


def test_every_directory_without_a_record_is_told_and_goes_unless_a_share_has_it_again(tmp_path: Path) -> None:
    shares, arbiter = tmp_path / "shares", MemoryArbiter()
    for letter in "abcd":
        (shares / (letter * 10)).mkdir(parents=True)
    known = status(A, (H200, 10, 0), directory=str(shares / A))
    checkpoint.write(tmp_path, checkpoint.Dumper("boot").dump([known]))
    leftovers = Leftovers(arbiter, shares, tmp_path, "boot")  # type: ignore[arg-type]
    assert [record.share.id for record in leftovers.read().records] == [A]
    assert [text.split()[1] for text in leftovers.troubles()] == [letter * 10 for letter in "bcd"]
    (shares / ("c" * 10)).rmdir()
    leftovers.clear({B})
    assert {path.name for path in shares.iterdir()} == {A, B}


def test_a_reset_may_be_seen_at_any_look_after_the_xid_and_is_not_forgotten() -> None:
    def verdict(*looks: DeviceLook) -> health.Health:
        found = health.Health()
        for second, look in zip((0, 5, 15), looks, strict=False):
            found = health.step(found, look, second * S)
        return found

    well, lost = DeviceLook(H200.uuid), DeviceLook(H200.uuid, "lost", gone=True)
    asks = replace(well, needs_reset=True)
    assert [verdict(asks).reason, verdict(lost, asks).reason] == ["the driver asks for a reset", "lost"]
    for first, second in ((well, lost), (lost, replace(well, error="Timeout"))):
        assert verdict(replace(first, xids=(79,)), second, well).healthy


def test_what_is_found_or_released_holds_up_no_other_look_and_admits_nothing_too_early(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arbiter: Any = Machine()
    registry = Registry(arbiter, tmp_path, [H200, H200_B])
    devices, stand_in = Devices(registry, arbiter, ()), DeviceUuid("GPU-at-place-2")
    devices.add_missing(DeviceInfo(stand_in, 2, "unknown", 0), "lost", 0, 2)
    devices.release(H200.uuid)
    looks = DeviceLook(H200.uuid, memory_used_bytes=5), DeviceLook(H200_B.uuid, memory_used_bytes=7)
    devices.looked([looks[0], DeviceLook(stand_in, found=(A10,)), looks[1]], 0)
    assert [one.memory_used_bytes for one in devices.statuses()] == [0, 7, 0]
    assert registry.rooms()[A10.uuid].health_reason == "lost", "as long as no look has found it well"
    share = registry.register(ask(memory=GIB, device="1"), unix_ns=1, now_ns=0)

    def told(refusals: int) -> list[int]:
        """Return how many refused allocations are logged at a look that finds this number in the account."""
        caplog.clear()
        arbiter.usages[Handle(1)] = [Usage(memory_refusals=refusals)]
        devices.looked([DeviceLook(H200_B.uuid)], 0)
        return [getattr(one, "refused", 0) for one in caplog.records]

    assert [told(0), told(2), told(2), told(5)] == [[], [2], [], [3]]
    devices.forget(B)
    assert told(5) == []
    devices.forget(share.id)
    assert told(4) == [4], "of a new share with its id"
    finder, seen = UnmanagedProcesses([], grace_ns=10), [DeviceProcess(7, "x", 1)]
    assert [len(finder.step(H200.uuid, seen, (), now_ns)) for now_ns in (100, 109, 110, 200)] == [0, 0, 1, 0]


def start(directory: Path, *devices: DeviceInfo, unlisted: Iterable[Unlisted] = ()) -> tuple[Node, Any]:
    """Return a node that has adopted what is left, and its arbiter."""
    arbiter: Any = Machine()
    (directory / "shares").mkdir(exist_ok=True)
    registry = Registry(arbiter, directory / "shares", devices or [H200, H200_B])
    node = Node(identity(directory), registry, arbiter, directory, ())
    node.adopt(tuple(unlisted))
    return node, arbiter


def saved(directory: Path) -> checkpoint.Checkpoint:
    return checkpoint.parse(checkpoint.read(directory) or "", checkpoint.boot_id())


async def test_each_change_is_saved_at_once_and_an_owner_is_watched_no_longer_than_its_share(tmp_path: Path) -> None:
    node, arbiter = start(tmp_path)
    aside, before = tmp_path / checkpoint.UNREADABLE, descriptors()
    aside.touch()
    share = node.register(replace(ask(), owner_pid=os.getpid())).share
    assert [(one.used_ns, one.shares) for one in saved(tmp_path).spent] == [(0, 1)]
    node.pause(share.id, paused=True)
    assert saved(tmp_path).records[0].share.paused
    arbiter.use(Handle(1), 5)
    node.close()
    assert descriptors() == before
    node, arbiter = start(tmp_path)
    assert [one.share.id for one in node.published.shares] == [share.id]
    arbiter.use(Handle(1), 2)
    node.publish()
    [spent] = saved(tmp_path).spent
    assert (spent, bool(spent.party.user), aside.exists()) == (Spent(spent.party, 7, 1), True, True)
    node.release(share.id)
    assert (descriptors(), node.published.shares, aside.exists()) == (before, (), False)


@pytest.mark.parametrize(("uuid", "address"), [("GPU-x", "y"), ("GPU-x", "x"), ("GPU-x", ""), ("MIG-x", "y")])
def test_a_gpu_that_was_there_is_missing_unless_its_instances_are_there_in_its_place(
    tmp_path: Path, uuid: str, address: str
) -> None:
    absent = DeviceInfo(DeviceUuid(uuid), 1, "H200", GIB, address=address)
    checkpoint.write(tmp_path, checkpoint.Dumper(checkpoint.boot_id()).dump((), devices=[absent]))
    unseen = [Unlisted(place, 1, "silent", address=f"at-{place}") for place in (1, 2) if address]
    node, _ = start(tmp_path, replace(H200, address="x"), unlisted=unseen)
    names = [uuid] * (uuid == "GPU-x" and address == "y") + [one.name for one in unseen]
    assert [(one.uuid, one.index) for one in node.missing] == [(name, index) for index, name in enumerate(names, 1)]


async def test_a_share_without_a_known_owner_ends_when_no_process_was_in_it_for_the_whole_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = [7 * S]
    monkeypatch.setattr(node_module, "time", SimpleNamespace(monotonic_ns=lambda: now_ns[0], time_ns=lambda: 1))
    node, arbiter = start(tmp_path)
    orphans = [node.register(ask(name=name)) for name in ("a", "b")]
    arbiter.use(Handle(1), S)
    for _ in range(2):
        now_ns[0] += S
        node.sample()
    assert node.statuses()[0].usages[0].used_1s_millipercent == 0, "it was used in the second before"
    node.close()
    orphans = [replace(one, share=replace(one.share, ownerless=True)) for one in orphans]
    checkpoint.write(tmp_path, checkpoint.Dumper(checkpoint.boot_id()).dump(orphans))
    node, arbiter = start(tmp_path)
    arbiter.processes[Handle(1)] = (Process(1, 0, 0, 0),)
    for passed_ns, left in ((0, ["a", "b"]), (OWNERLESS_NS - 1, ["a", "b"]), (1, ["a"])):
        now_ns[0] += passed_ns
        node.look_after_shares()
        assert [one.share.name for one in node.statuses()] == left
