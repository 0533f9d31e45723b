"""The counters that the node's device plugin reports to the agent every few seconds. Pure.

The plugin itself opens no port. A second port would need its own certificate, token, network policy and entry in the
PodMonitor; the agent has all of these, runs in the same pod, and is one gRPC call away. The counters are kept in the
plugin, so they continue when the agent restarts. A report that is older than STALE_NS is not shown: a plugin that hangs
or is gone must not look healthy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.agent.errors import InvalidInput
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

Report = pb.ReportPluginRequest

STALE_NS: Final = 30_000_000_000
CALL_BOUNDS_NS: Final = tuple(
    round(bound_ms * 1_000_000) for bound_ms in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
)
"""Bounds of the histogram of the time that kubelet's calls take."""
STARTS: Final = ("ready", "no_room", "waiting", "refused", "failed")
"""How the start of a container ended: with a share; without room; waiting, because kubelet, API server or agent is away
or behind (kubelet tries again); refused, because the pod asks for something impossible; failed by a fault of ours."""
SIDES: Final = ("api_server", "kubelet", "agent")
"""The services that the plugin calls."""


def nothing_yet() -> Report:
    """Return the report of a plugin that has counted nothing."""
    return Report(
        starts=dict.fromkeys(STARTS, 0),
        errors=dict.fromkeys(SIDES, 0),
        allocate=pb.CallTimes(counts=[0] * (len(CALL_BOUNDS_NS) + 1)),
        pre_start=pb.CallTimes(counts=[0] * (len(CALL_BOUNDS_NS) + 1)),
    )


def check(report: Report) -> None:
    """Raise InvalidInput if the report has other keys or counts than this version of the plugin sends."""
    for what, given, known in (("starts", report.starts, STARTS), ("errors", report.errors, SIDES)):
        if set(given) != set(known):
            raise InvalidInput(f"{what} of the plugin are {', '.join(sorted(given))}: they are {', '.join(known)}")
    for times in (report.allocate, report.pre_start):
        if len(times.counts) != len(CALL_BOUNDS_NS) + 1:
            raise InvalidInput(f"{len(times.counts)} counts of the plugin's calls: give {len(CALL_BOUNDS_NS) + 1}")


def seconds(times: pb.CallTimes) -> tuple[Sequence[int], float]:
    """Return the counts of a histogram of calls, and the sum of their times in seconds."""
    return times.counts, times.sum_ns / 1e9


def fresh(told: tuple[int, Report] | None, now_ns: int) -> Report | None:
    """Return the report in `told`, a pair of its time and itself; None: there is none, or it is stale."""
    return told[1] if told is not None and now_ns - told[0] <= STALE_NS else None
