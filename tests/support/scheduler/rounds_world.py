"""A cluster in virtual time; after each cycle it checks what must hold after every cycle."""

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import valid_cluster
import valid_state

from sharepod.scheduler.controller.actions import Action, Evict, Release, Tell, Yield
from sharepod.scheduler.controller.job import key_of
from sharepod.scheduler.controller.queues import Queue, Queues
from sharepod.scheduler.controller.scheduling_cycle import decide
from sharepod.scheduler.placement.request import DEVICE_MILLI, NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.simulation.job_run import Task
from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.cluster import Assumed
from sharepod.scheduler.state.pod import Pod

DEVICE_MIB = 80_000
DEFAULT = Queues(Queue(longest_wait_s=7200))


def nodes(count: int, devices: int = 4) -> list[NodeSpec]:
    return [NodeSpec(f"n{number:02d}", 64_000, 512_000, devices, "H200", DEVICE_MIB) for number in range(count)]


def request(milli: int = 1000, devices: int = 1, mib: int | None = 1000) -> PodRequest:
    return PodRequest(1000, 4096, (ShareRequest(milli, devices, mib),))


def task(name: str, priority: int = 0, milli: int = 1000, **more: object) -> Task:
    given: dict[str, object] = {"user": "team", "arrive_s": 0.0, "run_s": 100.0, "request": request(milli)} | more
    return Task(name=name, priority=priority, **given)  # type: ignore[arg-type]


def pod_of(timeline: Timeline, name: str, **changed: Any) -> Pod:
    """Return a pod, after the API server shows it with these changes."""
    [pod] = [pod for pod in timeline.cluster.pods() if pod.name == name]
    if changed:
        timeline.cluster.set_pod(replace(pod, **changed))
        pod = replace(pod, **changed)
    return pod


@dataclass(frozen=True)
class Decided:
    """What one cycle decided, by the names of pods."""

    actions: list[Action]

    @property
    def placed(self) -> list[Assumed]:
        return [place for one in self.actions if isinstance(one, Release) for place in one.places]

    @property
    def released(self) -> list[str]:
        return [place.pod.name for place in self.placed]

    @property
    def evicted(self) -> list[str]:
        return sorted(one.pod.name for one in self.actions if isinstance(one, Evict))

    @property
    def yields(self) -> dict[str, str]:
        return {one.pod.name: one.how for one in self.actions if isinstance(one, Yield)}

    @property
    def told(self) -> list[tuple[str, str]]:
        """Return reasons and texts of what the cycle told."""
        return [(one.reason, one.text) for one in self.actions if isinstance(one, Tell)]

    def run(self, timeline: Timeline) -> None:
        """Let the released pods run."""
        for place in self.placed:
            pod = replace(place.pod, gated=False, node=place.node, chosen=place.devices, running=True)
            timeline.cluster.set_pod(pod)


def decided(timeline: Timeline, now_s: float) -> Decided:
    return Decided(decide(timeline.cluster, timeline.state, timeline.queues, now_s))


def random_tasks(
    chance: random.Random, count: int, *, gap_s: float, mib: tuple[int | None, ...] = (1000,)
) -> list[Task]:
    at_s, found = 0.0, []
    for number in range(count):
        at_s += chance.expovariate(1 / gap_s)
        size = chance.choice((1, 1, 1, 1, 2, 4, 8))
        least = chance.choice((size, max(1, size // 2))) if size > 1 else 1
        whole = chance.random() < 0.4
        milli = 1000 if whole else chance.choice((100, 300, 500, 700))
        devices = chance.choice((1, 2, 4)) if whole and size == 1 else 1
        found.append(
            Task(
                f"t{number}", f"user{chance.randrange(4)}", chance.choice((0, 0, 0, 100, 1000)),
                request(milli, devices, chance.choice(mib)), at_s, chance.expovariate(1 / 600), size, least,
            )
        )  # fmt: skip
    return found


def check(timeline: Timeline) -> None:
    """Check the invariants that must hold after every cycle."""
    valid_cluster.validate(timeline.cluster)
    valid_state.validate(timeline.cluster, timeline.state)
    milli: defaultdict[str, int] = defaultdict(int)
    mib: defaultdict[str, int] = defaultdict(int)
    gangs: defaultdict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in timeline.cluster.pods():
        gangs[key_of(pod)].append(pod)
        for share, devices in zip(pod.request.shares, pod.chosen, strict=False):
            for device in devices:
                milli[device] += share.milli if pod.yields != "pause" else 0
                mib[device] += share.mib_of(DEVICE_MIB)
    assert all(value <= DEVICE_MILLI for value in milli.values()), "a device's time is promised twice"
    assert all(value <= DEVICE_MIB for value in mib.values()), "a device's memory is promised twice"
    for key, members in gangs.items():
        released = [pod for pod in members if not pod.gated]
        least = members[0].gang.least if members[0].gang else 1
        assert not released or len(released) >= least, f"{key} holds {len(released)} of {least} members"
        assert len({pod.yields for pod in released}) <= 1, f"{key} is paused in part"


def played(timeline: Timeline, tasks: list[Task], until_s: float = 1e9) -> None:
    timeline.play(tasks, until_s, lambda _: check(timeline))
