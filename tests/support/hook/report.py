"""Makes the bytes of a process's report about one device in its slot: the second line of `struct sp_slot_device`."""

import struct
from collections.abc import Sequence

HEADER_BYTES = 64
SLOT_BYTES = 64 + 16 * (128 + 64)
WORD_AT = 128 + 64  # the place of the first grant's word in `terms`


def check_of(words: Sequence[int]) -> int:
    """Return the check word of a report: the hash in region.c."""
    value = 0x9E3779B97F4A7C15
    for word in words:
        value = (value ^ word) * 0x9DDFEA08EB382D69 % 2**64
        value ^= value >> 29
    return value >> 32


def report(held: int, drained: int, times: Sequence[int] = (0, 0, 0, 0), launches: int = 0, last: int = 0) -> bytes:
    """Return a whole report; `times` are drained, entered, residue and idle, `last` is passed and longest unit."""
    words = (drained << 32 | held, *times, launches, last)
    return struct.pack("<IIII6Q", 2, held, drained, check_of(words), *words[1:])


def device_at(slot: int) -> int:
    """Return where a slot's first device begins in `slots`."""
    return HEADER_BYTES + slot * SLOT_BYTES + 64
