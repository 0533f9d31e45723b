"""Defines the scheduler's metrics, one row each; docs/scheduler-metrics.md is generated from the tables.

The metrics of the gate controller are in gate_metrics.py. `python -m sharepod.scheduler.metrics` prints the page.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.process import metrics
from sharepod.process.metrics import Row, Table
from sharepod.scheduler import gate_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod.process.metrics import AnyTable


@dataclass(frozen=True, slots=True)
class Look:
    """The scheduler's numbers at one moment."""

    ready: bool
    nodes_by_state: Mapping[str, int]
    """By one of STATES."""
    pods_by_state: Mapping[str, int]
    """By one of POD_STATES."""
    devices: int
    left: float
    """The unpromised time of all devices, in devices."""
    wasted: float
    """The part of `left` that the most expected pods could not use, in devices."""
    lag_s: float
    """Age of the oldest last report among the nodes that are not silent."""
    streams: int
    stream_ends: Mapping[str, int]


STATES: Final = ("reporting", "silent")
POD_STATES: Final = ("bound", "waiting", "assumed", "homeless")
ROWS: Final[tuple[Row[Look], ...]] = (
    Row("sharepod_scheduler_ready", "1 when pods can be placed.", lambda k: float(k.ready)),
    Row("sharepod_scheduler_devices", "Devices of the nodes that report.", lambda k: k.devices),
    Row("sharepod_scheduler_devices_left", "What is left of them, in devices.", lambda k: k.left),
    Row(
        "sharepod_scheduler_devices_wasted",
        "Of what is left, what the pods that come most could not use, in devices.",
        lambda k: k.wasted,
    ),
    Row(
        "sharepod_scheduler_feed_lag_seconds",
        "How long ago the slowest of the nodes that report has done so: up to 11 s when all is well.",
        lambda k: k.lag_s,
    ),
    Row("sharepod_scheduler_feed_streams", "Agents that are connected.", lambda k: k.streams),
)
NODES: Final[Row[int]] = Row(
    "sharepod_scheduler_nodes",
    "Nodes with an agent: reporting, or silent for so long that they get no pods.",
    float,
)
PODS: Final[Row[int]] = Row(
    "sharepod_scheduler_pods",
    "Pods with shares: bound; waiting for a node; of the waiting ones, assumed to be where they were sent; of those "
    "that have a node, homeless as they fit on no device there.",
    float,
)
ENDS: Final[Row[int]] = Row(
    "sharepod_scheduler_feed_streams_ended_total",
    "Agents' streams that were ended, by why.",
    float,
)
TABLES: Final[tuple[AnyTable[Look], ...]] = (
    Table("The scheduler", {}, ROWS, lambda k: [((), k)]),
    Table("Nodes", {"state": STATES}, (NODES,), lambda k: [((one,), k.nodes_by_state.get(one, 0)) for one in STATES]),
    Table("Pods", {"state": POD_STATES}, (PODS,), lambda k: [((o,), k.pods_by_state.get(o, 0)) for o in POD_STATES]),
    Table("Agents' streams", {"why": ()}, (ENDS,), lambda k: [((why,), n) for why, n in sorted(k.stream_ends.items())]),
)


def manual() -> str:
    """Return the text of docs/scheduler-metrics.md, made of the tables of both modules."""
    introduction = (
        "Generated from `scheduler/metrics.py` and `gate_metrics.py` by `python -m sharepod.scheduler.metrics`; a test",
        "compares them. Each replica serves its own, at `--metrics-listen`. Series are there from the start, at zero.",
        "",
        "The replica that decides tells what waits; the others have 0. Of queues",
        f"{gate_metrics.QUEUES_MAX} are told by name, and as many that have rules, in the order in which they came;",
        f"all the rest together are `{gate_metrics.OTHER}`.",
    )
    return metrics.manual("Metrics of SharePod's scheduler", introduction, (*TABLES, *gate_metrics.TABLES))


if __name__ == "__main__":
    sys.stdout.write(manual())
