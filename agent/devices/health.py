"""Decides whether a device is healthy. Pure: looks in, verdict out, `now_ns` a parameter.

A device is unhealthy while it does not answer, while the driver says that it needs a reset, and while no look at it
returns. It is healthy again when it has answered throughout a probation. After a critical Xid a device stays unhealthy
until it has been reset. A reset is recognised when the device was gone, or the driver asked for a reset, and later the
device answers without that. A new agent learns of the Xid from the checkpoint. It trusts the device if the driver is of
another version, and any agent trusts a device that an operator takes back after a release. Xids that a program causes
by its own errors do not count. A device that MPS serves, or that refuses programs by its compute mode, is of no use to
shares while that lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sharepod.agent.devices.device import DeviceLook

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that are errors of the program, not of the device (NVIDIA's list: graphics exception, page fault, ...)."""
PROBATION_NS: Final = 10_000_000_000
OVERDUE_NS: Final = 10_000_000_000
"""If the last look at a device is older than this, the device hangs."""


@dataclass(frozen=True, slots=True)
class Health:
    """The verdict on one device: whether it has a fault, and whether it is unfit for shares."""

    fault: str = ""
    well_since_ns: int = 0
    """Since when the device has answered again; valid while `fault` is set."""
    fatal: bool = False
    """`fault` is a critical Xid, and no reset has been seen since."""
    down: bool = False
    """Since that Xid the device was gone, or the driver asked for a reset: once it answers well, it has been reset."""
    xids_seen: int = 0
    unfit: str = ""
    """One of UNFIT_REASONS, as of the last look; or that an operator has released the device."""

    @property
    def reason(self) -> str:
        """Why no work of shares can run on the device; empty if it is healthy."""
        return self.fault or self.unfit

    @property
    def healthy(self) -> bool:
        """True when work can run on the device."""
        return not self.reason


def step(health: Health, look: DeviceLook, now_ns: int, probation_ns: int = PROBATION_NS) -> Health:
    """Return the verdict after a look at a device at `now_ns`; `health` is the verdict before it.

    A fault ends when the device has answered well for `probation_ns`; a critical Xid only if a reset was seen, too.
    """
    counted = replace(health, xids_seen=health.xids_seen + len(look.xids), unfit=look.unfit)  # the fault is as before
    down = look.gone or look.needs_reset
    critical = [xid for xid in look.xids if xid not in APPLICATION_XIDS]
    if critical:
        return replace(counted, fault=f"Xid {critical[-1]}", well_since_ns=now_ns, fatal=True, down=down)
    if look.error or look.needs_reset:
        fault = look.error or health.fault or "the driver asks for a reset"
        fault = health.fault if health.fatal else fault  # a critical Xid stays the reason
        return replace(counted, fault=fault, well_since_ns=now_ns, down=health.down or down)
    is_over = now_ns - health.well_since_ns >= probation_ns and (health.down or not health.fatal)
    return Health(xids_seen=counted.xids_seen, unfit=counted.unfit) if health.fault and is_over else counted


def overdue(health: Health, now_ns: int) -> Health:
    """Return the verdict on a device without a look for OVERDUE_NS. `health`: the verdict before; its fault stays."""
    fault = health.fault or f"it could not be looked at for {OVERDUE_NS // 10**9} s: NVML does not come back"
    return replace(health, fault=fault, well_since_ns=now_ns)


TAKEN_BACK: Final = "taken back from an operator: it is about to be looked at"
"""The reason after a released device has come back, until the next look at it."""


def released(index: int) -> str:
    """Return the reason for a device that an operator has released."""
    return f"released by an operator: `sharepod device resume {index}` takes it back"
