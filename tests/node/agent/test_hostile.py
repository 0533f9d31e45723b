"""Test that whatever a tenant writes into its own region harms no other tenant."""

import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from floods import LOCKS, RINGS, running
from report import HEADER_BYTES, SLOT_BYTES, device_at, report
from tenant import Tenant

from rig.arbiter import Arbiter
from rig.until import until
from sharepod.agent.shares.diagnostics import Kind

SLOTS_BYTES = HEADER_BYTES + 64 * SLOT_BYTES
NO_SLOT = 120
"""A number that is no slot, with which a doorbell may be rung all the same."""


def lie(dice: random.Random, word: int) -> bytes:
    """Return a tenant's report for both lines of its slot: well formed, and false in every part."""

    def time_ns() -> int:
        now_ns = time.monotonic_ns()
        return dice.choice([0, 1, now_ns, now_ns - 10**9, now_ns + 10**9, 2**63, 2**64 - 1, dice.getrandbits(64)])

    def turn() -> int:
        return dice.choice([word, word, word, 0, word + 1, dice.getrandbits(32)]) % 2**32

    waiting = dice.choice([0, 1, 1, 2**20, 2**32 - 1])
    memory = dice.choice([0, 2**40, 2**50, 2**64 - 1])
    first = struct.pack("<IIQQ5Q", waiting, 0, time_ns(), memory, *(0,) * 5)
    times = (time_ns(), time_ns(), time_ns(), time_ns())
    return first + report(turn(), turn(), times, dice.getrandbits(64), dice.getrandbits(64))


def test_random_slots_are_clamped_and_attributed_to_their_author(arbiter: Arbiter, tmp_path: Path) -> None:
    liar, honest = (Tenant(arbiter.share(tmp_path / name)) for name in ("liar", "honest"))
    dice = random.Random(7)
    began_ns = time.monotonic_ns()
    with (tmp_path / "liar" / "slots").open("r+b", buffering=0) as slots:
        for number in range(800):
            honest.claim(0)
            honest.wait(1)  # it waits all the time, so that the liar's turns end
            slots.seek(0)
            slots.write(bytes(dice.choice([0, 1, 255]) for _ in range(64)))
            if number % 4 == 0:  # noise, in which no report is whole
                slots.seek(HEADER_BYTES)
                slots.write(dice.randbytes(SLOTS_BYTES - HEADER_BYTES))
            word = liar.word()
            for slot in range(0, 64, 1 + number % 4):
                slots.seek(device_at(slot))
                slots.write(lie(dice, word))
            liar.ring(NO_SLOT)
            honest.ring(NO_SLOT)
            time.sleep(0.002)
    lies, truth = liar.share.usage(), honest.share.usage()
    turns = arbiter.native.read_turns(0, 10_000)
    ended_ns = time.monotonic_ns()
    assert lies.turns > 5  # the lies were believed enough to get the device
    assert lies.faults > 0
    assert (truth.faults, truth.launches, truth.memory_used_bytes) == (0, 0, 0)
    assert lies.used_ns + truth.used_ns <= (ended_ns - began_ns) * 1.01 + 1_000_000
    assert lies.waited_ns <= ended_ns - began_ns
    for turn in turns:
        assert began_ns <= turn.granted_ns <= turn.closed_ns <= turn.drained_ns <= ended_ns
        assert turn.charged_ns <= turn.drained_ns - turn.granted_ns


WRITER = f"""
import fcntl, os, sys
slots = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(slots, fcntl.LOCK_EX, 1, 0)
os.pwrite(slots, bytes.fromhex(sys.argv[2]), {device_at(0)})
os.pwrite(slots, bytes([1]), 0)
sys.stdin.read()
"""


def test_a_report_that_is_being_written_is_a_fault_only_when_it_stays_so(arbiter: Arbiter, tmp_path: Path) -> None:
    share = arbiter.share(tmp_path / "share")
    half = struct.pack("<IIQQ5Q", 0, 0, 0, 4096, *(0,) * 5)
    half += struct.pack("<II", 3, 7) + report(1, 0)[8:]  # the begin of a new turn's report, without its rest
    began_ns = time.monotonic_ns()
    command = [sys.executable, "-c", WRITER, share.region / "slots", half.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            until(lambda: share.usage().memory_used_bytes == 4096)
            assert share.usage().faults == 0 or time.monotonic_ns() - began_ns > 1_000_000_000
            until(lambda: share.usage().faults)
        finally:
            process.kill()


def test_a_file_that_grows_is_cut_back_and_told_of_its_share_alone(arbiter: Arbiter) -> None:
    with tempfile.TemporaryDirectory(prefix="sharepod-hostile-", dir="/dev/shm") as directory:  # a tmpfs as the agent's
        hostile, honest = (arbiter.share(Path(directory, name)) for name in ("hostile", "honest"))
        path = hostile.region / "slots"
        with path.open("r+b") as slots:
            os.posix_fallocate(slots.fileno(), 0, 16 << 20)
        until(lambda: path.stat().st_size == SLOTS_BYTES)
        until(lambda: path.stat().st_blocks * 512 < 1 << 20)
        until(lambda: hostile.usage().faults)
        assert honest.usage().faults == 0


@pytest.mark.parametrize(("text", "kind"), [(RINGS, Kind.RINGS), (LOCKS, Kind.LOCKS)], ids=["rings", "locks"])
def test_a_flood_is_told_once_of_its_share_alone(arbiter: Arbiter, tmp_path: Path, text: str, kind: Kind) -> None:
    hostile, honest = (arbiter.share(tmp_path / name) for name in ("hostile", "honest"))
    with running(text, hostile.region):
        until(lambda: kind in [one.kind for one in arbiter.native.read_diagnostics(hostile.handle)], timeout_s=30)
        time.sleep(2.5)
    found = [one.kind for one in arbiter.native.read_diagnostics(hostile.handle)]
    assert found.count(kind) == 1
    assert arbiter.native.read_diagnostics(honest.handle) == ()
