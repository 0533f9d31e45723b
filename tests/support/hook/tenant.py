"""Plays the processes of a share by hand: their half of the region, and the arbiter's answers."""

import functools
import os
import struct
import time

from report import WORD_AT, device_at, report

import rig.until
from rig.arbiter import Share

until = functools.partial(rig.until.until, poll_s=0.0005)


class Tenant:
    """A share's processes, played by hand: what they write into the region, and when they ring."""

    def __init__(self, share: Share) -> None:
        self.share = share

    def word(self) -> int:
        """Return the grant's word; an odd word is an open grant."""
        word: int = struct.unpack_from("<I", (self.share.region / "terms").read_bytes(), WORD_AT)[0]
        return word

    def claim(self, slot: int) -> None:
        self._write(slot, b"\1")

    def wait(self, waiting: int) -> None:
        """Say in slot 0 whether a thread waits."""
        self._write(device_at(0), struct.pack("<IIQ", waiting, 0, time.monotonic_ns()))

    def say(self, slot: int, held: int, drained: int, **more: int) -> int:
        """Report which turn is held and which is drained; return the time. `more`: further fields of the report."""
        now_ns = time.monotonic_ns()
        self._write(device_at(slot) + 64, report(held, drained, (now_ns if drained else 0, now_ns, 0, 0), **more))
        return now_ns

    def ask(self) -> None:
        """Claim slot 0 and begin to wait for a turn."""
        self.claim(0)
        self.wait(1)
        self.ring()

    def enter(self) -> int:
        """Ask for a turn until it is there; return its word. If a turn came and went unseen, ask again."""
        asked = self.word()

        def turn() -> int:
            nonlocal asked
            word = self.word()
            if word % 2 == 1:
                return word
            if word != asked:
                asked = word
                self.ring()
            return 0

        self.ask()
        came = until(turn)
        self.wait(0)
        return came

    def ring(self, slot: int = 0) -> None:
        bell = os.open(self.share.region / "bell", os.O_WRONLY | os.O_NONBLOCK)
        os.write(bell, bytes([slot]))
        os.close(bell)

    def _write(self, at: int, data: bytes) -> None:
        with (self.share.region / "slots").open("r+b", buffering=0) as slots:
            slots.seek(at)
            slots.write(data)
