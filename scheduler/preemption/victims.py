"""Tests whether a pod fits on a node without some others, and finds the least set of victims. Values in, values out.

Sums over a node do not say on which device room is made; here the devices of each pod are known. A paused pod keeps its
memory, its processors and kubelet's units, and gives up the time of its devices.
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
"""Up to this many candidates every set is tried, the least first; with more, no member of the set can be spared."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A node and what is left of it; below 0 where it is over-booked."""

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
    """Its time of devices is promised to others already."""


class Room:
    """A test whether a pod, or several copies of a pod with one share, fit on a node without some others."""

    def __init__(self, rest: Rest, request: PodRequest, copies: int = 1) -> None:
        """`rest`: what is left of the node now, with all pods there. More than one copy: the pod has one share."""
        self._rest, self._request, self._copies = rest, request, copies
        self._snapshot = Snapshot([rest.spec])

    def is_made_by(self, gone: Sequence[Running], paused: Sequence[Running] = ()) -> bool:
        """Tell whether all copies fit once the pods in `gone` have ended and those in `paused` are paused.

        No pod is in both; those in `paused` run now.
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
                    milli[device] += 0 if pod.paused else share.milli  # its time is free already
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
    looks_max: int,
) -> list[One]:
    """Return the subset of `candidates` of least weight for which `suffices` is true; for all together it has to be.

    `weights`: of each candidate, from 0 on. First it leaves out one candidate after the other, the heaviest first. With
    more than EXACT candidates that is the answer: none of the set can be spared. With fewer it then tries every lighter
    set, the lightest first; after `looks_max` tries in all it returns the best set so far.
    """
    looks = 0

    def look(chosen: Sequence[One]) -> bool:
        nonlocal looks
        looks += 1
        return suffices(chosen)

    order = sorted(range(len(candidates)), key=lambda index: -weights[index])
    needed = set(range(len(candidates)))
    for index in order:  # spares the dearest first
        if look([candidates[other] for other in sorted(needed - {index})]):
            needed.remove(index)
    found = [candidates[index] for index in sorted(needed)]
    if len(candidates) > EXACT:
        return found
    sums = [0]  # by the bits of a set: its weight
    for weight in weights:
        sums += [total + weight for total in sums]
    most = sum(weights[index] for index in needed)
    # Each set that weighs less, the lightest first.
    for bits in sorted((bits for bits, total in enumerate(sums) if total < most), key=sums.__getitem__):
        if looks >= looks_max:
            break
        chosen = [one for index, one in enumerate(candidates) if bits >> index & 1]
        if look(chosen):
            return chosen
    return found
