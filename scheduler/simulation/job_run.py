"""Defines the tasks of a play (a simulation) and the run of each. Values; only the timeline changes runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharepod.scheduler.placement.request import PodRequest


@dataclass(frozen=True, slots=True)
class Task:
    """A job that comes in a play."""

    name: str
    user: str
    """Its namespace."""
    priority: int
    request: PodRequest
    """What each of its pods asks for."""
    arrive_s: float
    run_s: float
    """How long its work takes while all of its pods run with what they ask for."""
    size: int = 1
    """How many pods it has."""
    least: int = 1
    """How many of them have to run so that it does any work."""

    @property
    def milli(self) -> int:
        """Return the time of devices that all its pods together ask for."""
        return self.request.milli * self.size


@dataclass(frozen=True, slots=True)
class Step:
    """The state of a task from one moment on."""

    at_s: float
    running: int
    """How many of its pods run."""
    milli: float
    """What they use of devices' time, including what is beyond their requests."""


@dataclass(slots=True)
class JobRun:
    """The run of a task: what has become of it."""

    task: Task
    started_s: float | None = None
    """When its work first began; None: never."""
    ended_s: float | None = None
    paused: int = 0
    """How often one of its pods was paused."""
    evicted: int = 0
    """How many of its pods were evicted."""
    lost_s: float = 0.0
    """Work that evictions have lost, counted as `done_s`."""
    done_s: float = 0.0
    """Work that is done, of Task.run_s: seconds at a pace of 1."""
    active: dict[str, float] = field(default_factory=dict)
    """By uid, the pods that are released, and how fast they run: 1 with what they ask for, 0 while they are paused."""
    steps: list[Step] = field(default_factory=list)
    since_s: float = 0.0
    """Until when `done_s` is counted."""
    pace_changes: int = 0
    """Grows with every change of its pace: an end that was scheduled at an older number is out of date."""

    @property
    def running(self) -> int:
        """Return how many of its pods run now."""
        return sum(speed > 0 for speed in self.active.values())

    @property
    def pace(self) -> float:
        """Return how fast its work is done: 1 where all of its pods run with what they ask for, 0 if too few run."""
        return sum(self.active.values()) / self.task.size if self.running >= self.task.least else 0.0
