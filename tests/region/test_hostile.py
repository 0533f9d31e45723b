"""Every byte from a tenant is hostile: what it writes into its own region harms nobody but itself."""

import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from report import HEADER_BYTES, SLOT_BYTES, WORD_AT, device_at, report

from sharepod.agent.native import NativeArbiter
from sharepod.agent.share import ShareClass, Terms

UUID = "GPU-11111111-1111-1111-1111-111111111111"
SLOTS_BYTES = HEADER_BYTES + 64 * SLOT_BYTES


@pytest.fixture
def arbiter() -> Iterator[NativeArbiter]:
    """A running arbiter with one device."""
    arbiter = NativeArbiter()
    yield arbiter
    arbiter.close()


def add_share(arbiter: NativeArbiter, directory: Path, device: int) -> int:
    directory.mkdir()
    terms = Terms(request_millipercent=50_000, limit_millipercent=100_000, memory_limit_bytes=0)
    return arbiter.add_share(str(directory), [(device, terms)], ShareClass.STANDARD, [])


def ring(directory: Path) -> None:
    bell = os.open(directory / "bell", os.O_WRONLY | os.O_NONBLOCK)
    os.write(bell, b"x")
    os.close(bell)


def lie(dice: random.Random, word: int) -> bytes:
    """Return what a tenant may say of itself in both lines of its slot: well formed, and true in no part."""

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


@pytest.mark.realtime
def test_random_slots_are_clamped_and_attributed_to_their_author(arbiter: NativeArbiter, tmp_path: Path) -> None:
    device = arbiter.add_device(UUID)
    liar, honest = (add_share(arbiter, tmp_path / name, device) for name in ("liar", "honest"))
    dice = random.Random(7)
    began_ns = time.monotonic_ns()
    with (
        (tmp_path / "liar" / "slots").open("r+b", buffering=0) as slots,
        (tmp_path / "honest" / "slots").open("r+b", buffering=0) as honest_slots,
    ):
        for number in range(800):
            honest_slots.seek(0)  # it only ever waits, so that the liar's turns end
            honest_slots.write(b"\1")
            honest_slots.seek(device_at(0))
            honest_slots.write(struct.pack("<IIQ", 1, 0, time.monotonic_ns()))
            slots.seek(0)
            slots.write(bytes(dice.choice([0, 1, 255]) for _ in range(64)))
            if number % 4 == 0:  # noise: no report in it is whole
                slots.seek(HEADER_BYTES)
                slots.write(dice.randbytes(SLOTS_BYTES - HEADER_BYTES))
            word = struct.unpack_from("<I", (tmp_path / "liar" / "terms").read_bytes(), WORD_AT)[0]
            for slot in range(0, 64, 1 + number % 4):
                slots.seek(device_at(slot))
                slots.write(lie(dice, word))
            ring(tmp_path / "liar")
            ring(tmp_path / "honest")
            time.sleep(0.002)
    lies, truth = arbiter.read_usage(liar, 0), arbiter.read_usage(honest, 0)
    turns = arbiter.read_turns(0, 10_000)
    ended_ns = time.monotonic_ns()
    assert lies.turns > 5  # so it was believed far enough to hold the device
    assert lies.faults > 0
    assert (truth.faults, truth.launches, truth.memory_used_bytes) == (0, 0, 0)
    assert lies.used_ns + truth.used_ns <= (ended_ns - began_ns) * 1.01 + 1_000_000
    assert lies.waited_ns <= ended_ns - began_ns
    for turn in turns:
        assert began_ns <= turn.granted_ns <= turn.closed_ns <= turn.drained_ns <= ended_ns
        assert turn.charged_ns <= turn.drained_ns - turn.granted_ns


def test_a_truncated_slots_file_is_a_fault_and_no_crash(arbiter: NativeArbiter, tmp_path: Path) -> None:
    device = arbiter.add_device(UUID)
    share = add_share(arbiter, tmp_path / "liar", device)
    os.truncate(tmp_path / "liar" / "slots", 10)
    ring(tmp_path / "liar")
    deadline = time.monotonic() + 5
    while arbiter.read_usage(share, 0).faults == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_tenant_can_write_its_slots_and_ring_and_nothing_else(arbiter: NativeArbiter, tmp_path: Path) -> None:
    add_share(arbiter, tmp_path / "share", arbiter.add_device(UUID))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "share").iterdir()}
    assert modes == {"terms": 0o644, "slots": 0o666, "bell": 0o622}


def test_a_region_of_another_abi_version_is_refused(arbiter: NativeArbiter, tmp_path: Path) -> None:
    device = arbiter.add_device(UUID)
    share = add_share(arbiter, tmp_path / "share", device)
    arbiter.remove_share(share)
    with (tmp_path / "share" / "terms").open("r+b") as terms:
        terms.seek(8)
        terms.write(struct.pack("<I", 99))
    terms_of = Terms(request_millipercent=50_000, limit_millipercent=100_000, memory_limit_bytes=0)
    with pytest.raises(OSError, match=r"[Pp]rotocol"):
        arbiter.add_share(str(tmp_path / "share"), [(device, terms_of)], ShareClass.STANDARD, [])


FLOOD = """
import os, sys
bell = os.open(sys.argv[1], os.O_WRONLY)
while True:
    os.write(bell, b"x" * 65536)
"""


@pytest.mark.realtime
def test_a_flood_of_rings_holds_nobody_up(arbiter: NativeArbiter, tmp_path: Path) -> None:
    device = arbiter.add_device(UUID)
    add_share(arbiter, tmp_path / "liar", device)
    other = add_share(arbiter, tmp_path / "other", device)
    command = [sys.executable, "-c", FLOOD, str(tmp_path / "liar" / "bell")]
    flooders = [subprocess.Popen(command) for _ in range(2)]
    try:
        time.sleep(0.5)
        took_s = []
        for _ in range(50):
            began = time.monotonic()
            arbiter.read_usage(other, 0)  # takes the lock that the arbiter holds while it answers
            took_s.append(time.monotonic() - began)
            time.sleep(0.01)
        assert max(took_s) < 0.5, took_s
    finally:
        for flooder in flooders:
            flooder.kill()
            flooder.wait()
