"""Gangs: the devices that a share on several of them gets together.

In virtual time random schedules run over the arbiter's own code (gang_program.c). On the simulated GPU programs make
collectives in which every rank spins for the next (bench/ring.c) beside programs that use one device.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rig.node import Load, Node, Terms
from rig.programs import Program, ProgramFailed, load_command, ring_command
from rig.until import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000
SCHEDULES = int(os.environ.get("SHAREPOD_TEST_SCHEDULES", "300"))
"""How many random schedules each test plays; a soak plays thousands."""
BOTH = ("0", "1")
PATIENT_S = 120
"""Longer than any wait; what still runs then ends with its node."""
SOURCES = [
    *(f"tests/agent/gang_{name}.c" for name in ("program", "rank", "region")),
    *(f"agent/{name}.c" for name in ("step", "gang", "join", "turn", "slots", "copies", "pressure", "bill", "lead")),
    *(f"agent/{name}.c" for name in ("policy", "policy_accounts", "policy_rates")),
]


def _built(directory: Path, *flags: str) -> Path:
    built = directory / "gang_program"
    command = ["gcc", "-std=c11", "-O2", "-Wall", "-Werror", *flags, "-Iagent", "-Ihook"]
    subprocess.run([*command, *SOURCES, "-o", str(built)], cwd=ROOT, check=True)
    return built


@pytest.fixture(scope="module")
def schedules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that plays random schedules over the arbiter's own code."""
    return _built(tmp_path_factory.mktemp("gangs"))


def _schedules(program: Path, first_seed: int, count: int, *apart: str) -> dict[str, float]:
    done = subprocess.run(
        [str(program), str(first_seed), str(count), *apart], capture_output=True, text=True, check=True, timeout=300
    )
    found: dict[str, float] = json.loads(done.stdout)
    assert found["hangs"] == 0, done.stderr
    assert found["invalid"] == 0
    return found


def test_random_schedules_end_every_collective(schedules: Path) -> None:
    found = _schedules(schedules, 1, SCHEDULES)
    assert found["collectives"] > 100 * SCHEDULES
    # Limits of a few per cent, pauses of the ranks and dying neighbours included.
    assert found["longest_ms"] < 1000
    # Where all is saturated, nobody is limited and nobody dies, it is two rounds of turns at most.
    assert found["steady_longest_ms"] < 250


def test_shares_of_one_device_keep_their_target_and_wait_no_longer_beside_gangs(schedules: Path) -> None:
    found = _schedules(schedules, 3001, SCHEDULES)
    assert found["least_part"] > 0.98
    assert found["longest_wait_ms"] < 100


def test_gangs_make_three_times_the_collectives_of_devices_that_know_nothing_of_each_other(schedules: Path) -> None:
    together, apart = _schedules(schedules, 1, SCHEDULES // 2), _schedules(schedules, 1, SCHEDULES // 2, "apart")
    assert together["steady_collectives"] > 3 * apart["steady_collectives"]


def test_shares_that_were_joined_are_as_one_share_on_their_devices(schedules: Path) -> None:
    together, joined = _schedules(schedules, 1, SCHEDULES), _schedules(schedules, 1, SCHEDULES, "joined")
    assert joined["collectives"] == pytest.approx(together["collectives"], rel=0.01)
    assert joined["longest_ms"] < 1000
    assert joined["steady_longest_ms"] < 250
    assert joined["least_part"] > 0.98
    assert joined["longest_wait_ms"] < 100


def test_a_device_that_is_kept_for_two_gangs_lets_in_whom_another_device_spins_for(schedules: Path) -> None:
    _schedules(schedules, 16286, 1)  # one saw no step there until the next tick


@pytest.mark.deep
@pytest.mark.parametrize("how", [(), ("joined",)], ids=["one share", "joined"])
def test_the_schedules_touch_no_foreign_memory(tmp_path: Path, how: tuple[str, ...]) -> None:
    _schedules(_built(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover"), 7001, 100, *how)


@contextmanager
def _node(programs: Mapping[str, tuple[Terms, list[str]]]) -> Iterator[tuple[Node, dict[str, Program]]]:
    """Start programs on two devices; each has its own share and waits for its `go`."""
    with Node("2xH200") as node:
        started = {}
        for name, (terms, command) in programs.items():
            environment = node.share_environment(name, terms)
            if len(terms.devices) == 1:
                environment = {**environment, "CUDA_VISIBLE_DEVICES": terms.devices[0]}
            started[name] = node.add(name, command, environment)
        yield node, started


def _ring(request: float = 30, **terms: Any) -> tuple[Terms, list[str]]:
    return Terms(request, devices=BOTH, **terms), ring_command(2, steps=4, work="200us")


def _single(device: int, request: float = 40) -> tuple[Terms, list[str]]:
    load = Load(Terms(request, devices=(str(device),)), "saturate", {"unit": "500us"})
    return load.terms, load_command(load.mode, load.options)


def _go(programs: dict[str, Program], seconds: float) -> int:
    start_ns = time.monotonic_ns() + 100 * MS
    for program in programs.values():
        program.go(start_ns, start_ns + round(seconds * 1e9))
    return start_ns


def _collectives(program: Program) -> tuple[int, float]:
    """Wait for the end of a ring; return how many collectives it made, and how long the longest took, in ms."""
    result = program.result(20)
    return result.other["collectives"], result.other["longest_ns"] / MS


@pytest.mark.realtime
def test_two_gangs_and_two_single_shares_never_deadlock_and_keep_their_targets() -> None:
    cast = {"a": _ring(), "b": _ring(), "one": _single(0), "two": _single(1)}
    with _node(cast) as (node, programs):
        start_ns = _go(programs, 5)
        part = node.parts(3, start_ns + 1000 * MS)
        made = {name: _collectives(programs[name]) for name in ("a", "b")}
        turns = node.turns()
    # Without gangs some 20 a second: nearly every turn ended with one rank spinning for the other.
    assert sum(count for count, _ in made.values()) > 1250, made
    # A round of the four shares, and what a busy host adds.
    assert max(longest for _, longest in made.values()) < 400, made
    assert part["one"] > 0.36, part
    assert part["two"] > 0.36, part
    together = _granted_together([turn for turn in turns if turn.share == "a"])
    assert together > 0.5


def _granted_together(turns: list[Any]) -> float:
    """Return what part of the longer turns began on both devices within a millisecond."""
    whole = [turn for turn in turns if turn.closed_ns - turn.granted_ns > 4 * MS]
    return sum(
        any(other.device != turn.device and abs(other.granted_ns - turn.granted_ns) < MS for other in turns)
        for turn in whole
    ) / len(whole)


@pytest.mark.realtime
def test_a_gang_with_a_limit_keeps_it_and_makes_its_collectives() -> None:
    with _node({"gang": _ring(30, limit=40.0), "one": _single(0), "two": _single(1)}) as (node, programs):
        start_ns = _go(programs, 4)
        used = node.parts(2, start_ns + 1000 * MS)["gang"] / 2
        count, longest_ms = _collectives(programs["gang"])
    assert count > 100
    assert longest_ms < 600
    assert used < 0.42


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
    with _node({"gang": _ring(50), "one": _single(0, 50), "two": _single(1, 50)}) as (node, programs):
        _go(programs, PATIENT_S)
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
    with _node({"gang": _ring(50), "other": _ring(20), "one": _single(0, 30), "two": _single(1, 30)}) as (
        node,
        programs,
    ):
        _go(programs, PATIENT_S)
        for name in programs:
            _until_used(node, name)
        programs["gang"].kill()
        until(lambda: node.usage()["gang"].processes == ())
        for name in ("one", "two"):
            until(lambda name=name: node.parts(0.5)[name] > 0.45)  # 30 of the 50 that are left
        _until_used(node, "other")


def test_a_gang_on_a_device_that_is_lost_holds_up_nobody_on_the_other() -> None:
    with _node({"gang": _ring(50), "one": _single(0, 50)}) as (node, programs):
        _go(programs, PATIENT_S)
        for name in programs:
            _until_used(node, name)
        node.truth.inject_xid(1, 79)
        with pytest.raises(ProgramFailed):
            programs["gang"].result(20)
        until(lambda: node.parts(0.3)["one"] > 0.9)


def test_a_new_agent_takes_over_the_grants_of_a_gang() -> None:
    with _node({"gang": _ring(50), "one": _single(0, 50), "two": _single(1, 50)}) as (node, programs):
        _go(programs, PATIENT_S)
        _until_used(node, "gang")
        node.restart_agent(signal.SIGKILL)
        # The new agent grants them their turns, and not the heartbeat's end.
        until(lambda: any(turn.share == "gang" for turn in node.turns()))
        _until_used(node, "gang")


def test_a_program_that_uses_one_device_of_its_share_is_not_held_up_by_the_other() -> None:
    load = Load(Terms(50, devices=BOTH), "saturate", {"unit": "500us"})
    cast = {"gang": (load.terms, load_command(load.mode, load.options)), "two": _single(1, 50), "one": _single(0, 50)}
    with _node(cast) as (node, programs):
        _go(programs, PATIENT_S)

        def each_has_its_part() -> bool:
            part = node.parts(0.5)
            return part["gang"] > 0.46 and part["one"] > 0.46 and part["two"] > 0.95

        until(each_has_its_part)
