"""Programs in virtual time: the work that they want from a device, and when."""

import random
from dataclasses import dataclass

from rig.virtual.policy import NEVER_NS, ShareClass

US = 1_000
MS = 1_000_000
S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Program:
    """One program and the terms of its share.

    Attributes:
        name: unique in a scenario.
        request: guaranteed percent of device time.
        limit: the most it may ever use, percent.
        share_class: class of its share.
        work_ns: device work of one burst (the work between two synchronises); None: endless.
        unit_ns: one kernel, which cannot be interrupted.
        gap_ns: host time between the end of a burst and the next one (closed loop).
        period_ns: if not 0, a burst arrives every period whether or not the last one is done (open loop); no gap then.
        jitter_percent: bursts and gaps vary uniformly by this much. The name is the seed.
        start_ns: when it begins.
        stop_ns: when it leaves.
    """

    name: str
    request: float
    limit: float = 100
    share_class: ShareClass = ShareClass.STANDARD
    work_ns: int | None = None
    unit_ns: int = 1 * MS
    gap_ns: int = 0
    period_ns: int = 0
    jitter_percent: int = 0
    start_ns: int = 0
    stop_ns: int = NEVER_NS

    def __post_init__(self) -> None:
        if self.unit_ns < 1:
            raise ValueError(f"{self.name}: a kernel takes {self.unit_ns} ns: give at least 1")
        if self.work_ns is not None and not (self.gap_ns or self.period_ns):
            raise ValueError(f"{self.name}: bursts without gap or period never end: leave work_ns out")


class Load:
    """A running program: the burst in progress, and the arrival of the next one."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.random = random.Random(program.name)
        self.left_ns = 0
        self.arrival_ns = program.start_ns
        self.bursts: list[tuple[int, int]] = []  # (arrived, completed)
        self._arrived_ns = 0

    def _varied(self, ns: int) -> int:
        """Return a time changed at random, by at most `jitter_percent`."""
        spread = ns * self.program.jitter_percent // 100
        return ns + self.random.randint(-spread, spread) if spread else ns

    def is_ready(self, now_ns: int) -> bool:
        """Say whether there is work at `now_ns`. Begins the next burst if it has arrived."""
        if now_ns >= self.program.stop_ns:
            self.left_ns = 0
            return False
        if self.left_ns == 0 and self.arrival_ns <= now_ns:
            self._arrived_ns = self.arrival_ns
            work_ns = self.program.work_ns
            self.left_ns = NEVER_NS if work_ns is None else max(self._varied(work_ns), 1)
            self.arrival_ns = self.arrival_ns + self.program.period_ns if self.program.period_ns else NEVER_NS
        return self.left_ns > 0

    def next_arrival_ns(self) -> int:
        """Return the arrival of the next burst; NEVER_NS: none will arrive, or none can while one is in progress."""
        if self.left_ns > 0 or self.arrival_ns >= self.program.stop_ns:
            return NEVER_NS
        return self.arrival_ns

    def done(self, work_ns: int, now_ns: int) -> bool:
        """Subtract work that was done by `now_ns`. Return True when that completes the burst."""
        if self.program.work_ns is None:
            return False
        self.left_ns -= work_ns
        assert self.left_ns >= 0
        if self.left_ns:
            return False
        self.bursts.append((self._arrived_ns, now_ns))
        if not self.program.period_ns:
            self.arrival_ns = now_ns + max(self._varied(self.program.gap_ns), 1)
        return True
