"""The device plugin's metrics, from the counters that it reports to `api/plugin.py`; one of `collector.py`'s tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.agent.api.plugin import CALL_BOUNDS_NS, SIDES, STARTS, Report, seconds
from sharepod.process.metrics import HistogramRow, Row, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sharepod.process.metrics import AnyTable

Told = tuple[str, Report | None]
"""The node's name and its plugin's report; None: there is none."""
CALL_BOUNDS_S: Final = tuple(bound_ns / 1e9 for bound_ns in CALL_BOUNDS_NS)

REPORTING: Final[Row[Report | None]] = Row(
    "sharepod_plugin_reporting",
    "1 while the node's device plugin hands over its counters, 0 when it has not for 30 s, and on nodes without one. "
    "The other metrics of the plugin have series only while this is 1.",
    lambda report: float(report is not None),
)
ROWS: Final[tuple[Row[Report] | HistogramRow[Report], ...]] = (
    Row("sharepod_plugin_serving", "1 while kubelet has the plugin.", lambda r: float(r.serving)),
    Row("sharepod_plugin_registrations_total", "Registrations with kubelet.", lambda r: r.registrations),
    Row("sharepod_plugin_allocations", "Allocations: units given out for a container each.", lambda r: r.allocations),
    Row(
        "sharepod_plugin_unbound_allocations",
        "Those of them that no container has begun to use.",
        lambda r: r.unbound_allocations,
    ),
    Row(
        "sharepod_plugin_rival_devices",
        "Devices that NVIDIA's device plugin gives out as well: they take no new shares.",
        lambda r: r.rival_devices,
    ),
    HistogramRow(
        "sharepod_plugin_allocate_seconds",
        "How long kubelet's Allocate took.",
        CALL_BOUNDS_S,
        lambda r: seconds(r.allocate),
    ),
    HistogramRow(
        "sharepod_plugin_pre_start_seconds",
        "How long kubelet's PreStartContainer took, the wait for room included.",
        CALL_BOUNDS_S,
        lambda r: seconds(r.pre_start),
    ),
)
START_ROWS: Final[tuple[Row[int], ...]] = (
    Row(
        "sharepod_plugin_container_starts_total",
        "Starts of containers, by how they ended: ready with a share; no_room; waiting for kubelet, API server or "
        "agent; refused for what the pod asks; failed through a fault of ours. All but the first are tried again.",
        float,
    ),
)
ERROR_ROWS: Final[tuple[Row[int], ...]] = (
    Row(
        "sharepod_plugin_errors_total",
        "Calls that failed, by the service that was called: api_server, kubelet (pod-resources) or agent.",
        float,
    ),
)


def _of_report(told: Told) -> list[tuple[tuple[str], Report]]:
    """Return the report with the values of its labels, as a table's only source; nothing if there is no report."""
    node, report = told
    return [] if report is None else [((node,), report)]


def _counts(
    of: Callable[[Report], Mapping[str, int]],
) -> Callable[[Told], list[tuple[tuple[str, str], int]]]:
    """Return the source of a table with a count for each key; `of` takes the counts from a report."""
    return lambda told: [
        ((node, key), count) for (node,), report in _of_report(told) for key, count in of(report).items()
    ]


TABLES: Final[tuple[AnyTable[Told], ...]] = (
    Table("Device plugin, whether it reports", {"node": ()}, (REPORTING,), lambda told: [((told[0],), told[1])]),
    Table("Device plugin", {"node": ()}, ROWS, _of_report),
    Table("Device plugin, by result", {"node": (), "result": STARTS}, START_ROWS, _counts(lambda r: r.starts)),
    Table("Device plugin, by side", {"node": (), "side": SIDES}, ERROR_ROWS, _counts(lambda r: r.errors)),
)
