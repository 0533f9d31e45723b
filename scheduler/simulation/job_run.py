"""A task of a play, and what becomes of it. Values; the timeline changes courses alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharepod.scheduler.placement.request import PodAsk


@dataclass(frozen=True, slots=True)
class Task:
    """A job that comes."""

    name: str
    user: str
    """Its namespace."""
    priority: int
    ask: PodAsk
    """Of each of its pods."""
    arrive_s: float
    run_s: float
    """How long all of its pods together take."""
    size: int = 1
    least: int = 1

    @property
    def milli(self) -> int:
        """Return the time of devices that it asks for, of all its pods."""
        return self.ask.milli * self.size


@dataclass(frozen=True, slots=True)
class Step:
    """A moment from which on something of a task is different."""

    at_s: float
    running: int
    """How many of its pods run."""
    milli: float
    """What they use of devices' time, beyond what they ask for too."""


@dataclass(slots=True)
class Course:
    """What has become of a task."""

    task: Task
    started_s: float | None = None
    """When its work first began; None: never."""
    ended_s: float | None = None
    paused: int = 0
    """How often one of its pods was paused."""
    evicted: int = 0
    """How many of its pods were evicted."""
    lost_s: float = 0.0
    """Work of all its pods together that was lost."""
    done_s: float = 0.0
    """Work that is done, of run_s."""
    active: dict[str, float] = field(default_factory=dict)
    """By uid, the pods that are released, and how fast they run: 1 with what they ask for, 0 while they are paused."""
    steps: list[Step] = field(default_factory=list)
    since_s: float = 0.0
    """Until when `done_s` is counted."""
    turn: int = 0
    """Grows with every change of its pace: who ends it knows whether he is late."""

    @property
    def running(self) -> int:
        """Return how many of its pods run."""
        return sum(speed > 0 for speed in self.active.values())

    @property
    def pace(self) -> float:
        """Return how fast its work is done: 1 where all of its pods run with what they ask for."""
        return sum(self.active.values()) / self.task.size if self.running >= self.task.least else 0.0
