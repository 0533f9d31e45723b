"""Groups a job's pods into holders, which yield together, with their priority and the work that an eviction loses.

A holder (a PreemptionUnit) is one pod with shares, or several of a gang. A gang that is short of one member does not
run, so its members yield together. An elastic gang runs with its least members; those beyond are spare. They yield one
by one, the youngest first, and to jobs of the same priority, too: they run on room that no other job wanted. Pure.
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
"""What a restart costs a pod in addition to the work since its start."""
SPARE: Final = 0.5
"""How far the spare members of an elastic gang are below their job's priority."""
LAST: Final = -math.inf
"""The priority of a holder that has run for too long, or does not use what it holds: any job may take its room."""


@dataclass(frozen=True, slots=True)
class PreemptionUnit:
    """Pods that yield together."""

    pods: tuple[Pod, ...]
    priority: float
    """They yield to jobs of a higher priority."""
    started_s: tuple[float, ...]
    """Since when each pod has run: an eviction loses its work since then. Empty: the pods are spare."""
    may_pause: bool
    """False for a spare member of a gang: paused, it would hold up the others, so it is evicted instead."""
    ends: bool = False
    """It ends in any case: nothing more is lost with it."""

    @property
    def milli(self) -> int:
        """Return the time of devices that pausing it would free, in milli; pods that are paused already free none."""
        return sum(pod.request.milli for pod in self.pods if pod.yields != "pause")

    def lost_ms(self, now_s: float) -> int:
        """Return the work that its eviction at `now_s` loses, in milliseconds of whole devices.

        A spare pod loses only RESTART_S: the gang keeps its work.
        """
        if self.ends:
            return 0
        pairs = zip(self.pods, self.started_s or [now_s] * len(self.pods), strict=True)
        return sum(lost_work_ms(pod, now_s - started_s) for pod, started_s in pairs)


def holders_of(job: Job, started: Callable[[Pod], float]) -> tuple[PreemptionUnit, ...]:
    """Return the holders of a job's released pods; empty: it has none.

    A spare member is in two holders: the one of the whole gang, and one of its own. `started` returns since when a pod
    runs, on the controller's clock.
    """
    if len(job.released) <= job.least:
        if not job.released:
            return ()
        return (PreemptionUnit(job.released, job.priority, tuple(map(started, job.released)), may_pause=True),)
    by_age = sorted(job.released, key=lambda pod: (started(pod), pod.created, pod.uid))
    together = tuple(by_age)  # with the spare members: they do nothing without the others
    return (
        PreemptionUnit(together, job.priority, tuple(map(started, together)), may_pause=True),
        *(PreemptionUnit((pod,), job.priority - SPARE, (), may_pause=False) for pod in by_age[job.least :]),
    )


def lost_work_ms(pod: Pod, ran_s: float) -> int:
    """Return the work that is lost if a pod that ran for `ran_s` is evicted, in milliseconds of whole devices.

    The pod counts as if it had used its whole request; RESTART_S is added.
    """
    return round(pod.request.milli * (max(0.0, ran_s) + RESTART_S) * 1000 / DEVICE_MILLI)
