"""Decides whether a device is healthy. Pure: looks in, verdict out, `now_ns` a parameter.

A device is unhealthy while it does not answer, while the driver says it needs a reset, and for a probation after a
critical Xid. It is healthy again when it has answered all through the probation. Xids that a program causes by its own
errors do not count. A device that MPS serves is of no use to shares for as long as it does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.agent.device import MPS_REASON

if TYPE_CHECKING:
    from sharepod.agent.device import DeviceLook

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the program, not of the device (NVIDIA's list: graphics exception, page fault, reset channel, ...)."""
PROBATION_NS: Final = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Health:
    """The verdict on one device: a fault of its own, or MPS."""

    fault: str = ""
    well_since_ns: int = 0
    """Since when it has answered without a critical Xid; meaningful while `fault` is set."""
    xids_seen: int = 0
    mps: bool = False

    @property
    def reason(self) -> str:
        """Why no work of shares can run on it; empty when it is healthy."""
        return self.fault or (MPS_REASON if self.mps else "")

    @property
    def healthy(self) -> bool:
        """True when work can run on the device."""
        return not self.reason


def step(health: Health, look: DeviceLook, now_ns: int, probation_ns: int = PROBATION_NS) -> Health:
    """Return the verdict after one look at `now_ns`."""
    counted = replace(health, xids_seen=health.xids_seen + len(look.xids), mps=look.mps)
    critical = [xid for xid in look.xids if xid not in APPLICATION_XIDS]
    if critical:
        return replace(counted, fault=f"Xid {critical[-1]}", well_since_ns=now_ns)
    if look.error:
        fault = health.fault if health.fault.startswith("Xid") else look.error
        return replace(counted, fault=fault, well_since_ns=now_ns)
    if look.needs_reset:
        return replace(counted, fault=health.fault or "the driver asks for a reset", well_since_ns=now_ns)
    if health.fault and now_ns - health.well_since_ns >= probation_ns:
        return replace(counted, fault="", well_since_ns=now_ns)
    return counted
