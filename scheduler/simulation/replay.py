"""Replays a list of pods against placement in virtual time: pods come one by one and stay. Pure.

It is the experiment of Weng et al. ("Beware of Fragmentation", USENIX ATC 2023). The pods of the list come in an order
shuffled by the seed, then pods drawn from the list, until they have asked for `arrive` times the time of all devices. A
pod is placed at once or fails for good. Between equal nodes their order decides. It is shuffled by the seed, too, and
the same for every policy, because it decides more than most policies do.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.mix import Mix
from sharepod.scheduler.placement.native import Snapshot
from sharepod.scheduler.placement.policy import Policy
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sharepod.scheduler.placement.native import Place
    from sharepod.scheduler.placement.request import NodeSpec
    from sharepod.scheduler.state.trace import NamedPod

REFRESH: Final = 50
"""Pods that come between two updates of what is scarce in the cluster."""
PODS_MAX: Final = 5_000_000
POINTS: Final = 100
"""Points of a curve for each time that all devices of the cluster have been asked for."""
_INSISTING: Final = "insisting"
"""In the counters: pods that insist on models, of any size. The other keys are sizes."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of one share of a pod, or of the whole pod if it has no share or failed."""

    pod: str
    node: str
    """Empty: it failed."""
    devices: tuple[int, ...]
    milli: int
    """Of each of these devices."""


@dataclass(frozen=True, slots=True)
class Point:
    """The cluster after some pods came."""

    arrived: float
    """The device time that was asked for, as a part of all devices."""
    allocated: float
    """The device time that was given, as a part of all devices."""
    fragmented: float
    """The device time left that the most frequent pods of the list could not use, as a part of all devices."""
    failed: tuple[tuple[str, int, int], ...]
    """Of each size: how many failed, and how many came."""
    insisting: tuple[int, int] = (0, 0)
    """Of the pods that insist on models, of any size: how many failed, and how many came."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One replay."""

    policy: str
    seed: int
    points: tuple[Point, ...]
    """One point for each hundredth of all devices that was asked for; one at the end if less was asked for."""

    def at(self, arrived: float) -> Point:
        """Return the first point with at least this `arrived`, or the last point if there is none."""
        return next((point for point in self.points if point.arrived >= arrived), self.points[-1])


def check_lists(nodes: Sequence[NodeSpec], pods: Sequence[NamedPod], arrive: float | None) -> None:
    """Raise PlacementError when nothing can be placed, or when too many pods would have to come.

    `arrive`: as for `replay`.
    """
    check_nodes(nodes)
    if not any(pod.request.milli for pod in pods):
        raise PlacementError("no pod of the list asks for a device: there is nothing to place")
    if arrive is None:
        return
    wanted = arrive * DEVICE_MILLI * sum(node.devices for node in nodes)
    needed = round(wanted * len(pods) / sum(pod.request.milli for pod in pods))
    if needed > PODS_MAX:
        raise PlacementError(f"about {needed} pods would have to come, {PODS_MAX} are the limit: lower --arrive")


def check_nodes(nodes: Sequence[NodeSpec]) -> None:
    """Raise PlacementError when nothing can be placed on these nodes, or they have too many models."""
    if not any(node.devices for node in nodes):
        raise PlacementError("no node of the list has a device: there is nothing to place on")
    Snapshot(nodes)  # it raises the error for too many models


def unknown_models(nodes: Sequence[NodeSpec], pods: Sequence[NamedPod]) -> list[str]:
    """Return the models that pods insist on and no node has, sorted."""
    there = {node.model for node in nodes if node.devices}
    return sorted({model for pod in pods for model in pod.request.models} - there)


def arrivals(pods: Sequence[NamedPod], wanted_milli: float | None, seed: int) -> Iterator[NamedPod]:
    """Yield pods of the list until they have asked for `wanted_milli` of device time; None: yield each of them once.

    First each comes once, in an order that the seed shuffles, then pods drawn from the list by chance.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    order = list(pods)
    chance.shuffle(order)
    if wanted_milli is None:
        yield from reversed(order)
        return
    asked = 0
    while asked < wanted_milli:
        pod = order.pop() if order else chance.choice(pods)
        asked += pod.request.milli
        yield pod


def replay(
    nodes: Sequence[NodeSpec],
    pods: Sequence[NamedPod],
    policy_name: str,
    *,
    arrive: float | None,
    seed: int,
    tell: Callable[[Placed], None] = lambda _: None,
) -> Outcome:
    """Replay lists that `check_lists` has checked, under one policy; `tell` is called for each pod, share by share.

    `arrive`: what the pods that come ask for in all, as a part of all devices (1.3 is 130 %); None: each pod of the
    list comes once. Raises PlacementError for an unknown policy.
    """
    order = list(nodes)
    random.Random(f"nodes {seed}").shuffle(order)  # noqa: S311 - no secret
    snapshot = Snapshot(order)
    capacity = DEVICE_MILLI * sum(node.devices for node in order)
    mix = Mix.of(pod.request for pod in pods)
    policy = Policy(policy_name, snapshot, mix)
    yardstick = Policy("fgd", snapshot, mix)  # it judges by the most frequent kinds
    came: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    asked = given = 0
    points: list[Point] = []

    def point() -> Point:
        """Return the point of the curve after the pods that came so far."""
        counts = tuple((size, failed[size], came[size]) for size in sorted(came.keys() - {_INSISTING}))
        fragmented = snapshot.fragmentation(yardstick.native)
        insisting = failed[_INSISTING], came[_INSISTING]
        return Point(asked / capacity, given / capacity, fragmented / capacity, counts, insisting)

    for number, pod in enumerate(arrivals(pods, None if arrive is None else arrive * capacity, seed)):
        if number % REFRESH == 0:
            policy.refresh()
        place = _take_best(snapshot, policy, pod)
        classes = [pod.request.size, _INSISTING] if pod.request.shares and pod.request.models else [pod.request.size]
        came.update(classes)
        asked += pod.request.milli
        if place is None:
            failed.update(classes)
        else:
            given += pod.request.milli
        for one in _outcome_of(pod, place, order):
            tell(one)
        # A large pod may pass several hundredths of the devices at once: each gets a point.
        if asked * POINTS >= (len(points) + 1) * capacity:
            points += [point()] * (asked * POINTS // capacity - len(points))
    if arrive is None or not points:
        points.append(point())
    return Outcome(policy_name, seed, tuple(points))


def _take_best(snapshot: Snapshot, policy: Policy, pod: NamedPod) -> Place | None:
    """Take the best place for a pod from what is left, and return it; None: the pod fits nowhere."""
    place = snapshot.best(pod.request, policy.native)
    if place is not None:
        snapshot.take(pod.request, place)
    return place


def _outcome_of(pod: NamedPod, place: Place | None, nodes: Sequence[NodeSpec]) -> list[Placed]:
    """Return what became of a pod: a row for each share; one row if it has no share or failed (`place` is None).

    `nodes`: those of the snapshot, by index.
    """
    if place is None:
        return [Placed(pod.name, "", (), 0)]
    name = nodes[place.node].name
    shares = [(devices, share.milli) for share, devices in zip(pod.request.shares, place.devices, strict=True)]
    return [Placed(pod.name, name, devices, milli) for devices, milli in shares or [((), 0)]]
