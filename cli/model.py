"""The agent's answers as values: shares, devices, the node. Pure; `client` makes them from protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Terms and account of a share on one device. Percentages are thousandths of a percent."""

    device_uuid: str
    device_index: int
    request_millipercent: int
    limit_millipercent: int
    memory_limit_bytes: int
    state: str
    used_ns: int
    charged_ns: int
    estimated_ns: int
    waited_ns: int
    overrun_ns: int
    turns: int
    launches: int
    passed: int
    cogrants: int
    faults: int
    memory_used_bytes: int
    memory_overhead_bytes: int
    memory_refusals: int
    memory_refused_bytes: int
    host_to_device_bytes: int
    device_to_host_bytes: int
    host_to_device_copies: int
    device_to_host_copies: int
    processes: int
    used_1s_millipercent: int
    used_1m_millipercent: int


@dataclass(frozen=True, slots=True)
class Process:
    """One live process of a share."""

    pid: int
    slot: int
    launches: int
    memory_used_bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """One share."""

    id: str
    name: str
    share_class: str
    devices: tuple[DeviceShare, ...]
    processes: tuple[Process, ...]
    owner_pid: int
    labels: Mapping[str, str]
    paused: bool
    directory: str
    yielding: bool = False
    """Paused to make room: its device time counts as not promised."""
    gang: str = ""
    """Shares with the same one get their devices together; empty: by itself."""

    @property
    def label(self) -> str:
        """The name people gave it, else its id."""
        return self.name or self.id


@dataclass(frozen=True, slots=True)
class Ask:
    """What `sharepod run` asks for: the same terms on each of `devices`, until the process `owner_pid` ends."""

    name: str
    devices: tuple[str, ...]
    request_millipercent: int
    limit_millipercent: int
    memory_limit_bytes: int
    share_class: str
    owner_pid: int
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """A share that was admitted, and what a program needs to run in it."""

    share: Share
    environment: Mapping[str, str]
    hook_path: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a share runs or waits on one device."""

    device_uuid: str
    state: str
    reason: str
    facts: tuple[str, ...]
    holder_share_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process on a device that belongs to no share."""

    pid: int
    name: str
    memory_used_bytes: int


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the node."""

    uuid: str
    index: int
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    healthy: bool
    health_reason: str
    requested_millipercent: int
    charged_ns: int
    foreign_processes: tuple[ForeignProcess, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """The node and its agent."""

    node_name: str
    version: str
    region_abi_version: int
    features: tuple[str, ...]
    agent_pid: int
    devices: tuple[Device, ...]
    driver_version: str
    runtime_directory: str
    policy: str
    environment: Mapping[str, str]
    hook_path: str
    """The hook that programs get; empty from an agent that does not say."""

    @property
    def simulated(self) -> bool:
        """Whether the devices are simulated."""
        return "simulated" in self.features


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Shares and devices at one instant of the node's CLOCK_MONOTONIC."""

    now_ns: int
    shares: tuple[Share, ...]
    devices: tuple[Device, ...] = ()
