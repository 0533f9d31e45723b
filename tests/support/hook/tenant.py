"""The processes of a share, played by hand: their half of the region, and the arbiter's answers."""

import functools
import os
import struct
import time
from pathlib import Path

from report import WORD_AT, device_at, report

import rig.until
from rig.arbiter import Arbiter

until = functools.partial(rig.until.until, poll_s=0.0005)


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

    def say(self, slot: int, held: int, drained: int, **more: int) -> int:
        """Say which turn is held and which is drained; return when. `more` is what a report has beside it."""
        now_ns = time.monotonic_ns()
        self._write(device_at(slot) + 64, report(held, drained, (now_ns if drained else 0, now_ns, 0, 0), **more))
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


def two_shares(arbiter: Arbiter, directory: Path) -> tuple[dict[str, int], dict[str, Tenant]]:
    """Add a device with two shares; return their handles and tenants, both by name."""
    shares = {name: arbiter.share(directory / name) for name in ("first", "second")}
    return {name: share.handle for name, share in shares.items()}, {name: Tenant(directory / name) for name in shares}
