"""Tests whether a pod fits on a node without some others, and finds the least set of victims. Values in, values out.

A node's totals do not tell on which device there is room. So the devices of each pod are looked at here. A paused pod
keeps its memory, its processors and kubelet's units, and gives up the time of its devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.native import Snapshot, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sharepod.scheduler.placement.request import NodeSpec, PodRequest

One = TypeVar("One")
EXACT: Final = 12
"""Up to this many candidates every set is tried. With more, the found set is only one without a member to spare."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A node and what is left of it: numbers below 0 where it is over-booked."""

    spec: NodeSpec
    cpu_milli: int
    memory_mib: int
    free_milli: tuple[int, ...]
    free_mib: tuple[int, ...]
    allowed: int = 0xFFFF
    """A bit for each device that the pod may have."""

    def __post_init__(self) -> None:
        if not len(self.free_milli) == len(self.free_mib) == self.spec.devices:
            raise PlacementError(f"{self.spec.name} has {self.spec.devices} devices: say of each what is left")


@dataclass(frozen=True, slots=True)
class Running:
    """A pod on the node."""

    uid: str
    request: PodRequest
    devices: tuple[tuple[int, ...], ...]
    """Of each share, its devices."""
    paused: bool = False
    """The time of its devices is promised to other pods already."""


class Room:
    """A test whether a pod, or several copies of a pod with one share, fit on a node without some others."""

    def __init__(self, rest: Rest, request: PodRequest, copies: int = 1) -> None:
        """`rest`: what is left of the node now, with all pods there. More than one copy: the pod has one share."""
        self._rest, self._request, self._copies = rest, request, copies
        self._snapshot = Snapshot([rest.spec])

    def is_made_by(self, gone: Sequence[Running], paused: Sequence[Running] = ()) -> bool:
        """Tell whether all copies fit once the pods in `gone` have ended and those in `paused` are paused.

        No pod is in both. The pods in `paused` are not paused yet.
        """
        self._set_left(gone, paused)
        if self._copies > 1:
            return self._count_copies() >= self._copies
        return bool(self._snapshot.fit_array(self._request, [0], [self._rest.allowed])[0] == Verdict.FITS)

    def copies(self, gone: Sequence[Running], paused: Sequence[Running] = ()) -> int:
        """Return how many pods like this one, which has one share, would fit then (see `is_made_by`)."""
        self._set_left(gone, paused)
        return self._count_copies()

    def _count_copies(self) -> int:
        """Return how many copies of the pod fit into what is left of the node."""
        return int(self._snapshot.copies_array(self._request, [0], [self._rest.allowed])[0])

    def _set_left(self, gone: Sequence[Running], paused: Sequence[Running]) -> None:
        """Set what is left of the node once these pods have gone, and those in `paused` have given up their time."""
        rest, spec = self._rest, self._rest.spec
        cpu_milli = rest.cpu_milli + sum(pod.request.cpu_milli for pod in gone)
        memory_mib = rest.memory_mib + sum(pod.request.memory_mib for pod in gone)
        milli, mib = list(rest.free_milli), list(rest.free_mib)
        for pod in gone:
            for share, devices in zip(pod.request.shares, pod.devices, strict=True):
                own_mib = share.mib_of(spec.device_mib)
                for device in devices:
                    milli[device] += 0 if pod.paused else share.milli  # a paused pod's time is free already
                    mib[device] += own_mib
        for pod in paused:
            for share, devices in zip(pod.request.shares, pod.devices, strict=True):
                for device in devices:
                    milli[device] += share.milli
        self._snapshot.set_left(0, cpu_milli, memory_mib, milli, mib)


def least_set(
    suffices: Callable[[Sequence[One]], bool],
    candidates: Sequence[One],
    weights: Sequence[int],
    tries_max: int,
) -> list[One]:
    """Return the lightest subset of `candidates` that `suffices`. All of `candidates` together must suffice.

    `weights`: one number >= 0 for each candidate. First pass: each candidate that can be spared is dropped, the
    heaviest first. With more than EXACT candidates that is the answer. Else a second pass tries every lighter set, the
    lightest first, until `tries_max` tries have been made in both passes.
    """
    tries = 0

    def is_enough(chosen: Sequence[One]) -> bool:
        nonlocal tries
        tries += 1
        return suffices(chosen)

    needed = set(range(len(candidates)))
    for index in sorted(range(len(candidates)), key=lambda index: -weights[index]):
        if is_enough([candidates[other] for other in sorted(needed - {index})]):
            needed.remove(index)
    found = [candidates[index] for index in sorted(needed)]
    if len(candidates) > EXACT:
        return found
    weight_of = [0]  # by a set's bits: bit i is candidate i
    for weight in weights:
        weight_of += [total + weight for total in weight_of]
    found_weight = sum(weights[index] for index in needed)
    lighter = [bits for bits, total in enumerate(weight_of) if total < found_weight]
    for bits in sorted(lighter, key=weight_of.__getitem__):
        if tries >= tries_max:
            break
        chosen = [one for index, one in enumerate(candidates) if bits >> index & 1]
        if is_enough(chosen):
            return chosen
    return found
