"""Test that bad input gives the documented CUDA error and a line in log and explanation, and never a crash.

The tests follow the rows of the table in docs/operations.md, "What a program sees when something is wrong". Damaged
regions are in test_agent_damage.py.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bad_input import (
    INVALID_DEVICE,
    MISSING,
    NO_DEVICE,
    NOT_CALLED,
    NOT_FOUND,
    NOT_READY,
    OUT_OF_MEMORY,
    SLOTS_MAX,
    driver_without,
    environment_of,
    facts_of,
    first_error,
    lines_of,
    needed_functions,
    once,
    told,
    used_functions,
    worker,
)

from rig.agent import metered, program, python, usage
from rig.until import until

if TYPE_CHECKING:
    from rig.agent import MakeAgent, RunningAgent

MIB = 1 << 20
CONTEXT_MIB = 300
UNKNOWN = "11111111-2222-3333-4444-555555555555"
TROUBLE = "program met trouble"


def test_a_first_context_that_the_cap_does_not_hold_is_made_and_its_allocations_refused_once_it_is_known(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, bad_program: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("SIMGPU_CONTEXT_MIB", str(CONTEXT_MIB))
    agent = make_agent().start()
    small = agent.register(10, name="small", memory=64 * MIB)
    with worker(bad_program, environment_of(small), tmp_path) as first:
        held = CONTEXT_MIB * MIB
        # Two looks in a row, 2.4 s apart, must find the same while the program allocates: this may take a few tries.
        until(lambda: held <= usage(agent, "small").memory_used_bytes <= held + 8 * MIB, timeout_s=60)
        until(lambda: first.refused > 0)
        first.goes_on()  # each of its rounds has refused allocations, all of which are answered with 2
        told(agent, small.share, "cap does not hold a context", "its cap of 64 MiB does not hold a CUDA context")
        cap = f"memory_limit_bytes={64 * MIB}"
        told(agent, small.share, "did not fit under the cap", cap, "did not fit under its memory")
        facts = facts_of(agent, small.share)
        assert ["above its cap: new allocations are refused" in fact for fact in facts].count(True) == 1
        assert any("takes 300 MiB here: raise the cap" in fact for fact in facts)
        # For the next program the context is too large from the beginning.
        assert first_error(once(bad_program, environment_of(small))) == ("retain", OUT_OF_MEMORY)


NONE_THERE = 0, ("init", NO_DEVICE), "its CUDA_VISIBLE_DEVICES names no device"
ASKS = {
    "an ordinal that the share has not": ({}, 1, ("device", INVALID_DEVICE), "it asked for device 1"),
    "a number beyond the share's": ({"CUDA_VISIBLE_DEVICES": "1"}, *NONE_THERE),
    "a UUID that is not there": ({"CUDA_VISIBLE_DEVICES": f"GPU-{UNKNOWN}"}, *NONE_THERE),
    "a MIG instance that is not there": ({"CUDA_VISIBLE_DEVICES": f"MIG-{UNKNOWN}"}, *NONE_THERE),
    "no device at all": ({"CUDA_VISIBLE_DEVICES": ""}, *NONE_THERE),
}


@pytest.mark.parametrize("node", ["2xH200", "1xH100:3g.40gb+4g.40gb"])
def test_a_device_that_is_not_there_is_cudas_own_error(make_agent: MakeAgent, bad_program: Path, node: str) -> None:
    agent = make_agent("--simulate", node).start()
    shares = {}
    for case, (changes, ordinal, error, _) in ASKS.items():
        answer = agent.register(5, device="0")
        shares[case] = answer.share
        assert first_error(once(bad_program, environment_of(answer, **changes), ordinal)) == error, case
        assert first_error(once(bad_program, environment_of(answer))) == ("", 0), case
    for case, (_, _, error, cause) in ASKS.items():
        fact = f"got CUDA error {error[1]}: {cause}"
        assert f"cuda_error={error[1]} " in told(agent, shares[case], TROUBLE, cause, fact), case


@pytest.mark.parametrize("node", ["2xH200", "1xH100:3g.40gb+4g.40gb"])
def test_on_a_closed_node_a_device_of_others_gets_no_context(
    make_agent: MakeAgent, bad_program: Path, node: str
) -> None:
    agent = make_agent("--simulate", node, "--policy", "closed").start()
    answer, other = agent.register(10, device="0"), agent.register(10, device="1")
    named = other.environment["CUDA_VISIBLE_DEVICES"]
    answers = once(bad_program, environment_of(answer, CUDA_VISIBLE_DEVICES=named))
    assert (first_error(answers), answers["load"]) == (("retain", INVALID_DEVICE), NOT_CALLED)
    told(agent, answer.share, TROUBLE, "its share does not hold the device that it calls 0")
    assert first_error(once(bad_program, environment_of(answer))) == ("", 0)


def test_a_driver_that_lacks_what_the_hook_calls_crashes_nobody(
    agent: RunningAgent, bad_program: Path, tmp_path: Path
) -> None:
    needed = needed_functions()
    assert {"cuEventRecord", "cuCtxGetDevice"} < set(needed)
    shares, launched = {}, {}
    for name, symbol in used_functions():
        answer = agent.register(1, name=name)
        shares[name] = answer.share
        library = driver_without(tmp_path, *{name, symbol})
        environment = environment_of(answer, LD_LIBRARY_PATH=str(library))
        answers = once(bad_program, environment)
        assert first_error(answers) == ("", 0), name
        assert MISSING in answers.values() or answers["launch"] == 0, name
        closed = once(bad_program, {**environment, "SHAREPOD_POLICY": "closed"})
        assert closed["init"] == (NOT_READY if name in needed else 0), name
        launched[name] = 4 * [answers["launch"], closed["launch"]].count(0)
    until(lambda: all(lines_of(agent, shares[name], TROUBLE) for name in needed))
    for name, share in shares.items():
        causes = [f"the driver lacks {name}:" in line for line in lines_of(agent, share, TROUBLE)]
        assert causes == ([True, True] if name in needed else []), name  # one line for each of two processes
        facts = [f"the driver lacks {name}:" in fact for fact in facts_of(agent, share)]
        assert facts.count(True) == (1 if name in needed else 0), name
    assert list(launched.values()).count(8) >= len(launched) - len(needed) - 2
    expected = {name: 0 if name in needed else launched[name] for name in shares}
    until(lambda: {name: usage(agent, name).launches for name in shares} == expected)


def test_what_only_the_program_misses_is_not_found(agent: RunningAgent, bad_program: Path, tmp_path: Path) -> None:
    answer = agent.register(10)
    environment = environment_of(answer, LD_LIBRARY_PATH=str(driver_without(tmp_path, "cuMemAllocManaged")))
    command = [str(bad_program), "lacks", "cuMemAllocManaged"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NOT_FOUND}\n", "")
    assert "cuda_error=500 " in told(
        agent, answer.share, TROUBLE, "it called cuMemAllocManaged, which the driver lacks"
    )


def test_a_driver_that_is_too_old_is_told_and_runs(agent: RunningAgent, bad_program: Path) -> None:
    answer = agent.register(10, name="old")
    assert first_error(once(bad_program, environment_of(answer, SIMGPU_DRIVER_VERSION="10020"))) == ("", 0)
    told(agent, answer.share, TROUBLE, "the driver is for CUDA 10.2, and SharePod is tested from 11.8 on")
    until(lambda: usage(agent, "old").launches == 4)


@pytest.mark.parametrize(
    ("is_file", "policy", "error"), [(False, "open", ("", 0)), (True, "closed", ("init", NOT_READY))]
)
def test_a_region_without_its_bell_cannot_be_used_and_that_is_told(
    agent: RunningAgent, bad_program: Path, is_file: bool, policy: str, error: tuple[str, int]
) -> None:
    answer = agent.register(10, name="deaf")
    bell = Path(answer.share.directory) / "bell"
    bell.unlink()
    if is_file:
        bell.touch(mode=0o622)
    assert first_error(once(bad_program, environment_of(answer, SHAREPOD_POLICY=policy))) == error
    assert bell.exists() == is_file
    assert not is_file or bell.stat().st_size == 0
    line = told(agent, answer.share, "region cannot be used", "its region has no bell, or one that is no FIFO")
    assert "register the share anew" in line
    assert usage(agent, "deaf").launches == 0


@contextmanager
def crowd(bad_program: Path, environment: dict[str, str], count: int) -> Iterator[None]:
    with python(environment, "crowd", str(count), of=str(bad_program)) as (process, line):
        assert line == "ready\n"
        yield
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


def test_a_program_that_finds_all_slots_taken_is_turned_away_and_that_is_told_once_as_long_as_they_are(
    agent: RunningAgent, bad_program: Path
) -> None:
    answer = agent.register(10, name="crowded")
    environment, cause = environment_of(answer), f"turned away, for all {SLOTS_MAX} slots of its share are taken"
    with crowd(bad_program, environment, SLOTS_MAX - 1):
        assert first_error(once(bad_program, environment)) == ("", 0)
        until(lambda: usage(agent, "crowded").launches == 4)
    assert lines_of(agent, answer.share, TROUBLE) == []
    until(lambda: not agent.shares()[0].processes)
    for times in (1, 2):
        with crowd(bad_program, environment, SLOTS_MAX):
            for _ in range(3):
                assert first_error(once(bad_program, environment)) == ("", 0)
                closed = once(bad_program, {**environment, "SHAREPOD_POLICY": "closed"})
                assert first_error(closed) == ("init", NOT_READY)
            until(lambda times=times: len(lines_of(agent, answer.share, cause)) >= times)
            time.sleep(1.2)  # the agent has looked again
            assert len(lines_of(agent, answer.share, cause)) == times
            assert [cause in fact for fact in facts_of(agent, answer.share)].count(True) == 1
        until(lambda: not agent.shares()[0].processes)
    assert usage(agent, "crowded").launches == 4  # a process that was turned away is not metered
    assert first_error(once(bad_program, environment)) == ("", 0)
    until(lambda: usage(agent, "crowded").launches == 8)


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("handled", 3, "ready\nown handler\n"),
        ("raw", -signal.SIGBUS, "ready\n"),
        ("sent", -signal.SIGBUS, "ready\n"),
    ],
)
def test_a_sigbus_of_the_programs_own_is_its_own(
    agent: RunningAgent, bad_program: Path, how: str, status: int, said: str
) -> None:
    command = [str(bad_program), "fault", how]
    environment = environment_of(agent.register(10))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (status, said)


def test_who_meets_no_trouble_is_not_told_of(agent: RunningAgent, bad_program: Path) -> None:
    answer = agent.register(10, name="well")
    assert first_error(once(bad_program, environment_of(answer))) == ("", 0)
    with program(metered(answer)):
        until(lambda: usage(agent, "well").launches > 100)
    assert [lines_of(agent, answer.share, event) for event in (TROUBLE, "region", "cap ")] == [[], [], []]
    assert not any("got CUDA error" in fact or "region" in fact for fact in facts_of(agent, answer.share))
