"""Test damaged regions: every word, every length, before a program starts and while it works.

No process may crash or hang. Any tenant can write its own side of the region; only the agent's user can write the
agent's side. The tests damage both, byte by byte.
"""

import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bad_input import (
    CLAIMS_BYTES,
    COPIES_BYTES,
    DEVICES_MAX,
    GRANT_BYTES,
    HEADER_BYTES,
    NOT_CALLED,
    NOT_READY,
    OUT_OF_MEMORY,
    REPORT_BYTES,
    SLOT_BYTES,
    SLOT_HEAD_BYTES,
    SLOTS_BYTES,
    SLOTS_MAX,
    TERMS_BYTES,
    Worker,
    answers_in,
    environment_of,
    facts_of,
    first_error,
    lines_of,
    once,
    overwrite,
    told,
    worker,
)
from dialogue import Dialogue

from rig.agent import RunningAgent, usage
from rig.until import until
from sharepod.proto import v1_pb2 as pb

MIB = 1 << 20
WORD = 4
DICE = random.Random(11)
VALUES: dict[str, Callable[[], bytes]] = {
    "zero": lambda: bytes(WORD),
    "ones": lambda: b"\xff" * WORD,
    "random": lambda: DICE.randbytes(WORD),
}
DAMAGED = "region damaged"
UNUSABLE = "region cannot be used"


def terms_words() -> list[list[int]]:
    """Return every aligned word of `terms`: each word of the header, and each word of a grant in all rows at once."""
    header = [[at] for at in range(0, HEADER_BYTES, WORD)]
    rows = [HEADER_BYTES + row * GRANT_BYTES for row in range(DEVICES_MAX)]
    return header + [[row + at for row in rows] for at in range(0, GRANT_BYTES, WORD)]


def slots_words() -> list[list[int]]:
    """Return every aligned word of `slots`: of the claims, and of a slot's head and tables in all slots at once.

    A table has a row for each device; the same word of all rows is one group.
    """
    groups = [[at] for at in range(0, CLAIMS_BYTES, WORD)]
    slots = [CLAIMS_BYTES + slot * SLOT_BYTES for slot in range(SLOTS_MAX)]
    begins = 0
    for rows, row_bytes in ((1, SLOT_HEAD_BYTES), (DEVICES_MAX, REPORT_BYTES), (DEVICES_MAX, COPIES_BYTES)):
        table = [slot + begins + row * row_bytes for slot in slots for row in range(rows)]
        groups += [[at + word for at in table] for word in range(0, row_bytes, WORD)]
        begins += rows * row_bytes
    assert begins == SLOT_BYTES
    return groups


FILES = {"terms": terms_words, "slots": slots_words}


LENGTHS = {
    "terms": [*range(8, TERMS_BYTES, 8), TERMS_BYTES - 1],
    "slots": sorted({*range(8, 512, 8), *range(512, SLOTS_BYTES, SLOT_BYTES), 4095, 4096, 4097, SLOTS_BYTES - 1}),
}


@contextmanager
def opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR)
    try:
        yield file
    finally:
        os.close(file)


def overwritten(path: Path) -> Iterator[list[int]]:
    """Overwrite one word after the other by each of the values; yield the place each time."""
    with opened(path) as file:
        for group in FILES[path.name]():
            for value in VALUES.values():
                for at in group:
                    os.pwrite(file, value(), at)
                yield group


def shortened(path: Path, least: int = 1) -> Iterator[list[int]]:
    """Make the file shorter step by step; yield its length each time."""
    for length in (*reversed(LENGTHS[path.name]), least):
        os.truncate(path, length)
        yield [length]


@contextmanager
def two_at_work(
    agent: RunningAgent, bad_program: Path, tmp_path: Path, memory: int = 0
) -> Iterator[tuple[pb.RegisterShareResponse, Worker, Worker]]:
    """Run a program to be hurt and a neighbour on one device; yield the share, the program and the neighbour."""
    answer = agent.register(40, name="hurt", device="0", memory=memory)
    other = agent.register(40, name="neighbour", device="0")
    with (
        worker(bad_program, environment_of(other), tmp_path) as neighbour,
        worker(bad_program, environment_of(answer), tmp_path) as hurt,
    ):
        yield answer, hurt, neighbour


def until_metered(agent: RunningAgent) -> None:
    """Wait until the program's use is still counted, or counted again."""
    before = usage(agent, "hurt").used_ns
    until(lambda: usage(agent, "hurt").used_ns > before + 20_000_000)


def survived(agent: RunningAgent, neighbour: Worker) -> None:
    """Assert that the agent is unharmed, and that the neighbour works and has no faults."""
    assert "Traceback" not in agent.log()
    neighbour.goes_on()
    assert usage(agent, "neighbour").faults == 0


def told_of(agent: RunningAgent, share: pb.Share) -> None:
    """Assert that the log and the explanation tell of the damage, and that the log is not full of it."""
    until(lambda: lines_of(agent, share, DAMAGED))
    assert 1 <= len(lines_of(agent, share, DAMAGED)) <= 6  # each line comes after ten times as many faults
    assert any("values in its region were out of range or overwritten" in fact for fact in facts_of(agent, share))


@pytest.mark.parametrize(("file", "damage"), [("terms", overwritten), ("slots", overwritten), ("slots", shortened)])
def test_a_region_damaged_beneath_a_program(
    agent: RunningAgent, bad_program: Path, tmp_path: Path, file: str, damage: Callable[[Path], Iterator[list[int]]]
) -> None:
    with two_at_work(agent, bad_program, tmp_path) as (answer, hurt, neighbour):
        path = Path(answer.share.directory) / file
        size = path.stat().st_size
        for place in damage(path):  # the program's own page stays: without it the program is no longer metered
            hurt.goes_on(because=f"{place[0]}")
        until(lambda: path.stat().st_size == size)
        until_metered(agent)
        survived(agent, neighbour)
        told_of(agent, answer.share)


def until_it_waits(directory: Path) -> None:
    """Wait until the only program of a share waits at its closed gate."""
    with opened(directory / "slots") as slots:
        until(lambda: any(os.pread(slots, WORD, CLAIMS_BYTES + 64)))


WAITING = {
    "its claim is gone": ("slots", 0, bytes(WORD)),
    "its report is damaged": ("slots", CLAIMS_BYTES + 64 + 68, b"\x55" * WORD),
    "its count is gone": ("slots", CLAIMS_BYTES + 64, bytes(WORD)),
    "its count is too high": ("slots", CLAIMS_BYTES + 64, b"\xff" * WORD),
    "its turn is another": ("terms", HEADER_BYTES + 64, b"\x55" * WORD),
    "its pause is over": ("terms", HEADER_BYTES + 68, bytes(WORD)),
}
"""Where the region of a waiting program is damaged, and with which bytes."""


@pytest.mark.parametrize("case", WAITING)
def test_who_waits_at_its_gate_is_heard_whatever_is_damaged(
    agent: RunningAgent, bad_program: Path, tmp_path: Path, case: str
) -> None:
    answer = agent.register(40, name="hurt", device="0")
    file, at, value = WAITING[case]
    directory = Path(answer.share.directory)
    with worker(bad_program, environment_of(answer), tmp_path) as hurt:
        hurt.goes_on(50)
        agent.stub.PauseShare(pb.PauseShareRequest(share="hurt"))
        until_it_waits(directory)
        overwrite(directory / file, at, value)
        time.sleep(1.3)  # the agent has looked at everything: it does so each second
        made = hurt.made
        time.sleep(0.2)
        assert hurt.made == made  # the program is still paused, or paused again
        agent.stub.ResumeShare(pb.ResumeShareRequest(share="hurt"))
        hurt.goes_on(50)


def test_a_program_whose_claim_is_gone_before_the_agent_knew_whose_it_was_claims_again(
    agent: RunningAgent, bad_program: Path, tmp_path: Path
) -> None:
    answer = agent.register(40, name="hurt", device="0")
    agent.stub.PauseShare(pb.PauseShareRequest(share="hurt"))
    os.kill(agent.pid, signal.SIGSTOP)
    directory = Path(answer.share.directory)

    def lose_the_claim() -> None:
        until_it_waits(directory)
        overwrite(directory / "slots", 0, bytes(WORD))
        os.kill(agent.pid, signal.SIGCONT)
        agent.stub.ResumeShare(pb.ResumeShareRequest(share="hurt"))

    with worker(bad_program, environment_of(answer), tmp_path, lose_the_claim) as hurt:
        hurt.goes_on(50)


def start_children(program: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [str(program), "children"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def live_once(children: subprocess.Popen[str]) -> dict[str, int]:
    """Let a child live; return its answers by call, and its exit status."""
    said = [Dialogue(children)("")]
    while "status" not in said[-1]:
        said.append(Dialogue(children).line())
    return answers_in(" ".join(said))


@pytest.mark.parametrize("file", FILES)
def test_every_word_of_a_region_damaged_before_a_program_starts(
    agent: RunningAgent, bad_program: Path, tmp_path: Path, file: str
) -> None:
    answer, other = agent.register(40, name="hurt", device="0"), agent.register(40, name="neighbour", device="0")
    path = Path(answer.share.directory) / file
    whole = path.read_bytes()
    with (
        worker(bad_program, environment_of(other), tmp_path) as neighbour,
        opened(path) as damaged,
        start_children(bad_program, environment_of(answer)) as children,
    ):
        for group in overwritten(path):
            answers = live_once(children)
            assert answers["status"] == 0, (group[0], answers)
            assert {answers[call] for call in ("init", "launch", "sync")} <= {0, NOT_CALLED}, (group[0], answers)
            assert answers["retain"] in (0, OUT_OF_MEMORY), (group[0], answers)  # a damaged memory amount may refuse it
            for at in group if file == "slots" or group[0] < HEADER_BYTES else ():
                os.pwrite(damaged, whole[at : at + WORD], at)
        survived(agent, neighbour)
        if file == "terms":  # slots without a process hold nothing that could be damaged
            told_of(agent, answer.share)
    assert first_error(once(bad_program, environment_of(answer))) == ("", 0)
    if file == "terms":
        expected, mended = bytearray(whole), bytearray(path.read_bytes())
        for content in (expected, mended):
            content[64:HEADER_BYTES] = bytes(64)  # ignore the heartbeat and the unused bytes
            del content[HEADER_BYTES + 64 :]  # ignore the turn and the unused rows
        assert mended == expected


@pytest.mark.parametrize("policy", ["open", "closed"])
@pytest.mark.parametrize("file", FILES)
def test_a_region_of_every_length_before_a_program_starts(
    agent: RunningAgent, bad_program: Path, file: str, policy: str
) -> None:
    answer = agent.register(40)
    path = Path(answer.share.directory) / file
    environment = environment_of(answer, SHAREPOD_POLICY=policy)
    allowed = {0} if policy == "open" else {NOT_READY} if file == "terms" else {0, NOT_READY}
    with start_children(bad_program, environment) as children:
        for length in shortened(path, least=0):
            answers = live_once(children)
            assert (answers["status"], answers["init"] in allowed) == (0, True), (length, answers)
            assert answers["launch"] == (0 if answers["init"] == 0 else NOT_CALLED), (length, answers)
    if file == "terms":
        told(agent, answer.share, UNUSABLE, "its region has another ABI or is damaged")
    else:  # the agent restores the length of the file
        told(agent, answer.share, DAMAGED, "a file was cut short", "values in its region were out of range")
        until(lambda: path.stat().st_size == SLOTS_BYTES)
        until(lambda: once(bad_program, environment)["launch"] == 0)


@pytest.mark.parametrize("file", FILES)
def test_a_region_cut_to_nothing_beneath_a_program_costs_it_its_metering_alone(
    agent: RunningAgent, bad_program: Path, tmp_path: Path, file: str
) -> None:
    with (
        two_at_work(agent, bad_program, tmp_path, 64 * MIB) as (answer, hurt, neighbour),
        worker(bad_program, environment_of(answer), tmp_path) as second,
    ):
        for length in (SLOTS_BYTES, SLOTS_BYTES, SLOTS_BYTES, 0):  # the file grows again and is cut again
            os.truncate(Path(answer.share.directory) / file, 0)
            for one in (hurt, second):
                one.goes_on(50)
            os.truncate(Path(answer.share.directory) / file, length)
        if file == "terms":
            told(agent, answer.share, UNUSABLE, "its region has another ABI or is damaged")
        else:
            told(agent, answer.share, DAMAGED, "a file was cut short", "values in its region were out of range")
        neighbour.goes_on(50)
        assert usage(agent, "neighbour").faults == 0
        assert (hurt.refused, second.refused) == (0, 0)
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="hurt"))
    assert first_error(once(bad_program, environment_of(agent.register(40, name="hurt")))) == ("", 0)


ATTACKER = """
import os, random, sys, time
dice, end = random.Random(int(sys.argv[2])), time.monotonic() + float(sys.argv[3])
slots, size = os.open(sys.argv[1], os.O_RDWR), int(sys.argv[4])
while time.monotonic() < end:
    os.pwrite(slots, dice.randbytes(dice.choice([1, 4, 64, 4096, size])), dice.randrange(size))
    if dice.random() < 0.05:
        os.ftruncate(slots, dice.choice([0, 1, 64, 256, 4096, size - 1, size, size, 2 * size]))
"""


def test_a_tenant_at_war_with_its_own_slots_harms_nobody_else(
    agent: RunningAgent, bad_program: Path, tmp_path: Path
) -> None:
    with two_at_work(agent, bad_program, tmp_path) as (answer, hurt, neighbour):
        slots = Path(answer.share.directory) / "slots"
        commands = [[sys.executable, "-c", ATTACKER, str(slots), str(seed), "4", str(SLOTS_BYTES)] for seed in (1, 2)]
        attackers = [subprocess.Popen(command) for command in commands]
        try:
            while any(attacker.poll() is None for attacker in attackers):
                neighbour.goes_on()
                hurt.goes_on()
                facts_of(agent, answer.share)
        finally:
            for attacker in attackers:
                attacker.kill()
                attacker.wait()
        survived(agent, neighbour)
        told_of(agent, answer.share)


def test_an_agent_adopts_a_damaged_region_and_believes_none_of_it(
    agent: RunningAgent, bad_program: Path, tmp_path: Path
) -> None:
    answer = agent.register(40, name="hurt", device="0", memory=64 * MIB)
    with worker(bad_program, environment_of(answer), tmp_path) as hurt:
        until(lambda: usage(agent, "hurt").used_ns > 0)
        agent.stop()
        overwrite(Path(answer.share.directory, "terms"), HEADER_BYTES, b"\xfe" * GRANT_BYTES * DEVICES_MAX)
        agent.start()
        account = usage(agent, "hurt")
        assert 0 < account.used_ns < 60 * 10**9
        assert account.memory_overhead_bytes == 0
        hurt.goes_on(50)
        until(lambda: usage(agent, "hurt").used_ns > account.used_ns + 20_000_000)
    content = (Path(answer.share.directory) / "terms").read_bytes()
    assert struct.unpack_from("<Q", content, HEADER_BYTES + 48)[0] == 64 * MIB
    assert struct.unpack_from("<I", content, HEADER_BYTES + 100)[0] == 0  # memory that contexts do not take
    assert struct.unpack_from("<Q", content, HEADER_BYTES + 112)[0] == 0  # a context's memory, which is not yet known
