"""Gangs: the devices that a share on several of them gets together.

In virtual time random schedules run over the arbiter's own code (gang_program.c). On the simulated GPU programs make
collectives in which every rank spins for the next (bench/programs/ring.c) beside programs that use one device.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gang_runs import BOTH, MS, gang_node, go, ring, single
from gang_schedules import built, random_schedules

from rig.loads import Load, Terms
from rig.programs import ProgramFailed, load_command
from rig.until import until

if TYPE_CHECKING:
    from rig.node import Node

SCHEDULES = int(os.environ.get("SHAREPOD_TEST_SCHEDULES", "300"))
"""How many random schedules each test plays; a soak plays thousands."""


PATIENT_S = 120
"""Longer than any wait; what still runs then ends with its node."""


@pytest.fixture(scope="module")
def schedules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that plays random schedules over the arbiter's own code."""
    return built(tmp_path_factory.mktemp("gangs"))


def test_random_schedules_end_every_collective(schedules: Path) -> None:
    found = random_schedules(schedules, 1, SCHEDULES)
    assert found["collectives"] > 100 * SCHEDULES
    # Limits of a few per cent, pauses of the ranks and dying neighbours included.
    assert found["longest_ms"] < 1000
    # Where all is saturated, nobody is limited and nobody dies, it is two rounds of turns at most.
    assert found["steady_longest_ms"] < 250


def test_shares_of_one_device_keep_their_target_and_wait_no_longer_beside_gangs(schedules: Path) -> None:
    found = random_schedules(schedules, 3001, SCHEDULES)
    assert found["least_part"] > 0.98
    assert found["longest_wait_ms"] < 100


def test_gangs_make_three_times_the_collectives_of_devices_that_know_nothing_of_each_other(schedules: Path) -> None:
    together, apart = (
        random_schedules(schedules, 1, SCHEDULES // 2),
        random_schedules(schedules, 1, SCHEDULES // 2, "apart"),
    )
    assert together["steady_collectives"] > 3 * apart["steady_collectives"]


def test_shares_that_were_joined_are_as_one_share_on_their_devices(schedules: Path) -> None:
    together, joined = random_schedules(schedules, 1, SCHEDULES), random_schedules(schedules, 1, SCHEDULES, "joined")
    assert joined["collectives"] == pytest.approx(together["collectives"], rel=0.01)
    assert joined["longest_ms"] < 1000
    assert joined["steady_longest_ms"] < 250
    assert joined["least_part"] > 0.98
    assert joined["longest_wait_ms"] < 100


def test_a_device_that_is_kept_for_two_gangs_lets_in_whom_another_device_spins_for(schedules: Path) -> None:
    random_schedules(schedules, 16286, 1)  # one saw no step there until the next tick


def _busy(node: Node, name: str) -> int:
    return node.sample().busy_ns[name]


def _until_used(node: Node, name: str, ms: int = 100) -> None:
    """Wait until a program has used so much more of its devices."""
    before_ns = _busy(node, name)
    until(lambda: _busy(node, name) - before_ns > ms * MS, lambda: f"{name} has used {_busy(node, name) - before_ns}")


def _until_still(node: Node, name: str) -> None:
    """Wait until a program uses nothing for a while."""
    until(lambda: node.parts(0.1)[name] == 0, f"{name} goes on")


def test_a_paused_gang_leaves_its_devices_and_comes_back() -> None:
    with gang_node({"gang": ring(50), "one": single(0, 50), "two": single(1, 50)}) as (node, programs):
        go(programs, PATIENT_S)
        for _ in range(5):  # most pauses fall between the launches of one collective
            _until_used(node, "gang")
            node.client.pause("gang")
            _until_still(node, "gang")
            before_ns = _busy(node, "gang")
            for name in ("one", "two"):
                until(lambda name=name: node.parts(0.2)[name] > 0.9, f"{name} has not all of its device")
            assert _busy(node, "gang") == before_ns
            node.client.resume("gang")
        _until_used(node, "gang")


def test_a_gang_that_is_killed_leaves_its_devices_to_the_others() -> None:
    with gang_node({"gang": ring(50), "other": ring(20), "one": single(0, 30), "two": single(1, 30)}) as (
        node,
        programs,
    ):
        go(programs, PATIENT_S)
        for name in programs:
            _until_used(node, name)
        programs["gang"].kill()
        until(lambda: node.usage()["gang"].processes == ())
        for name in ("one", "two"):
            until(lambda name=name: node.parts(0.5)[name] > 0.45)  # 30 of the 50 that are left
        _until_used(node, "other")


def test_a_gang_on_a_device_that_is_lost_holds_up_nobody_on_the_other() -> None:
    with gang_node({"gang": ring(50), "one": single(0, 50)}) as (node, programs):
        go(programs, PATIENT_S)
        for name in programs:
            _until_used(node, name)
        node.truth.inject_xid(1, 79)
        with pytest.raises(ProgramFailed):
            programs["gang"].result(20)
        until(lambda: node.parts(0.3)["one"] > 0.9)


def test_a_new_agent_takes_over_the_grants_of_a_gang() -> None:
    with gang_node({"gang": ring(50), "one": single(0, 50), "two": single(1, 50)}) as (node, programs):
        go(programs, PATIENT_S)
        _until_used(node, "gang")
        node.restart_agent(signal.SIGKILL)
        # The new agent grants them their turns, and not the heartbeat's end.
        until(lambda: any(turn.share == "gang" for turn in node.turns()))
        _until_used(node, "gang")


def test_a_program_that_uses_one_device_of_its_share_is_not_held_up_by_the_other() -> None:
    load = Load(Terms(50, devices=BOTH), "saturate", {"unit": "500us"})
    cast = {"gang": (load.terms, load_command(load.mode, load.options)), "two": single(1, 50), "one": single(0, 50)}
    with gang_node(cast) as (node, programs):
        go(programs, PATIENT_S)

        def each_has_its_part() -> bool:
            part = node.parts(0.5)
            return part["gang"] > 0.46 and part["one"] > 0.46 and part["two"] > 0.95

        until(each_has_its_part)
