"""What the node's device plugin tells of itself: its counters, as it hands them over every few seconds. Pure values.

The plugin opens no port. A second one would need its own certificate, token, network policy and entry in the
PodMonitor; the agent has all of these, runs in the same pod, and is one gRPC call away. The counters live in the
plugin, so that they go on when the agent restarts. What is older than STALE_NS is not shown: a plugin that hangs or is
gone must not look well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sharepod.agent.errors import InvalidInput
from sharepod.agent.share import DeviceUuid, Histogram

STALE_NS: Final = 30_000_000_000
CALL_BOUNDS_NS: Final = tuple(
    round(bound_ms * 1_000_000) for bound_ms in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
)
"""Of the time that kubelet's calls take."""
STARTS: Final = ("ready", "no_room", "waiting", "refused", "failed")
"""How the start of a container ended: with a share; without room; somebody it needs is away or behind, kubelet tries
again; its pod asks for what cannot be; a fault of the plugin."""
SIDES: Final = ("api_server", "kubelet", "agent")
"""Those whom the plugin asks."""
NO_CALLS: Final = Histogram((0,) * (len(CALL_BOUNDS_NS) + 1))


def _none_of(names: tuple[str, ...]) -> dict[str, int]:
    return dict.fromkeys(names, 0)


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The plugin's counters since it started, and what it holds now."""

    serving: bool = False
    """Kubelet has it."""
    allocations: int = 0
    unbound: int = 0
    """Of them, those that no container has begun to use."""
    rival_devices: int = 0
    """Devices that NVIDIA's device plugin gives out as well."""
    registrations: int = 0
    starts: dict[str, int] = field(default_factory=lambda: _none_of(STARTS))
    """By STARTS."""
    errors: dict[str, int] = field(default_factory=lambda: _none_of(SIDES))
    """By SIDES."""
    allocate: Histogram = NO_CALLS
    pre_start: Histogram = NO_CALLS
    offer: frozenset[DeviceUuid] | None = None
    """The devices that pods may have shares of; None: a plugin that does not tell."""

    def __post_init__(self) -> None:
        """Raise InvalidInput when it is of another version."""
        for what, given, known in (("starts", self.starts, STARTS), ("errors", self.errors, SIDES)):
            if set(given) != set(known):
                raise InvalidInput(f"{what} of the plugin are {', '.join(sorted(given))}: they are {', '.join(known)}")
        for times in (self.allocate, self.pre_start):
            if len(times.counts) != len(NO_CALLS.counts):
                raise InvalidInput(f"{len(times.counts)} counts of the plugin's calls: give {len(NO_CALLS.counts)}")


def fresh(told: tuple[int, PluginReport] | None, now_ns: int) -> PluginReport | None:
    """Return the report of (when, what) unless it is stale."""
    return told[1] if told is not None and now_ns - told[0] <= STALE_NS else None
