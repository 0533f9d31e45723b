"""Decides whether a device is healthy. Pure: looks in, verdict out, `now_ns` a parameter.

A device is unhealthy while it does not answer, while the driver says it needs a reset, and while it cannot be looked
at. It is healthy again when it has answered all through a probation. A critical Xid stays until a reset: the device was
gone, or the driver asked for the reset, and then it answers without that. A new agent that finds the device well
believes it, and so does one whose device an operator has had in hand. Xids that a program causes by its own errors do
not count. A device that MPS serves, or whose compute mode refuses programs, is of no use to shares for as long as that
lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sharepod.agent.devices.device import DeviceLook

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the program, not of the device (NVIDIA's list: graphics exception, page fault, reset channel, ...)."""
PROBATION_NS: Final = 10_000_000_000
OVERDUE_NS: Final = 10_000_000_000
"""A device whose last look is older than this hangs."""


@dataclass(frozen=True, slots=True)
class Health:
    """The verdict on one device: a fault of its own, or that it is unfit for shares."""

    fault: str = ""
    well_since_ns: int = 0
    """Since when it has answered; meaningful while `fault` is set."""
    fatal: bool = False
    """`fault` is a critical Xid, after which no reset has been seen."""
    down: bool = False
    """Since that Xid the device was gone, or the driver asked for a reset: when it is well again, it has been reset."""
    xids_seen: int = 0
    unfit: str = ""
    """One of UNFIT_REASONS, as at the last look; or that an operator has it in hand."""

    @property
    def reason(self) -> str:
        """Why no work of shares can run on it; empty when it is healthy."""
        return self.fault or self.unfit

    @property
    def healthy(self) -> bool:
        """True when work can run on the device."""
        return not self.reason


def step(health: Health, look: DeviceLook, now_ns: int, probation_ns: int = PROBATION_NS) -> Health:
    """Return the verdict after one look at `now_ns`."""
    counted = replace(health, xids_seen=health.xids_seen + len(look.xids), unfit=look.unfit)
    down = look.gone or look.needs_reset
    critical = [xid for xid in look.xids if xid not in APPLICATION_XIDS]
    if critical:
        return replace(counted, fault=f"Xid {critical[-1]}", well_since_ns=now_ns, fatal=True, down=down)
    if look.error or look.needs_reset:
        fault = look.error or health.fault or "the driver asks for a reset"
        fault = health.fault if health.fatal else fault
        return replace(counted, fault=fault, well_since_ns=now_ns, down=health.down or down)
    is_over = now_ns - health.well_since_ns >= probation_ns and (health.down or not health.fatal)
    return Health(xids_seen=counted.xids_seen, unfit=counted.unfit) if health.fault and is_over else counted


def overdue(health: Health, now_ns: int) -> Health:
    """Return the verdict on a device that has not been looked at for OVERDUE_NS; one that has a fault keeps it."""
    fault = health.fault or f"it could not be looked at for {OVERDUE_NS // 10**9} s: NVML does not come back"
    return replace(health, fault=fault, well_since_ns=now_ns)


TAKEN_BACK: Final = "released by an operator and taken back: it is about to be looked at"
"""Why a device that was released is of no use to shares until the next look at it."""


def released(index: int) -> str:
    """Return why a device that an operator has in hand is of no use to shares."""
    return f"released by an operator: `sharepod device resume {index}` takes it back"
