"""Finds processes that use a device without a share. Pure: looks in, findings out, `now_ns` a parameter.

Some of them were started in a share of this node but could not attach to its region. The hook can neither print that
nor tell the agent, so it lets them pass. They are reported apart from the others, with the cause.

A process counts only after it has been seen for a grace time, because NVML can list a program a moment before its slot
is read. Monitoring daemons are on an allow-list of shell patterns.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sharepod.agent.devices.device import DeviceProcess
    from sharepod.agent.shares.share import DeviceUuid

GRACE_NS: Final = 1_500_000_000
"""Longer than a program takes to claim its slot, and shorter than the time between looks: the second look reports."""


_GONE: Final = (errno.ENOENT, errno.ENOTDIR)
_NOT_ATTACHED: Final = (
    "it has not attached: its hook has another ABI, its user may not write the region, all slots are taken, "
    "or it started without the hook: start it anew in its share"
)


MPS_CAUSE: Final = "it is a client of MPS, which makes clients' work one and the same: stop MPS and start it again"
OUTSIDE_CAUSE: Final = (
    "its share does not hold this device, for it has changed CUDA_VISIBLE_DEVICES: take devices from the list that its "
    "share was given"
)


def unmetered_cause(region_error: int, without_hook: str = "") -> str:
    """Return why a process that was started in a share runs unmetered, and after the last colon the remedy.

    `region_error`: the errno for its region, 0 if that can be used; `without_hook`: why the process cannot have the
    hook, if that is known.
    """
    if region_error in _GONE:
        return "its region is gone, for its share has ended or a new agent has given it up: start it in a new share"
    if fault := region_fault(region_error):
        return f"{fault}: register the share anew, and start it there"
    return without_hook or _NOT_ATTACHED


def region_fault(region_error: int) -> str:
    """Return what is wrong with the region of a live share; empty for 0, a region that can be used."""
    if region_error == 0:
        return ""
    if region_error in _GONE:
        return "its region is gone, with its directory"
    if region_error == errno.EPROTO:
        return "its region has another ABI or is damaged"
    if region_error == errno.EPIPE:
        return "its region has no bell, or one that is no FIFO"
    return f"its region cannot be read ({errno.errorcode.get(region_error, region_error)})"


@dataclass(frozen=True, slots=True)
class Finding:
    """A process without a share that was found on a device; reported once while it stays there."""

    device: DeviceUuid
    process: DeviceProcess


class UnmanagedProcesses:
    """The unmanaged processes on each device, and since when they have been seen.

    Invariants: `_since` holds exactly the unmanaged processes of the last look; `_reported` is a subset of its keys.
    """

    def __init__(self, allowed: Sequence[str], grace_ns: int = GRACE_NS) -> None:
        """Take the shell patterns of names that are allowed, and for how long a process must be seen to count."""
        self._allowed = tuple(allowed)
        self._grace_ns = grace_ns
        self._since: dict[DeviceUuid, dict[int, int]] = {}
        """By device and pid."""
        self._reported: dict[DeviceUuid, set[int]] = {}
        self._current: dict[DeviceUuid, tuple[DeviceProcess, ...]] = {}
        self._seen: dict[DeviceUuid, int] = {}
        """By device: how many have been found so far."""
        self._unmetered: dict[DeviceUuid, int] = {}
        """The number of those that were started in a share of this node."""

    def step(
        self,
        device: DeviceUuid,
        processes: Iterable[DeviceProcess],
        owned: Collection[int],
        now_ns: int,
        causes: Mapping[int, str] | None = None,
    ) -> list[Finding]:
        """Take a look at a device. Returns the new findings: processes that have now been seen for the grace time.

        `owned`: the pids of the shares that hold the device. `causes`: by pid, why a process that was started in a
        share runs unmetered.
        """
        before = self._since.get(device, {})
        suspects = [p for p in processes if p.pid not in owned and not self._is_allowed(p.name)]
        since = {p.pid: before.get(p.pid, now_ns) for p in suspects}
        reported = self._reported.get(device, set()) & since.keys()
        confirmed = tuple(
            replace(p, unmetered_cause=(causes or {}).get(p.pid, ""))
            for p in suspects
            if now_ns - since[p.pid] >= self._grace_ns
        )
        fresh = [Finding(device, p) for p in confirmed if p.pid not in reported]
        self._since[device] = since
        self._reported[device] = reported | {finding.process.pid for finding in fresh}
        self._current[device] = confirmed
        self._seen[device] = self.seen(device) + len(fresh)
        self._unmetered[device] = self.unmetered_seen(device) + sum(bool(f.process.unmetered_cause) for f in fresh)
        return fresh

    def current(self, device: DeviceUuid) -> tuple[DeviceProcess, ...]:
        """Return the unmanaged processes on the device as of the last look, without those still in their grace time."""
        return self._current.get(device, ())

    def seen(self, device: DeviceUuid) -> int:
        """Return how many unmanaged processes were found on the device so far."""
        return self._seen.get(device, 0)

    def unmetered_seen(self, device: DeviceUuid) -> int:
        """Return how many of them were started in a share of this node."""
        return self._unmetered.get(device, 0)

    def _is_allowed(self, name: str) -> bool:
        """Tell whether a process of this name may use a device without a share."""
        return any(fnmatchcase(name, pattern) for pattern in self._allowed)
