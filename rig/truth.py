"""What truly happened in a run, by the device's own log: its units of work, and the device time of every owner.

Times are CLOCK_MONOTONIC nanoseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """The device's ground truth at one instant: the device time that each owner has used so far."""

    now_ns: int
    busy_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One unit of work, by the device's log."""

    owner: str
    submitted_ns: int
    started_ns: int
    ended_ns: int
    device: int = 0
    busy_ns: int = 0
    """How long the device worked on it. Less than its interval if the device did other work meanwhile. 0: not known."""


@dataclass(frozen=True, slots=True)
class Held:
    """An interval in which an owner held the turn on a device, until its work had drained."""

    owner: str
    granted_ns: int
    drained_ns: int
    device: int = 0
