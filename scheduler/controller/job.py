"""Defines a job: pods that are released together, a gang or one pod. Pure values, made of the API server's pods.

A pod is released when its gate has gone or is being removed. Times are seconds of the controller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharepod.scheduler.controller.gang_annotations import Gang

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sharepod.scheduler.state.pod import Pod

Key = tuple[str, str]
"""Namespace, and `gang/NAME` or `pod/NAME`."""


@dataclass(frozen=True, slots=True)
class Job:
    """Pods that start together."""

    key: Key
    least: int
    """The fewest members with which it runs."""
    waiting: tuple[Pod, ...]
    """Members that are not released, the oldest first; no more than the gang still takes."""
    released: tuple[Pod, ...]
    """Members that are released, running or not."""
    timeout_s: int
    restart: str
    refusal: str = ""
    """Why none of its members is released."""
    priority: int = field(default=0)
    """The lowest priority of its members."""
    since_s: float = 0.0
    """When the youngest of the members that it needs came: until then it could not start in any case."""
    resumes: bool = False
    """Its waiting pods are on their nodes and paused."""

    kind: int | None = None
    """Equal for jobs that fit in the same places; None: its members ask for different things or have an affinity."""

    @property
    def namespace(self) -> str:
        """Return its namespace, which is also its queue."""
        return self.key[0]

    @property
    def is_gang(self) -> bool:
        """Tell whether it is a gang."""
        return self.key[1].startswith("gang/")

    @property
    def title(self) -> str:
        """Return namespace/name."""
        return f"{self.key[0]}/{self.key[1].partition('/')[2]}"

    @property
    def missing(self) -> int:
        """Return how many members have still to come before it can start."""
        return max(0, self.least - len(self.released) - len(self.waiting))

    @property
    def starts(self) -> bool:
        """Tell whether all the members that it needs are released, and some of these do not run yet."""
        return len(self.released) >= self.least > sum(pod.running for pod in self.released)

    @property
    def needed(self) -> tuple[Pod, ...]:
        """Return the waiting members without which it does not run, the oldest first; empty: it runs without more.

        A paused job needs all of its paused members.
        """
        return self.waiting if self.resumes else self.waiting[: max(0, self.least - len(self.released))]

    @property
    def surplus(self) -> tuple[Pod, ...]:
        """Return the waiting members beyond the least: they may follow one by one."""
        return self.waiting[max(0, self.least - len(self.released)) :]


def key_of(pod: Pod) -> Key:
    """Return the key of the job that a pod belongs to."""
    return pod.namespace, f"gang/{pod.gang.name}" if pod.gang else f"pod/{pod.name}"


def job_of(
    key: Key,
    members: Collection[Pod],
    since: Callable[[Pod], float],
    is_released: Callable[[Pod], bool],
    kind_of: Callable[[object], int],
) -> Job:
    """Return the job of these members, at least one. Its `resumes` is False: only `_Cycle._resuming` sets it.

    `since` returns since when a pod waits, on the caller's clock. `is_released` tells whether a pod's gate has gone or
    is being removed. `kind_of` returns equal numbers for equal values. If annotations of the members differ or cannot
    be read, the job has a refusal.
    """
    members = sorted(members, key=lambda pod: (pod.created, pod.uid))
    gangs: list[Gang] = sorted({pod.gang for pod in members if pod.gang}, key=lambda gang: (gang.size, gang.least))
    gang = gangs[0] if gangs else Gang("", size=1, least=1, timeout_s=0)
    refusal = next((pod.refusal for pod in members if pod.refusal), "")
    if refusal and gangs:
        refusal = f"a member is refused: {refusal}"
    if len(gangs) > 1:
        refusal = f"members of gang {gang.name} differ in size, least, timeout or restart: say the same in all of them"
    released = tuple(pod for pod in members if is_released(pod))
    waiting = tuple(pod for pod in members if not is_released(pod))[: max(0, gang.size - len(released))]
    needed = waiting[: max(0, gang.least - len(released))]
    requests = {(pod.request, pod.constraints) for pod in waiting}
    alike = len(requests) == 1 and not any(pod.affinity or pod.anti_affinity for pod in waiting)
    return Job(
        key, gang.least, waiting, released, gang.timeout_s, gang.restart, refusal,
        priority=min(pod.priority for pod in members),
        since_s=max(map(since, needed)) if needed else min(map(since, members)),
        kind=kind_of(next(iter(requests))) if alike else None,
    )  # fmt: skip
