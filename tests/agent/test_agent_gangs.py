"""Gangs: the devices that a share on several of them gets together.

In virtual time random schedules run over the arbiter's own code (gang_program.c). On the simulated GPU programs make
collectives in which every rank spins for the next (bench/ring.c) beside programs that use one device.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rig.node import Load, Node, Terms
from rig.programs import Program, ProgramFailed, load_command, ring_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000
BOTH = ("0", "1")
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


def _schedules(program: Path, first_seed: int, count: int, *apart: str) -> dict[str, float]:
    done = subprocess.run(
        [str(program), str(first_seed), str(count), *apart], capture_output=True, text=True, check=True, timeout=300
    )
    found: dict[str, float] = json.loads(done.stdout)
    assert found["hangs"] == 0, done.stderr
    assert found["invalid"] == 0
    return found


def test_three_thousand_random_schedules_end_every_collective(tmp_path: Path) -> None:
    found = _schedules(_built(tmp_path), 1, 3000)
    assert found["collectives"] > 300_000
    # Limits of a few per cent, pauses of the ranks and dying neighbours included.
    assert found["longest_ms"] < 1000
    # Where all is saturated, nobody is limited and nobody dies, it is two rounds of turns at most.
    assert found["steady_longest_ms"] < 250


def test_shares_of_one_device_keep_their_target_and_wait_no_longer_beside_gangs(tmp_path: Path) -> None:
    found = _schedules(_built(tmp_path), 3001, 1000)
    assert found["least_part"] > 0.98
    assert found["longest_wait_ms"] < 100


def test_gangs_make_three_times_the_collectives_of_devices_that_know_nothing_of_each_other(tmp_path: Path) -> None:
    program = _built(tmp_path)
    together, apart = _schedules(program, 1, 600), _schedules(program, 1, 600, "apart")
    assert together["steady_collectives"] > 3 * apart["steady_collectives"]


def test_shares_that_were_joined_are_as_one_share_on_their_devices(tmp_path: Path) -> None:
    program = _built(tmp_path)
    together, joined = _schedules(program, 1, 1500), _schedules(program, 1, 1500, "joined")
    assert joined["collectives"] == pytest.approx(together["collectives"], rel=0.01)
    assert joined["longest_ms"] < 1000
    assert joined["steady_longest_ms"] < 250
    assert joined["least_part"] > 0.98
    assert joined["longest_wait_ms"] < 100


def test_a_device_that_is_kept_for_two_gangs_lets_in_whom_another_device_spins_for(tmp_path: Path) -> None:
    _schedules(_built(tmp_path), 16286, 1)  # one saw no step there until the next tick


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
        start_ns = _go(programs, 8)
        samples = node.samples(start_ns + 1_000_000_000, 6)
        made = {name: _collectives(programs[name]) for name in ("a", "b")}
        span_ns = samples[-1].now_ns - samples[0].now_ns
        part = {name: (samples[-1].busy_ns[name] - samples[0].busy_ns[name]) / span_ns for name in cast}
        turns = node.turns()
    # Without gangs some 20 a second: nearly every turn ended with one rank spinning for the other.
    assert sum(count for count, _ in made.values()) > 2000, made
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
@pytest.mark.parametrize(
    "terms",
    [{"limit": 40.0}, {"share_class": "latency"}, {"share_class": "batch"}],
    ids=["limited", "latency", "batch"],
)
def test_a_gang_of_any_terms_makes_its_collectives(terms: dict[str, Any]) -> None:
    with _node({"gang": _ring(30, **terms), "one": _single(0), "two": _single(1)}) as (node, programs):
        start_ns = _go(programs, 4)
        samples = node.samples(start_ns + 1_000_000_000, 2)
        count, longest_ms = _collectives(programs["gang"])
        span_ns = samples[-1].now_ns - samples[0].now_ns
        used = (samples[-1].busy_ns["gang"] - samples[0].busy_ns["gang"]) / span_ns / 2
    assert count > 100  # a batch gang gets little more than its request
    assert longest_ms < 600
    if "limit" in terms:
        assert used < 0.42


@pytest.mark.realtime
def test_a_paused_gang_leaves_its_devices_and_comes_back() -> None:
    used: dict[str, list[float]] = {"gang": [], "one": [], "two": []}
    with _node({"gang": _ring(50), "one": _single(0, 50), "two": _single(1, 50)}) as (node, programs):
        start_ns = _go(programs, 12)
        time.sleep(max(0.0, start_ns / 1e9 + 1 - time.monotonic()))
        for _ in range(5):  # most pauses fall between the launches of one collective
            node.client.pause("gang")
            time.sleep(0.2)
            samples = node.samples(time.monotonic_ns(), 1)
            node.client.resume("gang")
            span_ns = samples[-1].now_ns - samples[0].now_ns
            for name in programs:
                used[name].append((samples[-1].busy_ns[name] - samples[0].busy_ns[name]) / span_ns)
            time.sleep(0.2)
        count, _ = _collectives(programs["gang"])
    assert max(used["gang"]) < 0.01, used
    assert min(used["one"]) > 0.9, used
    assert min(used["two"]) > 0.9, used
    assert count > 500


@pytest.mark.realtime
def test_a_gang_that_is_killed_leaves_its_devices_to_the_others() -> None:
    with _node({"gang": _ring(50), "other": _ring(20), "one": _single(0, 30), "two": _single(1, 30)}) as (
        node,
        programs,
    ):
        start_ns = _go(programs, 4)
        time.sleep(max(0.0, start_ns / 1e9 + 1 - time.monotonic()))
        programs["gang"].kill()
        time.sleep(0.2)
        samples = node.samples(time.monotonic_ns(), 2)
        count, longest_ms = _collectives(programs["other"])
        span_ns = samples[-1].now_ns - samples[0].now_ns
        used = {name: (samples[-1].busy_ns[name] - samples[0].busy_ns[name]) / span_ns for name in ("one", "two")}
    assert min(used.values()) > 0.45  # 30 of the 50 that are left
    assert count > 500
    assert longest_ms < 400


@pytest.mark.realtime
def test_a_gang_on_a_device_that_is_lost_holds_up_nobody_on_the_other() -> None:
    with _node({"gang": _ring(50), "one": _single(0, 50)}) as (node, programs):
        start_ns = _go(programs, 4)
        time.sleep(max(0.0, start_ns / 1e9 + 1 - time.monotonic()))
        node.truth.inject_xid(1, 79)
        time.sleep(0.3)
        samples = node.samples(time.monotonic_ns(), 1)
        with pytest.raises(ProgramFailed):
            programs["gang"].result(20)
        span_ns = samples[-1].now_ns - samples[0].now_ns
    assert (samples[-1].busy_ns["one"] - samples[0].busy_ns["one"]) / span_ns > 0.45


@pytest.mark.realtime
def test_a_new_agent_takes_over_the_grants_of_a_gang() -> None:
    with _node({"gang": _ring(50), "one": _single(0, 50), "two": _single(1, 50)}) as (node, programs):
        start_ns = _go(programs, 5)
        time.sleep(max(0.0, start_ns / 1e9 + 1 - time.monotonic()))
        node.restart_agent(signal.SIGKILL)
        count, longest_ms = _collectives(programs["gang"])
        turns = [turn for turn in node.turns() if turn.share == "gang"]
    assert count > 500
    assert longest_ms < 1500  # the gates of a crashed agent open within a second
    assert turns  # the new agent grants them, and not the heartbeat's end


@pytest.mark.realtime
def test_a_program_that_uses_one_device_of_its_share_is_not_held_up_by_the_other() -> None:
    load = Load(Terms(50, devices=BOTH), "saturate", {"unit": "500us"})
    cast = {"gang": (load.terms, load_command(load.mode, load.options)), "two": _single(1, 50), "one": _single(0, 50)}
    with _node(cast) as (node, programs):
        start_ns = _go(programs, 7)
        samples = node.samples(start_ns + 1_000_000_000, 6)
        span_ns = samples[-1].now_ns - samples[0].now_ns
        used = {name: (samples[-1].busy_ns[name] - samples[0].busy_ns[name]) / span_ns for name in cast}
    assert used["gang"] > 0.46
    assert used["one"] > 0.46
    assert used["two"] > 0.95
