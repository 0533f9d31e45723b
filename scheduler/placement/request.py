"""Defines what pods ask for and what nodes have, as placement sees it: values that are checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharepod.scheduler.errors import PlacementError

DEVICE_MILLI: Final = 1000
"""The time of one device; 10 are one unit of `sharepod.io/gpu`."""
STEP_MILLI: Final = 10
"""The resolution of shares' sizes and of what is left of a device."""
NODE_DEVICES_MAX: Final = 16
SHARES_MAX: Final = 8
CLASSES: Final = ("latency", "standard", "batch")
_AMOUNT_MAX: Final = 2**31 - 1
"""Of memory in MiB, and of processors in thousandths: what 32 bits hold is more than any machine has."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """One share: the same part of each of its devices."""

    milli: int
    """Thousandths of the time of each device, 1 to 1000."""
    devices: int = 1
    mib: int | None = None
    """Memory on each device; None: the same part of its memory as of its time."""
    beside: int | None = None
    """The index of an earlier share of the pod; this share has to be on devices of that one."""
    share_class: str = "standard"
    """One of CLASSES."""
    limit_milli: int | None = None
    """The most that it may use of each of its devices; None: no more than its time."""
    memory_milli: int = 0
    """The least part of each device's memory, in thousandths, beside `mib`: for a share that two containers use one
    after the other, of which only one has a memory cap."""

    def __post_init__(self) -> None:
        _check("a share of", self.milli, 1, DEVICE_MILLI, "thousandths of a device")
        _check("a share on", self.devices, 1, NODE_DEVICES_MAX, "devices")
        if self.mib is not None:
            _check("a share with", self.mib, 0, _AMOUNT_MAX, "MiB on each device")
        _check("a share with", self.memory_milli, 0, DEVICE_MILLI, "thousandths of a device's memory")
        if self.share_class not in CLASSES:
            raise PlacementError(f"class {self.share_class!r} is not known: choose one of {', '.join(CLASSES)}")
        if self.limit_milli is not None:
            _check("a share with the limit", self.limit_milli, self.milli, DEVICE_MILLI, "thousandths of a device")

    @property
    def part_milli(self) -> int:
        """Return the least part of each device's memory that it takes, in thousandths; 0: only its cap counts."""
        return self.milli if self.mib is None else self.memory_milli

    def mib_of(self, device_mib: int) -> int:
        """Return the memory that it takes of a device that has `device_mib`, in MiB."""
        return max(self.mib or 0, device_mib * self.part_milli // DEVICE_MILLI)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What one pod asks for."""

    cpu_milli: int = 0
    memory_mib: int = 0
    shares: tuple[ShareRequest, ...] = ()
    models: frozenset[str] = frozenset()
    """The models of devices that it takes; empty: any."""

    def __post_init__(self) -> None:
        _check("a pod with", self.cpu_milli, 0, _AMOUNT_MAX, "thousandths of a processor")
        _check("a pod with", self.memory_mib, 0, _AMOUNT_MAX, "MiB")
        _check("a pod with", len(self.shares), 0, SHARES_MAX, "shares")
        for index, share in enumerate(self.shares):
            if share.beside is not None and not 0 <= share.beside < index:
                raise PlacementError(f"share {index} is to be beside share {share.beside}: name an earlier one")
            if share.beside is not None and share.devices > self.shares[share.beside].devices:
                raise PlacementError(f"share {index} is on more devices than share {share.beside} that it is beside")

    @property
    def milli(self) -> int:
        """Return the time of devices that it asks for, in all."""
        return sum(share.milli * share.devices for share in self.shares)

    @property
    def size(self) -> str:
        """Return the class under which it is counted: `CPU`, `share`, or the number of whole devices."""
        if not self.shares:
            return "CPU"
        if any(share.milli < DEVICE_MILLI for share in self.shares):
            return "share"
        return f"{self.milli // DEVICE_MILLI} GPU"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node without pods."""

    name: str
    cpu_milli: int
    memory_mib: int
    devices: int
    model: str = ""
    device_mib: int = 0
    """Memory of each device; 0: not known, and not counted."""

    def __post_init__(self) -> None:
        if not self.name:
            raise PlacementError("a node has no name: give each its own")
        _check(f"node {self.name} with", self.cpu_milli, 0, _AMOUNT_MAX, "thousandths of a processor")
        _check(f"node {self.name} with", self.memory_mib, 0, _AMOUNT_MAX, "MiB")
        _check(f"node {self.name} with", self.devices, 0, NODE_DEVICES_MAX, "devices")
        _check(f"node {self.name} with", self.device_mib, 0, _AMOUNT_MAX, "MiB on each device")


def _check(what: str, value: int, least: int, most: int, unit: str) -> None:
    """Raise PlacementError if a value is not from `least` to `most`; `what` and `unit` are the words around it."""
    if not least <= value <= most:
        raise PlacementError(f"{what} {value} {unit}: {least} to {most} are possible")
