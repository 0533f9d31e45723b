"""Estimates which pods are expected: how often each kind comes. It learns from the pods that came, or from a list."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from sharepod.scheduler.placement.request import DEVICE_MILLI, PodRequest, ShareRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_UNKNOWN: Final = tuple(PodRequest(shares=(ShareRequest(milli),)) for milli in (250, 500, 1000))
"""The pods that are expected before any has come. They stay in the count, where they soon weigh little."""


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A share that a pod asks for, with its part of the pod's processors. Without devices: a pod without shares."""

    devices: int
    milli: int
    """Of each device."""
    cpu_milli: int
    models: tuple[str, ...]
    """Sorted; empty: any."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Kinds with their part of all pods: more than 0, together 1."""

    parts: tuple[tuple[Kind, float], ...]
    """In the order of the kinds, so that the same pods in another order make the same mix."""

    @classmethod
    def of(cls, pods: Iterable[PodRequest]) -> Self:
        """Return the mix of pods that came."""
        counts: Counter[Kind] = Counter()
        for pod in pods:
            counts.update(kinds_of(pod))
        return cls.counted(counts)

    @classmethod
    def counted(cls, counts: Mapping[Kind, float]) -> Self:
        """Return the mix of kinds with these counts, or parts; a kind with 0 is left out."""
        total = sum(counts.values())
        return cls(tuple((kind, count / total) for kind, count in sorted(counts.items()) if count > 0))

    def with_devices(self) -> Mix:
        """Return the mix of only those kinds that ask for devices."""
        return Mix.counted({kind: part for kind, part in self.parts if kind.devices})

    def most_frequent(self, part: float) -> Mix:
        """Return the mix of the most frequent kinds: the fewest that together make up at least `part` (0 to 1)."""
        chosen: dict[Kind, float] = {}
        for kind, own in sorted(self.parts, key=lambda item: (-item[1], item[0])):
            if sum(chosen.values()) >= part:
                break
            chosen[kind] = own
        return Mix.counted(chosen)

    def demand(self) -> dict[int, float]:
        """Return the frequency of each size of share (in milli). Only the ratios mean something.

        A share on several devices counts as so many shares of a whole device.
        """
        sizes: defaultdict[int, float] = defaultdict(float)
        for kind, part in self.parts:
            if kind.devices:
                sizes[kind.milli if kind.devices == 1 else DEVICE_MILLI] += part * kind.devices
        return dict(sorted(sizes.items()))


class Census:
    """The counts of the pods with shares that exist, bound or waiting, by kind."""

    def __init__(self) -> None:
        self._counts: Counter[Kind] = Counter()

    def put(self, pod: PodRequest) -> None:
        """Count a pod that has come."""
        if pod.shares:
            self._counts.update(kinds_of(pod))

    def drop(self, pod: PodRequest) -> None:
        """Stop counting a pod, given as it was put."""
        if pod.shares:
            self._counts.subtract(kinds_of(pod))

    def expected(self) -> Mix:
        """Return the mix that is expected of the pods to come: that of the pods that exist and of _UNKNOWN together."""
        counts = Counter(self._counts)
        for request in _UNKNOWN:
            counts.update(kinds_of(request))
        return Mix.counted(counts)


def kinds_of(pod: PodRequest) -> list[Kind]:
    """Return the kinds that a pod counts as: one for each share, each with an equal part of the pod's processors."""
    models = tuple(sorted(pod.models))
    if not pod.shares:
        return [Kind(0, 0, pod.cpu_milli, ())]
    cpu_milli = pod.cpu_milli // len(pod.shares)
    return [Kind(share.devices, share.milli, cpu_milli, models) for share in pod.shares]
