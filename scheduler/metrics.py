"""The extender's metrics: adding one is one row here; docs/scheduler-metrics.md is generated from the tables.

Those of gates and of who yields are in gate_metrics.py.

`python -m sharepod.scheduler.metrics` prints it. What is counted is in `Tally`; the rest is read when it is asked for.
"""

from __future__ import annotations

import bisect
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sharepod.process import metrics
from sharepod.process.metrics import HistogramRow, Row, Table
from sharepod.scheduler import gate_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod.process.metrics import AnyTable

VERBS: Final = ("filter", "prioritize", "preempt")
RESULTS: Final = ("ok", "refused", "error")
BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class Tally:
    """What was decided so far. Written and read on the extender's loop."""

    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By verb and result."""
    counts: dict[str, list[int]] = field(default_factory=lambda: {verb: [0] * (len(BOUNDS_S) + 1) for verb in VERBS})
    """How long they took, by verb: by the first of the bounds that it does not exceed; the last: by none."""
    sums_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(VERBS, 0.0))

    def decided(self, verb: str, seconds: float, result: str) -> None:
        """Count one answer to kube-scheduler."""
        self.decisions[verb, result] += 1
        self.counts[verb][bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.sums_s[verb] += seconds


@dataclass(frozen=True, slots=True)
class Look:
    """How the extender stands."""

    ready: bool
    nodes_by_state: Mapping[str, int]
    """By STATES."""
    pods_by_state: Mapping[str, int]
    """By POD_STATES."""
    devices: int
    left: float
    """Of all devices, in devices."""
    wasted: float
    """Of what is left, what the pods that are expected most could not use, in devices."""
    lag_s: float
    """How long ago the slowest of the nodes that are not silent has reported."""
    annotations_written: int
    annotations_failed: int
    streams: int
    stream_ends: Mapping[str, int]


STATES: Final = ("reporting", "silent")
POD_STATES: Final = ("bound", "waiting", "assumed", "untold", "homeless")
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
    Row(
        "sharepod_scheduler_devices_written_total",
        "Pods that were told their devices: annotations written.",
        lambda k: k.annotations_written,
    ),
    Row(
        "sharepod_scheduler_devices_write_failures_total",
        "Annotations that the API server did not take. They are written again.",
        lambda k: k.annotations_failed,
    ),
)
NODES: Final[Row[int]] = Row(
    "sharepod_scheduler_nodes",
    "Nodes with an agent: reporting, or silent for so long that they get no pods.",
    float,
)
PODS: Final[Row[int]] = Row(
    "sharepod_scheduler_pods",
    "Pods with shares: bound; waiting for a node; of the waiting ones, assumed to be where they were sent; of the "
    "bound ones, untold where they are, and homeless as they fit on no device of their node.",
    float,
)
DECISIONS: Final[Row[int]] = Row(
    "sharepod_scheduler_decisions_total",
    "Answers to kube-scheduler: ok; refused, as no node or no victim fits; error, as nothing could be decided.",
    float,
)
SECONDS: Final[HistogramRow[tuple[list[int], float]]] = HistogramRow(
    "sharepod_scheduler_decision_seconds",
    "How long they took, reading and writing JSON included.",
    BOUNDS_S,
    lambda taken: taken,
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
DECISION_TABLES: Final[tuple[AnyTable[Tally], ...]] = (
    Table(
        "Decisions", {"verb": VERBS, "result": RESULTS}, (DECISIONS,),
        lambda t: [((verb, result), t.decisions[verb, result]) for verb in VERBS for result in RESULTS],
    ),
    Table(
        "Times of decisions", {"verb": VERBS}, (SECONDS,),
        lambda t: [((verb,), (t.counts[verb], t.sums_s[verb])) for verb in VERBS],
    ),
)  # fmt: skip


def manual() -> str:
    """Return docs/scheduler-metrics.md."""
    introduction = (
        "Generated from `scheduler/metrics.py` and `gate_metrics.py` by `python -m sharepod.scheduler.metrics`; a test",
        "compares them. Each replica serves its own, at `--metrics-listen`. Series are there from the start, at zero.",
        "",
        "Those of gates are there only with `--front gates` or `--yields on`. The replica that decides tells what",
        f"waits; the others have 0. Of queues {gate_metrics.QUEUES_MAX} are told by name, and as many that have rules,",
        f"in the order in which they came; all the rest together are `{gate_metrics.OTHER}`.",
    )
    return metrics.manual(
        "Metrics of SharePod's scheduler", introduction, (*TABLES, *DECISION_TABLES, *gate_metrics.TABLES)
    )


if __name__ == "__main__":
    sys.stdout.write(manual())
