"""Computes the device memory that processes take beyond their charged allocations. Pure: figures in, figures out.

Every allocation is charged when it is made. Contexts, modules and the driver's rounding show only in NVML's figure for
the whole process. The two figures are read at different instants. So a difference counts only if two looks in a row
find the same one; while a program allocates and frees, the last difference that counted stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sharepod.agent.shares.share import DeviceUuid, Handle, Holding


@dataclass(frozen=True, slots=True)
class Held:
    """A process of a share on one of the share's devices."""

    share: Handle
    term: int
    holding: Holding


@dataclass(frozen=True, slots=True)
class Settled:
    """The overhead of a process as two looks have found it, bytes; negative: its contexts took less than reserved."""

    held: Held
    overhead_bytes: int


class Overheads:
    """What the last look found on each device."""

    def __init__(self) -> None:
        self._before: dict[DeviceUuid, dict[Held, int]] = {}
        """By device and process, as of the last look: the overhead (bytes), of each process that NVML listed."""
        self._context: dict[DeviceUuid, int] = {}
        """By device: the least overhead of a process, which is about what a context takes (bytes)."""

    def step(self, device: DeviceUuid, held: Iterable[Held], nvml_bytes: Mapping[int, int]) -> list[Settled]:
        """Take a look at a device, and return the overheads on which this look and the last one agree.

        `held`: the shares' processes on it; `nvml_bytes`: NVML's figure by pid, 0 where it does not tell.
        """
        before = self._before.get(device, {})
        now: dict[Held, int] = {}
        settled: list[Settled] = []
        for one in held:
            total = nvml_bytes.get(one.holding.pid, 0)
            if total <= 0 and one.holding.memory_used_bytes:
                continue  # NVML does not tell, or the process has freed all its memory and is not listed any more
            # Not below -context_bytes: the other charged allocations do exist.
            overhead = max(total - one.holding.memory_used_bytes, -one.holding.context_bytes)
            key = Held(one.share, one.term, _process_key(one.holding))
            now[key] = overhead
            if before.get(key) == overhead:
                settled.append(Settled(one, overhead))
                self._learn(device, overhead + one.holding.context_bytes)
        self._before[device] = now
        return settled

    def context_bytes(self, device: DeviceUuid) -> int:
        """Return the least that a process took beyond its allocations, which is its context. 0: none was seen."""
        return self._context.get(device, 0)

    def _learn(self, device: DeviceUuid, beyond_bytes: int) -> None:
        """Keep the least that a process took beyond its allocations on the device, its contexts included."""
        known = self._context.get(device, 0)
        if beyond_bytes > 0 and (not known or beyond_bytes < known):
            self._context[device] = beyond_bytes


def _process_key(holding: Holding) -> Holding:
    """Return a key for the process: its holding without the memory, which changes from look to look."""
    return type(holding)(holding.pid, holding.slot, 0, 0)
