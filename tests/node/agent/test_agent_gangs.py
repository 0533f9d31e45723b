"""Test gangs: a share on several devices, or several shares that name one gang, get their devices together.

Random schedules run over the arbiter's own code in virtual time (gang_program.c). On the simulated GPU, programs make
collectives in which every rank spins for the next, beside programs that use one device. The ranks of `ring` are one
process with one share; those of `job_beside_others` have a process and a share each.
"""

import errno
import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from gang_runs import BOTH, gang_node, go, job_beside_others, ring, single
from gang_schedules import built, random_schedules

from rig.loads import MS, Load, Terms
from rig.node import Node
from rig.programs import ProgramFailed, load_command
from rig.until import until
from sharepod.agent.native import NativeArbiter
from sharepod.agent.shares.share import Handle, ShareClass
from sharepod.agent.shares.share import Terms as ShareTerms
from sharepod.proto import v1_pb2 as pb

SCHEDULES = int(os.environ.get("SHAREPOD_TEST_SCHEDULES", "300"))
"""How many random schedules each test plays; a soak plays thousands."""


@pytest.fixture(scope="module")
def schedules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program that plays random schedules over the arbiter's own code."""
    return built(tmp_path_factory.mktemp("gangs"))


def test_random_schedules_end_every_collective_and_shares_of_one_device_keep_their_target(schedules: Path) -> None:
    played = [random_schedules(schedules, 1, SCHEDULES, *how) for how in ((), ("joined",))]
    for found in played:
        assert found["collectives"] > 100 * SCHEDULES
        # This includes limits of a few per cent, pauses of the ranks and dying neighbours.
        assert found["longest_ms"] < 1000
        # If all shares saturate, none has a limit and none dies, it takes at most two rounds of turns.
        assert found["steady_longest_ms"] < 250
        assert found["least_part"] > 0.98
        assert found["longest_wait_ms"] < 100
    together, joined = (found["collectives"] for found in played)
    assert joined == pytest.approx(together, rel=0.01), "shares that were joined are as one on their devices"


def test_gangs_make_three_times_the_collectives_of_devices_that_know_nothing_of_each_other(schedules: Path) -> None:
    together, apart = (
        random_schedules(schedules, 1, SCHEDULES // 2),
        random_schedules(schedules, 1, SCHEDULES // 2, "apart"),
    )
    assert together["steady_collectives"] > 3 * apart["steady_collectives"]


def test_a_device_that_is_kept_for_two_gangs_lets_in_whom_another_device_spins_for(schedules: Path) -> None:
    random_schedules(schedules, 16286, 1)  # one saw no step there until the next tick


def _until_used(node: Node, *names: str) -> None:
    """Wait until each program has used its devices for a further 100 ms."""
    before_ns = node.sample().busy_ns
    for name in names:
        until(lambda name=name: node.sample().busy_ns[name] - before_ns[name] > 100 * MS, f"{name} does not run")


def _until_they_have_all(node: Node, *names: str) -> None:
    """Wait until each program gets nearly all of its device's time."""
    for name in names:
        until(lambda name=name: node.parts(0.2)[name] > 0.9, f"{name} has not all of its device")


def test_a_paused_gang_leaves_its_devices_and_comes_back() -> None:
    with gang_node({"gang": ring(50), "one": single(0, 50), "two": single(1, 50)}) as (node, programs):
        go(programs)
        for _ in range(5):  # most pauses fall between the launches of one collective
            _until_used(node, "gang")
            node.client.pause("gang")
            until(lambda: node.parts(0.1)["gang"] == 0, "the gang goes on")
            before_ns = node.sample().busy_ns["gang"]
            _until_they_have_all(node, "one", "two")
            assert node.sample().busy_ns["gang"] == before_ns
            node.client.resume("gang")
        _until_used(node, "gang")


def test_a_gang_of_which_one_share_is_paused_leaves_all_of_its_devices(tmp_path: Path) -> None:
    with job_beside_others(tmp_path, "job", request=50, others=50) as (node, programs):
        go(programs)
        for paused, mate in (("rank0", "rank1"), ("rank1", "rank0"), ("rank0", "rank1")):
            _until_used(node, paused, mate)
            node.client.pause(paused)
            until(lambda: [node.parts(0.1)[rank] for rank in ("rank0", "rank1")] == [0, 0])
            before = node.sample().busy_ns
            _until_they_have_all(node, "other0", "other1")
            told = node.usage()[mate]
            assert (told.paused, told.devices[0].state) == (False, pb.SHARE_STATE_PAUSED)
            [explained] = node.client.explain(mate).devices
            assert explained.reason == f"paused with its gang: nothing of it runs while {paused} is paused"
            assert f"of gang job, with {paused}: they get their devices together" in explained.facts
            after = node.sample().busy_ns
            assert all(after[rank] == before[rank] for rank in ("rank0", "rank1"))
            node.client.resume(paused)
        _until_used(node, "rank0")


PAUSED = 2  # SP_GRANT_PAUSED
FLAGS_AT = 128 + 64 + 4  # the place of the first grant's flags in `terms`


def _flags(region: Path) -> int:
    return int.from_bytes((region / "terms").read_bytes()[FLAGS_AT : FLAGS_AT + 4], "little")


def _shares_of_two_devices(arbiter: NativeArbiter, directories: Sequence[Path]) -> list[Handle]:
    for directory in directories:
        directory.mkdir(exist_ok=True)
    devices = [arbiter.add_device(f"GPU-{index}") for index in range(2)]
    asked = [[(device, ShareTerms(50_000, 100_000, 0))] for device in devices]
    made = zip(directories, asked, strict=True)
    return [arbiter.add_share(str(directory), terms, ShareClass.STANDARD, []) for directory, terms in made]


def test_a_share_that_is_paused_with_its_gang_stays_so_undamaged_and_when_no_agent_is_there(tmp_path: Path) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    with closing(NativeArbiter()) as arbiter:
        shares = _shares_of_two_devices(arbiter, directories)
        for share_handle in shares:
            arbiter.join_gang(share_handle, 1)
        arbiter.pause_share(shares[0], True)
        time.sleep(0.5)  # time for five looks for damage
        assert [_flags(directory) & PAUSED for directory in directories] == [PAUSED, PAUSED]
        assert [arbiter.read_usage(one, 0).faults for one in shares] == [0, 0]
    assert [_flags(directory) & PAUSED for directory in directories] == [PAUSED, PAUSED]


def test_a_region_that_is_adopted_paused_is_paused_until_its_agent_says_otherwise(tmp_path: Path) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    with closing(NativeArbiter()) as before:
        before.pause_share(_shares_of_two_devices(before, directories)[0], True)
    with closing(NativeArbiter()) as after:
        shares = _shares_of_two_devices(after, directories)
        assert [_flags(directory) & PAUSED for directory in directories] == [PAUSED, 0]
        assert [after.read_usage(one, 0).state.name for one in shares] == ["PAUSED", "IDLE"]
        after.pause_share(shares[0], False)
        assert _flags(directories[0]) & PAUSED == 0


def test_a_gang_that_is_killed_leaves_its_devices_to_the_others() -> None:
    cast = {"gang": ring(50), "other": ring(20), "one": single(0, 30), "two": single(1, 30)}
    with gang_node(cast) as (node, programs):
        go(programs)
        _until_used(node, *programs)
        programs["gang"].kill()
        until(lambda: node.usage()["gang"].processes == [])
        for name in ("one", "two"):
            until(lambda name=name: node.parts(0.5)[name] > 0.45)  # its request of 30 is a part of the 50 that are left
        _until_used(node, "other")


def test_who_is_left_of_a_gang_is_held_up_by_nobody(tmp_path: Path) -> None:
    with job_beside_others(tmp_path, "job") as (node, programs):
        go(programs)
        _until_used(node, "rank0")
        node.client.pause("rank0")
        programs["rank0"].kill()
        node.client.release("rank0")  # it is still paused: the pause goes with it
        until(lambda: node.usage()["rank1"].devices[0].state != pb.SHARE_STATE_PAUSED)
        _until_they_have_all(node, "other0")
        programs["rank1"].kill()  # it spins for a rank that is gone, as it would on bare metal


def test_a_gang_on_a_device_that_is_lost_holds_up_nobody_on_the_other() -> None:
    with gang_node({"gang": ring(50), "one": single(0, 50)}) as (node, programs):
        go(programs)
        _until_used(node, *programs)
        node.truth.inject_xid(1, 79)
        with pytest.raises(ProgramFailed):
            programs["gang"].result(20)
        _until_they_have_all(node, "one")


def test_a_new_agent_takes_over_the_grants_of_a_gang() -> None:
    with gang_node({"gang": ring(50), "one": single(0, 50), "two": single(1, 50)}) as (node, programs):
        go(programs)
        _until_used(node, "gang")
        node.restart_agent(signal.SIGKILL)
        # The programs must go on by the new agent's grants, not because a stale heartbeat opens their gates.
        until(lambda: any(turn.share == "gang" for turn in node.turns()))
        _until_used(node, "gang")


def test_a_new_agent_knows_which_shares_are_a_gang(tmp_path: Path) -> None:
    with job_beside_others(tmp_path, "job") as (node, programs):
        go(programs)
        _until_used(node, "rank0")
        node.restart_agent(signal.SIGKILL)
        until(lambda: node.usage()["rank1"].processes)
        node.client.pause("rank1")
        until(lambda: node.usage()["rank0"].devices[0].state == pb.SHARE_STATE_PAUSED)
        assert node.usage()["rank0"].gang == "job"
        node.client.resume("rank1")
        _until_used(node, "rank0")


def test_a_program_that_uses_one_device_of_its_share_is_not_held_up_by_the_other() -> None:
    load = Load(Terms(50, devices=BOTH), "saturate", {"unit": "500us"})
    cast = {"gang": (load.terms, load_command(load.mode, load.options)), "two": single(1, 50), "one": single(0, 50)}
    with gang_node(cast) as (node, programs):
        go(programs)

        def each_has_its_part() -> bool:
            part = node.parts(0.5)
            return part["gang"] > 0.46 and part["one"] > 0.46 and part["two"] > 0.95

        until(each_has_its_part)


def test_the_arbiter_joins_and_parts_shares_in_any_order(tmp_path: Path) -> None:
    with closing(NativeArbiter()) as arbiter:
        devices = [arbiter.add_device(f"GPU-{index}") for index in range(3)]
        shares = []
        for index, on in enumerate(([0], [0], [1, 2], [1], [2])):
            directory = tmp_path / str(index)
            directory.mkdir()
            terms = [(devices[device], ShareTerms(10_000, 100_000, 0)) for device in on]
            shares.append(arbiter.add_share(str(directory), terms, ShareClass.STANDARD, []))
        for key in (1, 1, 2, 0, 1, 3):
            for share_handle in shares:
                arbiter.join_gang(share_handle, key)
        for share_handle in shares:
            arbiter.join_gang(share_handle, 5)  # shares on a device that the gang already has make a second gang
        arbiter.pause_share(shares[0], True)
        paused = [arbiter.read_usage(one, 0).state.name == "PAUSED" for one in shares]
        assert paused == [True, False, True, False, False]
        arbiter.join_gang(shares[0], 2)
        assert arbiter.read_usage(shares[2], 0).state.name == "IDLE"
        for share_handle, key in zip(reversed(shares), (2, 2, 3, 2, 0), strict=True):
            arbiter.join_gang(share_handle, key)
        arbiter.remove_share(shares[0])
        assert [arbiter.read_usage(one, 0).state.name for one in shares[1:]] == ["IDLE"] * 4
        for gone in (shares[0], Handle(999)):
            for call in (
                lambda gone=gone: arbiter.join_gang(gone, 1),
                lambda gone=gone: arbiter.update_share(gone, [], ShareClass.STANDARD),
                lambda gone=gone: arbiter.pause_share(gone, True),
                lambda gone=gone: arbiter.remove_share(gone),
                lambda gone=gone: arbiter.read_usage(gone, 0),
                lambda gone=gone: arbiter.read_turn_times(gone, 0),
                lambda gone=gone: arbiter.read_processes(gone),
                lambda gone=gone: arbiter.read_holdings(gone, 0),
                lambda gone=gone: arbiter.read_diagnostics(gone),
            ):
                with pytest.raises(OSError) as refused:  # noqa: PT011 - the errno is what is asked for
                    call()
                assert refused.value.errno == errno.ENOENT
        for beyond in (arbiter.read_usage, arbiter.read_turn_times, arbiter.read_holdings):
            with pytest.raises(OSError) as refused:  # noqa: PT011 - the errno is what is asked for
                beyond(shares[1], 1)  # it has one device
            assert refused.value.errno == errno.EINVAL
        for share_handle in shares[1:]:
            arbiter.remove_share(share_handle)


def test_a_region_of_one_device_is_not_adopted_with_two(tmp_path: Path) -> None:
    terms = ShareTerms(10_000, 100_000, 0)
    for count in (1, 2):
        with closing(NativeArbiter()) as arbiter:
            devices = [(arbiter.add_device(f"GPU-{index}"), terms) for index in range(count)]
            if count == 1:
                arbiter.add_share(str(tmp_path), devices, ShareClass.STANDARD, [])
                continue
            with pytest.raises(OSError) as refused:  # noqa: PT011 - the errno is what is asked for
                arbiter.add_share(str(tmp_path), devices, ShareClass.STANDARD, [0, 0])
            assert refused.value.errno == errno.EPROTO
