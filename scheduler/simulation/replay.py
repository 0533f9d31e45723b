"""Replays a list of pods against placement in virtual time: pods come one by one and stay. Pure.

The experiment of Weng et al. ("Beware of Fragmentation", USENIX ATC 2023): the list in an order shuffled by the seed,
then pods drawn from it, until as much time of devices has been asked for as there is, times `arrive`. A pod is placed
at once or fails for good. Ties between nodes are decided by one order of them, shuffled by the seed as well and the
same for every policy: that decides more than most policies do.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.mix import Mix
from sharepod.scheduler.placement.native import Board
from sharepod.scheduler.placement.policy import Policy
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sharepod.scheduler.placement.native import Place
    from sharepod.scheduler.placement.request import NodeSpec
    from sharepod.scheduler.state.trace import NamedPod

REFRESH: Final = 50
"""Pods between two looks at what is scarce in the cluster."""
PODS_MAX: Final = 5_000_000
POINTS: Final = 100
"""Of a curve, for each time that the whole cluster is asked for."""
_INSISTING: Final = "insisting"


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of one share of a pod, of the whole pod where it has none or failed."""

    pod: str
    node: str
    """Empty: it failed."""
    devices: tuple[int, ...]
    milli: int
    """Of each of them."""


@dataclass(frozen=True, slots=True)
class Point:
    """The cluster after some pods came."""

    arrived: float
    """What was asked for, as a part of all devices."""
    allocated: float
    """What was given, as a part of all devices."""
    fragmented: float
    """What is left and the most frequent pods of the list could not use, as a part of all devices."""
    failed: tuple[tuple[str, int, int], ...]
    """Of each size: how many failed, and how many came."""
    insisting: tuple[int, int] = (0, 0)
    """Of those that insist on models, of whatever size: how many failed, and how many came."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One replay."""

    policy: str
    seed: int
    points: tuple[Point, ...]
    """At every hundredth of all devices that has been asked for; at the end when it never was so much."""

    def at(self, arrived: float) -> Point:
        """Return the point at which so much had arrived, the last one when it never had."""
        return next((point for point in self.points if point.arrived >= arrived), self.points[-1])


def check_lists(nodes: Sequence[NodeSpec], pods: Sequence[NamedPod], arrive: float | None) -> None:
    """Raise PlacementError when nothing can be placed, or it would never end."""
    check_nodes(nodes)
    if not any(pod.ask.milli for pod in pods):
        raise PlacementError("no pod of the list asks for a device: there is nothing to place")
    if arrive is None:
        return
    wanted = arrive * DEVICE_MILLI * sum(node.devices for node in nodes)
    needed = round(wanted * len(pods) / sum(pod.ask.milli for pod in pods))
    if needed > PODS_MAX:
        raise PlacementError(f"about {needed} pods would have to come, {PODS_MAX} are the limit: lower --arrive")


def check_nodes(nodes: Sequence[NodeSpec]) -> None:
    """Raise PlacementError when nothing can be placed on them."""
    if not any(node.devices for node in nodes):
        raise PlacementError("no node of the list has a device: there is nothing to place on")
    Board(nodes)


def unknown_models(nodes: Sequence[NodeSpec], pods: Sequence[NamedPod]) -> list[str]:
    """Return the models that pods insist on and no node has, sorted."""
    there = {node.model for node in nodes if node.devices}
    return sorted({model for pod in pods for model in pod.ask.models} - there)


def arrivals(pods: Sequence[NamedPod], wanted_milli: float | None, seed: int) -> Iterator[NamedPod]:
    """Yield pods until so much has been asked for; None: each of them once."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    order = list(pods)
    chance.shuffle(order)
    if wanted_milli is None:
        yield from reversed(order)
        return
    asked = 0
    while asked < wanted_milli:
        pod = order.pop() if order else chance.choice(pods)
        asked += pod.ask.milli
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
    """Replay lists that were checked; `tell` hears of every pod in turn, share by share.

    `arrive` is a part of all devices; None: each pod of the list comes once. Raises PlacementError for the policy.
    """
    order = list(nodes)
    random.Random(f"nodes {seed}").shuffle(order)  # noqa: S311 - no secret
    board = Board(order)
    capacity = DEVICE_MILLI * sum(node.devices for node in order)
    mix = Mix.of(pod.ask for pod in pods)
    policy = Policy(policy_name, board, mix)
    yardstick = Policy("fgd", board, mix)
    came: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    asked = given = 0
    points: list[Point] = []

    def point() -> Point:
        counts = tuple((size, failed[size], came[size]) for size in sorted(came.keys() - {_INSISTING}))
        fragmented = board.fragmentation(yardstick.native)
        insisting = failed[_INSISTING], came[_INSISTING]
        return Point(asked / capacity, given / capacity, fragmented / capacity, counts, insisting)

    for number, pod in enumerate(arrivals(pods, None if arrive is None else arrive * capacity, seed)):
        if number % REFRESH == 0:
            policy.refresh()
        place = _place(board, policy, pod)
        classes = [pod.ask.size, _INSISTING] if pod.ask.shares and pod.ask.models else [pod.ask.size]
        came.update(classes)
        asked += pod.ask.milli
        if place is None:
            failed.update(classes)
        else:
            given += pod.ask.milli
        for one in _placed(pod, place, order):
            tell(one)
        if asked * POINTS >= (len(points) + 1) * capacity:
            points += [point()] * (asked * POINTS // capacity - len(points))
    if arrive is None or not points:
        points.append(point())
    return Outcome(policy_name, seed, tuple(points))


def _place(board: Board, policy: Policy, pod: NamedPod) -> Place | None:
    place = board.best(pod.ask, policy.native)
    if place is not None:
        board.take(pod.ask, place)
    return place


def _placed(pod: NamedPod, place: Place | None, nodes: Sequence[NodeSpec]) -> list[Placed]:
    if place is None:
        return [Placed(pod.name, "", (), 0)]
    name = nodes[place.node].name
    shares = [(devices, share.milli) for share, devices in zip(pod.ask.shares, place.devices, strict=True)]
    return [Placed(pod.name, name, devices, milli) for devices, milli in shares or [((), 0)]]
