"""Nodes that are kept free: for a job that others end for, and for one that has waited for too long. Pure.

Others of its priority and below get no place there, of higher priority not either where somebody ends for it (who has
been evicted is not to be evicted for another), or where it has waited for twice as long: what is free there is for it
then. Who runs there still yields to higher priorities, which takes nothing of that. A node is open to whom it is kept
for: who else has to yield there may be seen only when those who were evicted have gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.scheduler.controller.controller_state import LEAVE_S

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sharepod.scheduler.controller.controller_state import Memory
    from sharepod.scheduler.controller.gang_placement import Placer
    from sharepod.scheduler.controller.job import Job, Key
    from sharepod.scheduler.controller.queues import Queues
    from sharepod.scheduler.state.capacity import Capacity
    from sharepod.scheduler.state.cluster import Cluster

KEPT: Final = 8
"""Jobs for which nodes are kept at the same time because they have waited for too long."""
KEPT_PART: Final = 0.25
"""Of all devices: so much may be on nodes that are kept, unless a job needs more."""
AGED_TWICE: Final = 2.0
"""Longest waits after which nodes are kept for a job in any case, and closed to higher priorities too."""


class Keeping:
    """What is kept in one round, and for whom."""

    def __init__(
        self, cluster: Cluster, memory: Memory, queues: Queues, placer: Placer, capacity: Capacity, now_s: float
    ) -> None:
        self._cluster, self._memory, self._queues, self._now_s = cluster, memory, queues, now_s
        self._placer, self._capacity = placer, capacity
        self._kept = memory.kept
        self._closing: list[tuple[Key, Job, bool, bool, tuple[str, ...]]] = []
        """For whom nodes are kept, whether it has aged twice, and whether somebody ends there."""
        self.ending: frozenset[str] = frozenset()
        """Nodes from which somebody goes, or is to be paused, since this round: on the view he has gone already."""
        self._note()

    def __contains__(self, job: Job) -> bool:
        """Tell whether nodes are kept for a job."""
        return job.key in self._kept

    @property
    def may_begin(self) -> bool:
        """Tell whether nodes may be kept for one more job that has waited for too long."""
        return len(self._kept) < KEPT

    def nodes(self, job: Job) -> tuple[str, ...]:
        """Return the nodes that are kept for a job."""
        return self._kept[job.key][0] if job.key in self._kept else ()

    def free(self, job: Job) -> tuple[str, ...]:
        """Return those of them on which the view is as it is: none from which somebody goes since this round."""
        return tuple(name for name in self.nodes(job) if name not in self.ending)

    def where(self, job: Job) -> str:
        """Return the first three of these nodes, in words."""
        names = self.nodes(job)
        if len(names) == 1:
            return f"node {names[0]} is"
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"nodes {', '.join(names[:3])}{more} are"

    def is_waited_for(self, job: Job) -> bool:
        """Tell whether others are going already from the nodes that are kept for a job."""
        return not self._leaving().isdisjoint(self.nodes(job))

    def keep(self, job: Job, nodes: tuple[str, ...], ending: Collection[str] = ()) -> None:
        """Keep nodes for a job, from now on and for a minute; `ending`: where others go for it, or will be paused."""
        self._kept[job.key] = nodes, self._now_s + LEAVE_S
        self.ending |= frozenset(ending)
        self._note()

    def keep_for_aged(self, job: Job) -> bool:
        """Keep nodes for a job that has waited too long, until it has its place; False: there are none for it."""
        nodes = self.nodes(job)
        if not nodes and self.may_begin:
            nodes = self._capacity.emptiest(job.needed, self._placer.open_names(job.needed[0]))
            if not self._may_stand_empty(job, nodes):
                return False
        if nodes:
            self.keep(job, nodes)
        return bool(nodes)

    def end(self, job: Job) -> None:
        """Keep nothing for a job any more."""
        if self._kept.pop(job.key, None):
            self._note()

    def open_for(self, job: Job) -> None:
        """Let a job onto all nodes but those that are kept for others."""
        closed = {
            name
            for key, other, aged_twice, ends, nodes in self._closing
            if key != job.key and (aged_twice or ends or job.priority <= other.priority)
            for name in nodes
        }
        closed = closed.difference(self.nodes(job)) | self.ending
        if closed != self._placer.closed:
            self._placer.close(closed)

    def reserved(self, job: Job) -> frozenset[str]:
        """Return the nodes of which a job may have no more than what others yield to it."""
        shut = {
            name
            for key, other, _, ends, nodes in self._closing
            if key != job.key and (job.priority <= other.priority or ends)
            for name in nodes
        }
        aged = {name for _, _, aged_twice, _, nodes in self._closing if aged_twice for name in nodes}
        return frozenset(aged - shut - self.ending - set(self.nodes(job)))

    def _note(self) -> None:
        leaving = self._leaving()
        self._closing = []
        for key, (nodes, _) in self._kept.items():
            job = self._memory.jobs.get(key)
            if job is not None:
                ends = not leaving.isdisjoint(nodes)
                self._closing.append((key, job, self._has_aged_twice(job), ends, nodes))

    def _leaving(self) -> set[str]:
        """Return the nodes from which somebody goes who was evicted."""
        return {pod.place for uid in self._memory.leaving if (pod := self._cluster.pod(uid))}

    def _may_stand_empty(self, job: Job, nodes: Sequence[str]) -> bool:
        """Tell whether so much may stand empty for a job: a node is too much for a small job of a small cluster."""
        kept = {name for own, _ in self._kept.values() for name in own}
        if self._capacity.part({*kept, *nodes}) <= KEPT_PART:
            return True
        large = sum(pod.ask.milli for pod in job.needed) > KEPT_PART * self._capacity.total.device_milli
        return not kept and (large or self._has_aged_twice(job))

    def _has_aged_twice(self, job: Job) -> bool:
        return self._now_s - job.since_s >= AGED_TWICE * self._queues.of(job.namespace).longest_wait_s
