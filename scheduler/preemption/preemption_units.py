"""Who holds shares that others might need: pods that yield together, in which order, and what that loses. Pure.

A gang that is short of one member does not run, so its members yield together. Members beyond the least of an elastic
gang yield one by one, the youngest first, and to jobs of the same priority, too: they run on what nobody else wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.scheduler.controller.job import Job
    from sharepod.scheduler.state.pod import Pod

RESTART_S: Final = 60.0
"""What starting anew costs a pod beside the work since its start."""
SPARE: Final = 0.5
"""How far below their job's priority the members are that it can do without."""
LAST: Final = -math.inf
"""The priority of who has run for too long, or does not use what it holds: anyone's may take it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Pods that yield together."""

    pods: tuple[Pod, ...]
    priority: float
    """They yield to what is above it."""
    started_s: tuple[float, ...]
    """Since when each has run whose work is lost with it; empty: they are spare."""
    may_pause: bool
    """A member that its gang can do without is evicted instead: paused, it would hold up the others."""
    ends: bool = False
    """It goes in any case: nothing more is lost with it."""

    @property
    def milli(self) -> int:
        """Return the time of devices that pausing it would free."""
        return sum(pod.ask.milli for pod in self.pods if pod.yields != "pause")

    def lost_ms(self, now_s: float) -> int:
        """Return the milliseconds of whole devices' work that are lost when it is evicted."""
        if self.ends:
            return 0
        pairs = zip(self.pods, self.started_s or [now_s] * len(self.pods), strict=True)
        return sum(lost_work_ms(pod, now_s - started_s) for pod, started_s in pairs)


def holders_of(job: Job, started: Callable[[Pod], float]) -> tuple[Holder, ...]:
    """Return who of a job's pods yield together; `started` tells since when a pod runs."""
    if len(job.released) <= job.least:
        if not job.released:
            return ()
        return (Holder(job.released, job.priority, tuple(map(started, job.released)), may_pause=True),)
    by_age = sorted(job.released, key=lambda pod: (started(pod), pod.created, pod.uid))
    together = tuple(by_age)  # without the others the spare ones do nothing
    return (
        Holder(together, job.priority, tuple(map(started, together)), may_pause=True),
        *(Holder((pod,), job.priority - SPARE, (), may_pause=False) for pod in by_age[job.least :]),
    )


def lost_work_ms(pod: Pod, ran_s: float) -> int:
    """Return what evicting a pod loses, in milliseconds of whole devices."""
    return round(pod.ask.milli * (max(0.0, ran_s) + RESTART_S) * 1000 / DEVICE_MILLI)
