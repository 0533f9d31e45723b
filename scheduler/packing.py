"""How much of devices' time the lowest priority could use at most, where the others are as they are. Pure.

Of each device the fullest sum that its jobs make up, wherever they run, wait or are paused now: as if all of them could
be moved at no cost, and each used for every device, with anything up to its limit. What is left even then is in pieces
that none of them takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

from sharepod.scheduler.ask import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sharepod.scheduler.ask import PodAsk

Held = tuple[tuple[str, int], ...]
"""Devices, and what pods that run hold of each, in milli."""


class Packing:
    """The devices of a play at one moment."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._others: defaultdict[str, int] = defaultdict(int)
        """By device, what higher priorities hold of it."""
        self._pieces: Counter[tuple[int, int]] = Counter()
        """How many parts of devices the lowest priority asks for, by their size and the most that they may use."""

    def hold(self, before: Held, now: Held) -> None:
        """Take it that a task of higher priority holds something else than before."""
        for device, milli in before:
            self._others[device] -= milli
        for device, milli in now:
            self._others[device] += milli

    def offer(self, ask: PodAsk, pods: int) -> None:
        """Take it that so many pods of the lowest priority have come, or gone where it is below 0."""
        for share in ask.shares:
            self._pieces[share.milli, share.limit_milli or share.milli] += share.devices * pods

    def most_milli(self) -> int:
        """Return the most that the lowest priority could use of all devices."""
        pieces = tuple(
            (*size, min(count, DEVICE_MILLI // size[0])) for size, count in sorted(self._pieces.items()) if count
        )
        shared = [milli for milli in self._others.values() if milli]
        whole = (self._devices - len(shared)) * _fullest(DEVICE_MILLI, pieces)
        return whole + sum(_fullest(max(0, DEVICE_MILLI - milli), pieces) for milli in shared)


def held(parts: Iterable[tuple[PodAsk, tuple[tuple[str, ...], ...]]]) -> Held:
    """Return what pods hold that ask for so much and have these devices, of each share."""
    return tuple(
        (device, share.milli)
        for ask, chosen in parts
        for share, devices in zip(ask.shares, chosen, strict=True)
        for device in devices
    )


@lru_cache(maxsize=65_536)
def _fullest(free_milli: int, pieces: tuple[tuple[int, int, int], ...]) -> int:
    """Return the largest sum of pieces (least, most, how many at most) that is no more than what is free."""
    sums = 1  # a bit for each sum that can be made
    for least, most, count in pieces:
        for _ in range(min(count, free_milli // least)):
            sums |= _spread(sums << least, most - least)
        sums &= (1 << free_milli + 1) - 1
    return sums.bit_length() - 1


def _spread(bits: int, width: int) -> int:
    """Return the bits, and after each one so many more."""
    done = 0
    while done < width:
        step = min(done + 1, width - done)
        bits |= bits << step
        done += step
    return bits
