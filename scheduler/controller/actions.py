"""The actions of a scheduling cycle, as values: action_writer.py writes them, simulation/timeline.py plays them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharepod.scheduler.controller.job import Job
    from sharepod.scheduler.state.cluster import Assumed
    from sharepod.scheduler.state.pod import Pod


@dataclass(frozen=True, slots=True)
class Release:
    """Remove the gates of these pods: each goes to its node and devices. All of them are released, or none."""

    job: Job
    places: tuple[Assumed, ...]


@dataclass(frozen=True, slots=True)
class Yield:
    """Have a pod yield in one of the ways in terms.YIELDS; `how` is "": it yields no more."""

    pod: Pod
    how: str
    why: str
    """For users, in the pod's Event."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict a pod, if its disruption budgets allow it."""

    pod: Pod
    why: str
    """For users, in the pod's Event."""
    cause: str = "yield"
    """One of gate_metrics.EVICTIONS."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Write an Event about a pod."""

    pod: Pod
    reason: str
    """One word, such as `Waits`."""
    text: str
    warning: bool = True


Action = Release | Yield | Evict | Tell
