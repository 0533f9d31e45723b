"""Work that the arbiter has not heard of, or has granted twice: it counts until it has ended."""

import functools
import os
import struct
import time
from pathlib import Path

from report import WORD_AT, device_at, report

import rig.until
from rig.arbiter import Arbiter


class Tenant:
    """A share's processes, played by hand: what they write into the region, and when they ring."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._slots = (directory / "slots").open("r+b", buffering=0)

    def word(self) -> int:
        """Return the grant's word: odd is open."""
        content = (self._directory / "terms").read_bytes()
        word: int = struct.unpack_from("<I", content, WORD_AT)[0]
        return word

    def claim(self, slot: int) -> None:
        self._write(slot, b"\1")

    def wait(self, slot: int, waiting: int) -> None:
        self._write(device_at(slot), struct.pack("<IIQ", waiting, 0, time.monotonic_ns()))

    def say(self, slot: int, held: int, drained: int) -> int:
        """Say which turn is held and which is drained; return when."""
        now_ns = time.monotonic_ns()
        self._write(device_at(slot) + 64, report(held, drained, (now_ns if drained else 0, now_ns, 0, 0)))
        return now_ns

    def enter(self) -> int:
        """Come with slot 0 and get a turn; return its word."""
        self.claim(0)
        self.wait(0, 1)
        self.ring(0)
        until(lambda: self.word() % 2 == 1)
        turn = self.word()
        self.wait(0, 0)
        return turn

    def ring(self, slot: int) -> None:
        bell = os.open(self._directory / "bell", os.O_WRONLY | os.O_NONBLOCK)
        os.write(bell, bytes([slot]))
        os.close(bell)

    def close(self) -> None:
        self._slots.close()

    def _write(self, at: int, data: bytes) -> None:
        self._slots.seek(at)
        self._slots.write(data)


until = functools.partial(rig.until.until, poll_s=0.0005)


def two_shares(arbiter: Arbiter, directory: Path) -> tuple[dict[str, int], dict[str, Tenant]]:
    """Add a device with two shares; return their handles and tenants, both by name."""
    shares = {name: arbiter.share(directory / name) for name in ("first", "second")}
    return {name: share.handle for name, share in shares.items()}, {name: Tenant(directory / name) for name in shares}


def test_a_turn_is_not_drained_while_a_process_that_is_new_to_the_arbiter_has_work_in_it(
    arbiter: Arbiter, tmp_path: Path
) -> None:
    handles, tenants = two_shares(arbiter, tmp_path)
    first, second = tenants["first"], tenants["second"]
    turn = first.enter()
    first.say(0, turn, turn)  # the process that rang has launched, finished and parked
    first.claim(1)
    first.say(1, turn, 0)  # the newcomer has found the gate open: it did not need to ring
    second.claim(0)
    second.wait(0, 1)
    second.ring(0)
    until(lambda: first.word() != turn)
    drained_ns = first.say(1, turn, turn)
    first.ring(1)
    until(lambda: any(t.share == handles["first"] for t in arbiter.native.read_turns(0, 100)))
    for tenant in tenants.values():
        tenant.close()
    (ended,) = (t for t in arbiter.native.read_turns(0, 100) if t.share == handles["first"])
    assert ended.drained_ns >= drained_ns


def test_a_turn_that_nobody_entered_is_not_drained_before_the_late_work_that_it_went_on_with(
    arbiter: Arbiter, tmp_path: Path
) -> None:
    handles, tenants = two_shares(arbiter, tmp_path)
    first, second = tenants["first"], tenants["second"]
    turn = first.enter()
    first.say(0, turn, 0)  # what it launches does not end
    second.claim(0)
    second.wait(0, 1)
    second.ring(0)
    until(lambda: first.word() != turn)
    first.wait(0, 1)
    first.ring(0)
    until(lambda: first.word() % 2 == 1)  # its drain is late, so it is granted again
    again = first.word()
    until(lambda: first.word() != again)  # … and does not come
    drained_ns = first.say(0, turn, turn)
    first.ring(0)
    until(lambda: sum(t.share == handles["first"] for t in arbiter.native.read_turns(0, 100)) >= 2)
    for tenant in tenants.values():
        tenant.close()
    ended = [t for t in arbiter.native.read_turns(0, 100) if t.share == handles["first"]]
    assert ended[-1].drained_ns >= drained_ns
