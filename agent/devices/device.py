"""The values of a device and of the node. Pure: no NVML here (`nvml.py` has it), no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import NOTHING_YET, DeviceUuid, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sharepod.agent.api.plugin import Report
    from sharepod.agent.shares.share import ShareStatus
    from sharepod.agent.shares.spending import Spent

MPS_REASON: Final = (
    "MPS serves it, and shares cannot be metered there until `echo quit | nvidia-cuda-mps-control` stops it"
)
"""The health reason of a device while an MPS server is on it."""
MODE_REASONS: Final = {
    number: f"its compute mode {name} refuses a second program with error 46, until `nvidia-smi -c DEFAULT` changes it"
    for number, name in ((1, "EXCLUSIVE_THREAD"), (2, "PROHIBITED"), (3, "EXCLUSIVE_PROCESS"))
}
"""The health reasons of a device by NVML's number of its compute mode."""
UNFIT_REASONS: Final = frozenset({MPS_REASON, *MODE_REASONS.values()})
"""Reasons why a device without a fault is of no use to shares."""
NOT_LISTED: Final = "NVML does not list it"
"""The health reason of a missing device that shares hold, or that an earlier agent had."""
STANDS_IN: Final = "GPU-at-"
"""The beginning of a name that stands for the UUID of a GPU that cannot tell it."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The facts about a device that do not change. memory_total_bytes 0: not known (unified memory)."""

    uuid: DeviceUuid
    index: int
    name: str
    memory_total_bytes: int
    numa_node: int = -1
    """The NUMA node of its bus; -1: not known."""
    nvlink_peers: tuple[int, ...] = ()
    """Indices of the devices that NVLink connects it to."""
    address: str = ""
    """The address of its GPU on the PCI bus as the kernel writes it, like 0000:3b:00.0; empty: not known."""


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A GPU or a MIG instance that NVML could not describe when the agent started."""

    place: int
    """The place of the GPU in NVML's list."""
    index: int
    """The index that is kept free for it."""
    reason: str
    uuid: DeviceUuid | None = None
    """None: it cannot tell."""
    address: str = ""
    """As in DeviceInfo."""

    @property
    def name(self) -> DeviceUuid:
        """Return its UUID. If that is not known, a name by its address, or by its place, stands for it."""
        return self.uuid or DeviceUuid(f"{STANDS_IN}{self.address or f'place-{self.place}'}")


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that NVML sees on a device."""

    pid: int
    name: str
    memory_used_bytes: int
    region: str = ""
    """The region that its environment names; empty if it names none, or may not be read."""
    mps_client: bool = False
    """It is a client of MPS, or its environment makes it one."""
    without_hook: str = ""
    """Why the process cannot have the hook; empty if no reason was found."""
    unmetered_cause: str = ""
    """Why the process runs unmetered although it was started in a share of this node; empty for other processes."""


@dataclass(frozen=True, slots=True)
class DeviceLook:
    """What one look through NVML found on a device. `error` is empty if the device answered."""

    uuid: DeviceUuid
    error: str = ""
    gone: bool = False
    """The error is that the device is missing: it has fallen off the bus, or is not listed."""
    memory_used_bytes: int = 0
    processes: tuple[DeviceProcess, ...] = ()
    xids: tuple[int, ...] = ()
    """Xid events since the last look, application errors included."""
    needs_reset: bool = False
    """The driver says that the device must be reset or drained before it works again."""
    unfit: str = ""
    """One of UNFIT_REASONS; empty if none applies."""
    found: tuple[DeviceInfo, ...] = ()
    """The facts of a missing device that has just been found, without their indices.

    A GPU that could not tell its UUID may turn out to be several: the MIG instances of that GPU."""


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """The arbiter's counters of a device since the agent started. `decision_ns`: the time that the decisions took."""

    charged_ns: int = 0
    decisions: int = 0
    decision_ns: int = 0
    hand_offs: Histogram = NOTHING_YET
    """Times from the end of one share's turn to the grant of the next share's."""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device at one instant. `health_reason` is empty when it is healthy."""

    info: DeviceInfo
    health_reason: str = ""
    memory_used_bytes: int = 0
    requested_millipercent: int = 0
    """The sum of requests, without those of shares that yield."""
    yielded_millipercent: int = 0
    """Requests of shares that yield."""
    memory_promised_bytes: int = 0
    counters: DeviceCounters = DeviceCounters()
    unmanaged: tuple[DeviceProcess, ...] = ()
    unmanaged_seen: int = 0
    """Processes without a share found since the agent started."""
    unmetered_seen: int = 0
    """The number of those that were started in a share of this node."""
    context_bytes: int = 0
    """The memory that a context takes on it; 0: not known."""
    xids_seen: int = 0
    """Xid events since the agent started."""

    @property
    def healthy(self) -> bool:
        """True when work can run on it."""
        return not self.health_reason


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Everything the node knows at one instant (`now_ns`: CLOCK_MONOTONIC)."""

    now_ns: int
    shares: tuple[ShareStatus, ...]
    devices: tuple[DeviceStatus, ...]
    plugin: Report | None = None
    """The device plugin's counters; None: it has not reported lately."""
    ended: tuple[ShareStatus, ...] = ()
    """Shares that have ended lately, with their last accounts."""
    spent: tuple[Spent, ...] = ()
    """Device time used, by namespace, workload and user."""


def matched(
    unlisted: Sequence[Unlisted], absent: Sequence[DeviceInfo]
) -> tuple[dict[DeviceUuid, Unlisted], list[Unlisted]]:
    """Match devices that NVML cannot describe now with devices that an earlier agent had and that are absent.

    Return the matches by the UUIDs of `absent`, and the `unlisted` ones that no earlier agent had. A GPU may match
    several absent devices: it was in MIG mode, and its instances have its address. If neither UUID nor address can be
    compared, a device matches the absent one with its index, else any that is left. The surest rule goes first.
    """
    found: dict[DeviceUuid, Unlisted] = {}
    rules: tuple[Callable[[Unlisted, DeviceInfo], bool], ...] = (
        lambda one, info: one.uuid == info.uuid,
        lambda one, info: one.uuid is None and one.address == info.address != "",
        lambda one, info: one.uuid is None and not (one.address and info.address) and one.index == info.index,
        lambda one, info: one.uuid is None and not (one.address and info.address),
    )
    left = list(unlisted)
    for rule in rules:
        for one in list(left):
            free = [info for info in absent if info.uuid not in found]
            first = next((info for info in free if rule(one, info)), None)
            if first is None:
                continue
            found[first.uuid] = one
            if one.uuid is None and first.address:  # the others of its GPU, which was in MIG mode
                found |= {info.uuid: one for info in free if info.address == first.address}
            left.remove(one)
    return found, left
