"""The values of a share: terms, state, usage. Pure: values in, values out; no clock, no file, no grpc.

Percentages are integers of 1/1000 % ("millipercent"), memory is bytes, times are ns.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NewType

from sharepod.agent._native_usage import METRICS, Numbers
from sharepod.agent.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

ShareId = NewType("ShareId", str)
DeviceUuid = NewType("DeviceUuid", str)
Handle = NewType("Handle", int)
"""The arbiter's number of a share or device; valid for one run of the agent."""

ID_LETTERS: Final = "abcdefghjkmnpqrstuvwxyz23456789"
ID_LENGTH: Final = 10
SHARE_ID: Final = re.compile(f"[{ID_LETTERS}]{{{ID_LENGTH}}}")
"""Must match the whole id, which becomes the name of a directory."""
MIB: Final = 2**20
WHOLE_MILLIPERCENT: Final = 100_000
LEAST_MILLIPERCENT: Final = 1_000
DEVICES_MAX: Final = 16
"""The most devices that one share can have: SP_DEVICES_MAX of region/region.h."""
LABELS_MAX: Final = 16

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_KEY: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE_MAX: Final = 253
_GANG_MAX: Final = 253
_GANG: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._/-]{{0,{_GANG_MAX - 1}}}")


class ShareClass(enum.IntEnum):
    """How a share is ranked. Values as in `struct sp_terms`."""

    LATENCY = 0
    STANDARD = 1
    BATCH = 2


class ShareState(enum.IntEnum):
    """What a share does on a device. Values as in `struct sp_usage`."""

    IDLE = 0
    WAITING = 1
    HOLDING = 2
    DRAINING = 3
    PAUSED = 4


def percent_text(millipercent: int) -> str:
    """Write 30000 as "30 %" and 12500 as "12.5 %"."""
    return f"{millipercent / 1000:.3f}".rstrip("0").rstrip(".") + " %"


def bytes_text(size: int) -> str:
    """Write a size in the largest binary unit that it fills, with decimals only where needed: "10 GiB", "1.50 KiB"."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size // scale} {unit}" if size % scale == 0 else f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a share holds of one device.

    request_millipercent: 0 (best effort) or 1000..100000. limit_millipercent: max(1000, request)..100000.
    memory_limit_bytes: 0 is no cap.
    """

    request_millipercent: int
    limit_millipercent: int
    memory_limit_bytes: int

    def __post_init__(self) -> None:
        """Raise InvalidInput when a value is out of range or contradicts another."""
        request, limit, memory = self.request_millipercent, self.limit_millipercent, self.memory_limit_bytes
        if request != 0 and not LEAST_MILLIPERCENT <= request <= WHOLE_MILLIPERCENT:
            raise InvalidInput(
                f"request {percent_text(request)} is outside 1–100 %: "
                "give a percentage of one device's time, or 0 for what the others leave"
            )
        if not LEAST_MILLIPERCENT <= limit <= WHOLE_MILLIPERCENT:
            raise InvalidInput(
                f"limit {percent_text(limit)} is outside 1–100 %: give the most it may use of one device"
            )
        if limit < request:
            raise InvalidInput(
                f"limit {percent_text(limit)} is below request {percent_text(request)}: "
                "raise the limit or lower the request"
            )
        if memory < 0:
            raise InvalidInput(f"memory {memory} bytes is below 0: give a size, or 0 for no cap")


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """A request for a part of one device; `device` is a UUID, an index as text, or empty for the best fit.

    memory_in_proportion: the cap is the same part of the chosen device's memory as the request is of its time.
    """

    device: str
    terms: Terms
    memory_in_proportion: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidInput when the cap is given twice."""
        if self.memory_in_proportion and self.terms.memory_limit_bytes:
            raise InvalidInput(
                f"memory {bytes_text(self.terms.memory_limit_bytes)} is given together with memory in proportion to "
                "the request: give one of them"
            )

    def terms_on(self, memory_total_bytes: int) -> Terms:
        """Return the terms on a device with that much memory (0: not known, and then no cap in proportion).

        A cap in proportion is rounded down to a MiB, so that requests of 100 % together never ask for more than there
        is. It is at least one MiB, for 0 would be no cap.
        """
        if not self.memory_in_proportion or not memory_total_bytes or not self.terms.request_millipercent:
            return self.terms
        part = memory_total_bytes * self.terms.request_millipercent // WHOLE_MILLIPERCENT
        return replace(self.terms, memory_limit_bytes=max(MIB, part - part % MIB))


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise InvalidInput when labels are too many or malformed."""
    if len(labels) > LABELS_MAX:
        raise InvalidInput(f"{len(labels)} labels are more than {LABELS_MAX}: drop some")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or len(value) > _LABEL_VALUE_MAX or not value.isprintable():
            raise InvalidInput(
                f"label {key[:80]!r} is malformed: keys are 1–63 letters, digits, '-', '_', '.', '/', "
                f"values at most {_LABEL_VALUE_MAX} printable characters"
            )


def check_gang(gang: str) -> None:
    """Raise InvalidInput when a gang's name is malformed."""
    if gang and not _GANG.fullmatch(gang):
        raise InvalidInput(
            f"gang {gang[:80]!r} is no gang's name: use 1–{_GANG_MAX} letters, digits, '-', '_', '.', '/'"
        )


@dataclass(frozen=True, slots=True)
class ShareAsk:
    """A share as a client asks for it, before a device is chosen."""

    devices: tuple[DeviceAsk, ...]
    name: str = ""
    share_class: ShareClass = ShareClass.STANDARD
    owner_pid: int = 0
    owner_start_ticks: int = 0
    """When the owner started, if the kernel has named it; 0: the caller has."""
    labels: Mapping[str, str] = field(default_factory=dict)
    id: ShareId = ShareId("")
    """The id for the share; empty: the agent draws one."""
    owner: str = ""
    """The digest of its owner's token; empty: operators alone change it."""
    gang: str = ""
    """The name of its gang: shares of the same gang get their devices together. Empty: it is in no gang."""

    def __post_init__(self) -> None:
        """Raise InvalidInput when an id, name, label, gang, pid or the number of devices is out of range."""
        if self.id and not SHARE_ID.fullmatch(self.id):
            raise InvalidInput(
                f"id {self.id[:80]!r} is no share id: use {ID_LENGTH} of {ID_LETTERS}, or none and the agent draws one"
            )
        if self.name and not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"name {self.name[:80]!r} is no share name: use 1–63 letters, digits, '-', '_', '.', "
                "with a letter or digit at both ends"
            )
        if not 1 <= len(self.devices) <= DEVICES_MAX:
            raise InvalidInput(f"{len(self.devices)} devices asked for, outside 1–{DEVICES_MAX}: split the share")
        if self.owner_pid < 0:
            raise InvalidInput(f"owner pid {self.owner_pid} is below 0: give a process id, or 0 for no owner")
        check_labels(self.labels)
        check_gang(self.gang)


@dataclass(frozen=True, slots=True)
class DeviceTerms:
    """The terms of a share on a chosen device."""

    device: DeviceUuid
    terms: Terms


@dataclass(frozen=True, slots=True)
class Share:
    """An admitted share."""

    id: ShareId
    devices: tuple[DeviceTerms, ...]
    share_class: ShareClass
    directory: str
    registered_unix_ns: int
    name: str = ""
    owner_pid: int = 0
    owner_start_ticks: int = 0
    """Start time of the owner in /proc/PID/stat: tells it from a later process with the same pid."""
    labels: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False
    yielding: bool = False
    """Paused to make room: its requests count as not promised. Never without `paused`."""
    owner: str = ""
    """The digest of its owner's token; empty: operators alone change it. Never listed."""
    gang: str = ""
    """The name of its gang: an owner's shares with the same name get their devices together, and none runs while one is
    paused. Empty: it is in no gang."""
    ownerless: bool = False
    """The share had an owner, but no record of the owner is left: it ends when it has no process any more."""

    def is_gang_of(self, other: Share) -> bool:
        """Tell whether both are in one gang: it is named by its owner and its name."""
        return bool(self.gang) and (self.owner, self.gang) == (other.owner, other.gang)

    @property
    def title(self) -> str:
        """The name when there is one, else the id."""
        return self.name or self.id

    @property
    def container(self) -> str:
        """The container that it was made for, as `sharepod ps` shows it: namespace/pod/name; empty: none is known."""
        return "/".join(self.labels[key] for key in ("namespace", "pod", "container") if self.labels.get(key))

    @property
    def log_fields(self) -> dict[str, object]:
        """The fields that name the share in a line of the log."""
        pod = {name: self.labels[name] for name in ("namespace", "pod") if name in self.labels}
        return {"share": self.id, "share_name": self.name, **pod, "devices": [held.device for held in self.devices]}


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies between the host's memory and a device's: `struct sp_copies`."""

    to_device_bytes: int = 0
    to_host_bytes: int = 0
    to_device_count: int = 0
    to_host_count: int = 0

    def __add__(self, other: Copies) -> Copies:
        """Return the sum of both."""
        return Copies(
            self.to_device_bytes + other.to_device_bytes,
            self.to_host_bytes + other.to_host_bytes,
            self.to_device_count + other.to_device_count,
            self.to_host_count + other.to_host_count,
        )


NO_COPIES: Final = Copies()


@dataclass(frozen=True, slots=True)
class Usage(Numbers):
    """The account of a share on one device: `struct sp_usage`. Its numbers are rows of usage.def."""

    gone_copies: Copies = NO_COPIES
    """The part of the host copies that gone processes made: the slots do not report these again."""
    state: ShareState = ShareState.IDLE
    gang_device: Handle = Handle(-1)
    """The device for which the share's gang waits before it may have this one; -1: none."""

    @property
    def copies(self) -> Copies:
        """Return the host copies, which pass no gate and are not billed."""
        return Copies(
            self.host_to_device_bytes,
            self.device_to_host_bytes,
            self.host_to_device_copies,
            self.device_to_host_copies,
        )


NUMBERS: Final = tuple(METRICS)
"""The names of the numbers of an account."""
COUNTERS: Final = tuple(name for name, (metric, _) in METRICS.items() if metric.endswith("_total"))
"""The numbers that count from the share's registration on."""

TURN_BOUNDS_NS: Final = tuple(
    round(bound_ms * 1_000_000) for bound_ms in (0.1, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
)
"""sp_turn_bounds_ns of arbiter.h: the bounds of waits and turns."""
HAND_OFF_BOUNDS_NS: Final = tuple(
    round(bound_us * 1000) for bound_us in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000)
)
"""sp_hand_off_bounds_ns of arbiter.h."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram of durations: `struct sp_histogram`."""

    counts: tuple[int, ...] = (0,) * (len(TURN_BOUNDS_NS) + 1)
    """A count for each bound: of durations up to it, but above the bound before; the last count: of the rest."""
    sum_ns: int = 0

    @property
    def seconds(self) -> tuple[tuple[int, ...], float]:
        """Return the counts, and the sum in seconds."""
        return self.counts, self.sum_ns / 1e9


NOTHING_YET: Final = Histogram()


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Usage of a share on one device with its recent rates (1/1000 % of the device's time)."""

    device: DeviceUuid
    usage: Usage
    used_1s_millipercent: int = 0
    used_1m_millipercent: int = 0
    used_15m_millipercent: int = 0
    waited_1m_millipercent: int = 0
    gang_device: DeviceUuid | None = None
    """Another device of the share's gang, for which this one waits."""
    waits: Histogram = NOTHING_YET
    """Times from the request of a turn to its grant, of the turns finished since this agent has had the share."""
    turns: Histogram = NOTHING_YET
    """Times from the grant to the drain, of the same turns."""


@dataclass(frozen=True, slots=True)
class Process:
    """One live process of a share; `pid` is in the agent's pid namespace."""

    pid: int
    slot: int
    launches: int
    memory_used_bytes: int


@dataclass(frozen=True, slots=True)
class Holding:
    """Device memory that one process of a share is charged with on one device."""

    pid: int
    slot: int
    memory_used_bytes: int
    context_bytes: int
    """The part of that which was reserved for contexts before they were made: an estimate."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something that went wrong in a process, as its hook reports it (`struct sp_diagnostic`): a tenant's word."""

    number: int
    """Counts from 1 in each share."""
    pid: int
    """0: not known, for example because the process was gone."""
    kind: int
    """`enum sp_diagnostic_kind` of region/region.h."""
    detail: int
    function: str = ""
    """The name of the driver function that the detail stands for; empty if it stands for none that is known."""


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """A share with its usage (one entry per device, in the order of `share.devices`) at one instant."""

    share: Share
    usages: tuple[DeviceUsage, ...]
    processes: tuple[Process, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    """The last diagnostics of its processes, oldest first."""
    region_fault: str = ""
    """Why programs that start now cannot use its region; empty if they can."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished turn; times are CLOCK_MONOTONIC ns, `end` as in `struct sp_turn.reason`.

    `requested_ns`: when the share began to wait; `closed_ns`: when it might launch no more; `cogranted`: another share
    was granted before this one had drained.
    """

    sequence: int
    share: Handle
    device: Handle
    requested_ns: int
    granted_ns: int
    closed_ns: int
    drained_ns: int
    charged_ns: int
    end: int
    cogranted: bool
