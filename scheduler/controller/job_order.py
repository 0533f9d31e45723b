"""Orders the waiting jobs: those that have waited too long, then by priority, then the queue that holds the least.

A queue's dominant share is the largest part of any one resource that its pods hold, divided by the queue's weight
(Ghodsi et al., "Dominant Resource Fairness", NSDI 2011). Resources are devices' time, devices' memory, processors and
memory. The share grows with each job that is taken, so that a long list of jobs of one queue does not go before the
first job of another. Pure.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sharepod.scheduler.controller.job import Job
    from sharepod.scheduler.controller.queues import Queues
    from sharepod.scheduler.state.pod import Pod


@dataclass(frozen=True, slots=True)
class Total:
    """Amounts of resources: what a cluster has, or what pods hold."""

    device_milli: int = 0
    device_mib: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0

    def plus(self, other: Total) -> Total:
        """Return the sums of both."""
        return Total(
            self.device_milli + other.device_milli,
            self.device_mib + other.device_mib,
            self.cpu_milli + other.cpu_milli,
            self.memory_mib + other.memory_mib,
        )

    def dominant(self, whole: Total) -> float:
        """Return the largest part, 1 being all, that this takes of any one resource that `whole` has."""
        pairs = (
            (self.device_milli, whole.device_milli),
            (self.device_mib, whole.device_mib),
            (self.cpu_milli, whole.cpu_milli),
            (self.memory_mib, whole.memory_mib),
        )
        return max((own / all_of_it for own, all_of_it in pairs if all_of_it), default=0.0)


def total_of(pods: Iterable[Pod], device_mib: int) -> Total:
    """Return what pods ask for together, promised or not.

    `device_mib`: the memory of a device. A share without a memory cap counts with as large a part of it as of the time.
    """
    device_milli = shares_mib = cpu_milli = memory_mib = 0
    for pod in pods:
        request = pod.request
        cpu_milli += request.cpu_milli
        memory_mib += request.memory_mib
        for share in request.shares:
            device_milli += share.milli * share.devices
            shares_mib += share.mib_of(device_mib) * share.devices
    return Total(device_milli, shares_mib, cpu_milli, memory_mib)


class JobOrder:
    """The waiting jobs, in the order in which they are tried."""

    def __init__(
        self, jobs: Iterable[Job], held: dict[str, Total], whole: Total, device_mib: int, queues: Queues, now_s: float
    ) -> None:
        """Order jobs; `held`: what each queue holds now, `whole`: what the cluster has, `device_mib`: as in `total_of`.

        `held` is copied, and grows here with each job that is taken.
        """
        self._held = defaultdict(Total, held)
        self._whole, self._device_mib, self._queues = whole, device_mib, queues
        self._shares: dict[str, float] = {}
        self.jobs = list(jobs)
        self.aged: list[Job] = []
        """Jobs that have waited for longer than their queue allows, the longest wait first."""
        by_priority: defaultdict[int, defaultdict[str, list[Job]]] = defaultdict(lambda: defaultdict(list))
        for job in self.jobs:
            if now_s - job.since_s >= queues.of(job.namespace).longest_wait_s:
                self.aged.append(job)
            else:
                by_priority[job.priority][job.namespace].append(job)
        self.aged.sort(key=_age)
        self._levels = [by_priority[priority] for priority in sorted(by_priority, reverse=True)]
        """The other jobs, one entry for each priority, the highest first: its jobs by queue."""

    def take(self, job: Job, pods: Sequence[Pod]) -> None:
        """Count pods of a job as held by its queue from now on: its other jobs come later in the iteration."""
        self._held[job.namespace] = self._held[job.namespace].plus(total_of(pods, self._device_mib))
        self._shares.pop(job.namespace, None)

    def share(self, queue: str) -> float:
        """Return the dominant share of a queue, jobs that were taken included, divided by its weight."""
        found = self._shares.get(queue)
        if found is None:
            found = self._held[queue].dominant(self._whole) / self._queues.of(queue).weight
            self._shares[queue] = found
        return found

    def exceeds(self, job: Job, pods: Sequence[Pod]) -> bool:
        """Tell whether a job's queue would hold more than its cap with these pods, in device time."""
        cap = self._queues.of(job.namespace).cap_milli
        return cap is not None and self._held[job.namespace].device_milli + sum(pod.request.milli for pod in pods) > cap

    def __iter__(self) -> Iterator[Job]:
        """Yield every job once; jobs that are taken meanwhile (`take`) change the order of those still to come."""
        yield from self.aged
        for level in self._levels:
            yield from self._by_share(level)

    def _by_share(self, level: dict[str, list[Job]]) -> Iterator[Job]:
        """Yield the jobs of one priority (`level`: by queue): always the oldest of the queue that holds the least.

        Paused jobs come first. What a queue holds may grow between two jobs (`take`), so an entry of the heap is
        corrected when it comes up.
        """
        # A paused job still holds memory, so it comes before waiting jobs of the same priority.
        yield from sorted((job for jobs in level.values() for job in jobs if job.resumes), key=_age)
        level = {queue: [job for job in jobs if not job.resumes] for queue, jobs in level.items()}
        level = {queue: sorted(jobs, key=_age, reverse=True) for queue, jobs in level.items() if jobs}
        heap = [(self.share(queue), queue) for queue in level]
        heapq.heapify(heap)
        while heap:
            share, queue = heap[0]
            share_now = self.share(queue)
            if share_now != share:  # the queue has got something since
                heapq.heapreplace(heap, (share_now, queue))
                continue
            yield level[queue].pop()
            if not level[queue]:
                heapq.heappop(heap)


def _age(job: Job) -> tuple[float, str, str]:
    """Return the key by which jobs are sorted, the longest wait first."""
    return job.since_s, *job.key
