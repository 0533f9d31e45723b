"""Every byte from a tenant is hostile: what it writes into its own region harms nobody but itself."""

import os
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharepod.agent.native import NativeArbiter
from sharepod.agent.share import ShareClass, Terms

UUID = "GPU-11111111-1111-1111-1111-111111111111"
SLOTS_BYTES = 64 + 64 * (64 + 16 * 128)
FIRST_SLOT_DEVICE = 64 + 64


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


@pytest.mark.realtime
def test_random_slots_are_clamped_and_attributed_to_their_author(arbiter: NativeArbiter, tmp_path: Path) -> None:
    device = arbiter.add_device(UUID)
    liar, honest = (add_share(arbiter, tmp_path / name, device) for name in ("liar", "honest"))
    random_bytes = random.Random(7)
    elapsed_ns = time.monotonic_ns()
    with (tmp_path / "liar" / "slots").open("r+b", buffering=0) as slots:
        for round_number in range(400):
            slots.seek(0)
            slots.write(bytes(random_bytes.choice([0, 1, 255]) for _ in range(64)))
            slots.seek(64)
            slots.write(random_bytes.randbytes(SLOTS_BYTES - 64))
            if round_number % 2:  # a plausible sequence word, so that the rest is read
                slots.seek(FIRST_SLOT_DEVICE + 64)
                slots.write(struct.pack("<I", 2))
            ring(tmp_path / "liar")
            time.sleep(0.002)
    elapsed_ns = time.monotonic_ns() - elapsed_ns
    lies, truth = arbiter.read_usage(liar, 0), arbiter.read_usage(honest, 0)
    assert lies.faults > 0
    assert truth.faults == 0
    assert lies.used_ns + truth.used_ns <= elapsed_ns * 1.01 + 1_000_000


@pytest.mark.realtime
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
