"""Counts what the plugin does, for the agent's metrics: `agent/plugin.py` says what is counted. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from sharepod.agent.plugin import CALL_BOUNDS_NS, SIDES, STARTS, PluginReport
from sharepod.agent.share import Histogram

if TYPE_CHECKING:
    from sharepod.agent.share import DeviceUuid


class Times:
    """How long the calls of one kind took."""

    def __init__(self) -> None:
        self._counts = [0] * (len(CALL_BOUNDS_NS) + 1)
        self._sum_ns = 0

    def add(self, took_ns: int) -> None:
        """Count one call."""
        self._counts[bisect_left(CALL_BOUNDS_NS, took_ns)] += 1
        self._sum_ns += took_ns

    def histogram(self) -> Histogram:
        """Return all of them."""
        return Histogram(tuple(self._counts), self._sum_ns)


class Tally:
    """The counters of one plugin."""

    def __init__(self) -> None:
        self.allocate = Times()
        self.pre_start = Times()
        self.registrations = 0
        self._starts = dict.fromkeys(STARTS, 0)
        self._errors = dict.fromkeys(SIDES, 0)

    def started(self, result: str, took_ns: int) -> None:
        """Count the start of a container that ended so (one of STARTS)."""
        self._starts[result] += 1
        self.pre_start.add(took_ns)

    def registered(self) -> None:
        """Count a registration with kubelet."""
        self.registrations += 1

    def failed(self, side: str) -> None:
        """Count a call that one of SIDES did not answer, or not as it should."""
        self._errors[side] += 1

    def report(
        self,
        *,
        serving: bool,
        allocations: int,
        unbound: int,
        rival_devices: int,
        offer: frozenset[DeviceUuid] | None = None,
    ) -> PluginReport:
        """Return the counters, with what the plugin holds and gives out now."""
        return PluginReport(
            serving=serving,
            allocations=allocations,
            unbound=unbound,
            rival_devices=rival_devices,
            registrations=self.registrations,
            starts=dict(self._starts),
            errors=dict(self._errors),
            allocate=self.allocate.histogram(),
            pre_start=self.pre_start.histogram(),
            offer=offer,
        )
