"""Counts what the plugin does, for the agent's metrics. `agent/api/plugin.py` lists what is counted. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from sharepod.agent.api.plugin import CALL_BOUNDS_NS, Report, nothing_yet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sharepod.proto import v1_pb2 as pb


class Times:
    """Counts how long the calls of one kind took."""

    def __init__(self, times: pb.CallTimes) -> None:
        """`times` is the part of the report for these calls: it is counted there."""
        self._times = times

    def add(self, took_ns: int) -> None:
        """Count a call of this duration: in its bucket (see CALL_BOUNDS_NS), and in the sum."""
        self._times.counts[bisect_left(CALL_BOUNDS_NS, took_ns)] += 1
        self._times.sum_ns += took_ns


class Counters:
    """The counters of one plugin."""

    def __init__(self) -> None:
        self._counts = nothing_yet()
        """A report in which only the counters are filled in."""
        self.allocate = Times(self._counts.allocate)
        self.pre_start = Times(self._counts.pre_start)

    def started(self, result: str, took_ns: int) -> None:
        """Count the start of a container: its result, one of STARTS, and how long PreStartContainer took."""
        self._counts.starts[result] += 1
        self.pre_start.add(took_ns)

    def registered(self) -> None:
        """Count a registration with kubelet."""
        self._counts.registrations += 1

    def failed(self, side: str) -> None:
        """Count a failed call to `side`, one of SIDES: it did not answer, or not as it should."""
        self._counts.errors[side] += 1

    def report(
        self,
        *,
        serving: bool,
        allocations: int,
        unbound: int,
        rival_devices: int,
        offer: Iterable[str] | None = None,
    ) -> Report:
        """Return the report: the counters so far, and these present values.

        `serving`: the plugin is registered with kubelet. `allocations`: how many there are. `unbound`: how many of them
        no container has begun to use. `rival_devices`: how many devices NVIDIA's plugin gives out, too. `offer`: the
        UUIDs of the devices that this plugin gives out; None: the report does not tell.
        """
        report = Report(
            serving=serving, allocations=allocations, unbound_allocations=unbound, rival_devices=rival_devices
        )
        report.MergeFrom(self._counts)
        if offer is not None:
            report.offer.device_uuids[:] = sorted(offer)
        return report
