"""Reserves nodes for a job that other pods are evicted for, and for a job that has waited for too long. Pure.

Jobs of the same or a lower priority get no place on a reserved node. A reservation is closed to higher priorities too
in two cases: while an evicted pod is ending there (the eviction must not be wasted), and when its job has aged twice:
it has waited for twice the longest wait of its queue. In the second case a job of higher priority may still take the
room that its own victims free there. That room is not reserved. A reserved node stays open to its own job. Until the
evicted pods have gone, it cannot show which other pods must yield there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.scheduler.controller.controller_state import LEAVE_S

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.controller.gang_placement import Placer
    from sharepod.scheduler.controller.job import Job, Key
    from sharepod.scheduler.controller.queues import Queues
    from sharepod.scheduler.state.capacity import Capacity
    from sharepod.scheduler.state.cluster import Cluster

KEPT: Final = 8
"""While this many jobs have reservations, no other job gets one because it has waited for too long."""
KEPT_PART: Final = 0.25
"""The largest part of all devices that may be on reserved nodes, unless a job needs more."""
AGED_TWICE: Final = 2.0
"""In longest waits of its queue: after this a job gets a reservation in any case, closed to higher priorities too."""


class Reservations:
    """The reservations in one cycle."""

    def __init__(
        self, cluster: Cluster, state: ControllerState, queues: Queues, placer: Placer, capacity: Capacity, now_s: float
    ) -> None:
        self._cluster, self._state, self._queues, self._now_s = cluster, state, queues, now_s
        self._placer, self._capacity = placer, capacity
        self._kept = state.kept
        """By job: the nodes that are reserved for it, and until when."""
        self._closing: list[tuple[Key, Job, bool, bool, tuple[str, ...]]] = []
        """Each reservation's job, whether the job has aged twice, whether evicted pods are ending there, the nodes."""
        self.ending: frozenset[str] = frozenset()
        """Nodes on which pods were evicted, or are to be paused, in this cycle: the view shows their room too early."""
        self._compute_closing()

    def __contains__(self, job: Job) -> bool:
        """Tell whether a job has a reservation."""
        return job.key in self._kept

    @property
    def may_begin(self) -> bool:
        """Tell whether one more job that has waited for too long may get a reservation."""
        return len(self._kept) < KEPT

    def nodes(self, job: Job) -> tuple[str, ...]:
        """Return the nodes that are reserved for a job; empty: there are none."""
        return self._kept[job.key][0] if job.key in self._kept else ()

    def free(self, job: Job) -> tuple[str, ...]:
        """Return the nodes reserved for a job, without those in `ending`."""
        return tuple(name for name in self.nodes(job) if name not in self.ending)

    def where(self, job: Job) -> str:
        """Return the nodes that are reserved for a job, in words with "is" or "are" after them; three are named."""
        names = self.nodes(job)
        if len(names) == 1:
            return f"node {names[0]} is"
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"nodes {', '.join(names[:3])}{more} are"

    def is_waited_for(self, job: Job) -> bool:
        """Tell whether evicted pods are still ending on a node that is reserved for a job."""
        return not self._leaving().isdisjoint(self.nodes(job))

    def keep(self, job: Job, nodes: tuple[str, ...], ending: Collection[str] = ()) -> None:
        """Reserve nodes for a job for LEAVE_S, in place of the nodes reserved for it so far.

        `ending`: nodes on which pods were evicted for the job in this cycle, or are to be paused for it later.
        """
        self._kept[job.key] = nodes, self._now_s + LEAVE_S
        self.ending |= frozenset(ending)
        self._compute_closing()

    def keep_for_aged(self, job: Job) -> bool:
        """Reserve nodes for a job that has waited too long; if it has some, reserve these for longer.

        Return False if none may be reserved. Each cycle calls this until the job has its place. New nodes are those on
        which the least work has to end.
        """
        nodes = self.nodes(job)
        if not nodes and self.may_begin:
            nodes = self._capacity.emptiest(job.needed, self._placer.open_names(job.needed[0]))
            if not self._may_stand_empty(job, nodes):
                return False
        if nodes:
            self.keep(job, nodes)
        return bool(nodes)

    def end(self, job: Job) -> None:
        """End a job's reservation, if it has one."""
        if self._kept.pop(job.key, None):
            self._compute_closing()

    def open_for(self, job: Job) -> None:
        """Have the placer look for a job's places on all nodes but those closed to it; called before the job is tried.

        Closed are nodes that are reserved for others, by the rules at the top of this file, and those in `ending`.
        """
        closed = {
            name
            for key, other, aged_twice, pods_end, nodes in self._closing
            if key != job.key and (aged_twice or pods_end or job.priority <= other.priority)
            for name in nodes
        }
        closed = closed.difference(self.nodes(job)) | self.ending
        if closed != self._placer.closed:
            self._placer.close(closed)

    def reserved(self, job: Job) -> frozenset[str]:
        """Return the nodes, closed to a job by `open_for`, on which it may have what its own victims free, and no more.

        They are reserved for a job of lower priority that has aged twice, and no evicted pod is ending there.
        """
        shut = {
            name
            for key, other, _, pods_end, nodes in self._closing
            if key != job.key and (job.priority <= other.priority or pods_end)
            for name in nodes
        }
        aged = {name for _, _, aged_twice, _, nodes in self._closing if aged_twice for name in nodes}
        return frozenset(aged - shut - self.ending - set(self.nodes(job)))

    def _compute_closing(self) -> None:
        """Compute `_closing` anew; called when a reservation has come, changed or gone."""
        leaving = self._leaving()
        self._closing = []
        for key, (nodes, _) in self._kept.items():
            job = self._state.jobs.get(key)
            if job is not None:
                pods_end = not leaving.isdisjoint(nodes)
                self._closing.append((key, job, self._has_aged_twice(job), pods_end, nodes))

    def _leaving(self) -> set[str]:
        """Return the nodes on which evicted pods are ending."""
        return {pod.place for uid in self._state.leaving if (pod := self._cluster.pod(uid))}

    def _may_stand_empty(self, job: Job, nodes: Sequence[str]) -> bool:
        """Tell whether nodes may be reserved for a job, in addition to those that are reserved for other jobs.

        All reserved nodes together may have KEPT_PART of all devices. Beyond that only one job may have a reservation:
        one that asks for more than that part, or that has aged twice.
        """
        kept = {name for own, _ in self._kept.values() for name in own}
        if self._capacity.part({*kept, *nodes}) <= KEPT_PART:
            return True
        large = sum(pod.request.milli for pod in job.needed) > KEPT_PART * self._capacity.total.device_milli
        return not kept and (large or self._has_aged_twice(job))

    def _has_aged_twice(self, job: Job) -> bool:
        """Tell whether a job has waited for AGED_TWICE times the longest wait of its queue."""
        return self._now_s - job.since_s >= AGED_TWICE * self._queues.of(job.namespace).longest_wait_s
