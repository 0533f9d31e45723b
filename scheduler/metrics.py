"""The extender's metrics: adding one is one row here; docs/scheduler-metrics.md is generated from the tables.

Those of gates and of who yields are in gate_metrics.py.

`python -m sharepod.scheduler.metrics` prints it. What is counted is in `Tally`; the rest is read when it is asked for.
"""

from __future__ import annotations

import bisect
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from sharepod.agent import exposition
from sharepod.scheduler import gate_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
ROWS: Final[tuple[tuple[str, str, Callable[[Look], float]], ...]] = (
    ("sharepod_scheduler_ready", "1 when pods can be placed.", lambda k: float(k.ready)),
    ("sharepod_scheduler_devices", "Devices of the nodes that report.", lambda k: k.devices),
    ("sharepod_scheduler_devices_left", "What is left of them, in devices.", lambda k: k.left),
    (
        "sharepod_scheduler_devices_wasted",
        "Of what is left, what the pods that come most could not use, in devices.",
        lambda k: k.wasted,
    ),
    (
        "sharepod_scheduler_feed_lag_seconds",
        "How long ago the slowest of the nodes that report has done so: up to 11 s when all is well.",
        lambda k: k.lag_s,
    ),
    ("sharepod_scheduler_feed_streams", "Agents that are connected.", lambda k: k.streams),
    (
        "sharepod_scheduler_devices_written_total",
        "Pods that were told their devices: annotations written.",
        lambda k: k.annotations_written,
    ),
    (
        "sharepod_scheduler_devices_write_failures_total",
        "Annotations that the API server did not take. They are written again.",
        lambda k: k.annotations_failed,
    ),
)
LABELLED: Final[tuple[tuple[str, str, str, tuple[str, ...], Callable[[Look], Mapping[str, int]]], ...]] = (
    (
        "sharepod_scheduler_nodes",
        "Nodes with an agent: reporting, or silent for so long that they get no pods.",
        "state",
        STATES,
        lambda k: k.nodes_by_state,
    ),
    (
        "sharepod_scheduler_pods",
        (
            "Pods with shares: bound; waiting for a node; of the waiting ones, assumed to be where they were sent; of "
            "the bound ones, untold where they are, and homeless as they fit on no device of their node."
        ),
        "state",
        POD_STATES,
        lambda k: k.pods_by_state,
    ),
)
_DECISIONS: Final = (
    "sharepod_scheduler_decisions_total",
    "Answers to kube-scheduler: ok; refused, as no node or no victim fits; error, as nothing could be decided.",
)
_SECONDS: Final = ("sharepod_scheduler_decision_seconds", "How long they took, reading and writing JSON included.")
_ENDS: Final = ("sharepod_scheduler_feed_streams_ended_total", "Agents' streams that were ended, by why.")


def text(look: Look, tally: Tally) -> str:
    """Return all series."""
    parts: list[str] = []
    values: list[float] = []
    for name, doc, value in ROWS:
        parts += [exposition.header(name, _kind(name), doc), f"{name} \0\n"]
        values.append(value(look))
    for name, doc, label, known, counts in LABELLED:
        parts.append(exposition.header(name, _kind(name), doc))
        parts += [exposition.sample(name, exposition.labelled((label,), (key,))) for key in known]
        values += [counts(look).get(key, 0) for key in known]
    parts.append(exposition.header(_DECISIONS[0], "counter", _DECISIONS[1]))
    for verb in VERBS:
        for result in RESULTS:
            parts.append(exposition.sample(_DECISIONS[0], exposition.labelled(("verb", "result"), (verb, result))))
            values.append(tally.decisions[verb, result])
    parts.append(exposition.header(_SECONDS[0], "histogram", _SECONDS[1]))
    for verb in VERBS:
        parts.append(exposition.histogram(_SECONDS[0], exposition.labelled(("verb",), (verb,)), BOUNDS_S))
        below = list(accumulate(tally.counts[verb]))
        values += [*below, below[-1], tally.sums_s[verb]]
    parts.append(exposition.header(_ENDS[0], "counter", _ENDS[1]))
    for why, count in sorted(look.stream_ends.items()):
        parts.append(exposition.sample(_ENDS[0], exposition.labelled(("why",), (why,))))
        values.append(count)
    return exposition.Template("".join(parts)).filled(values)


def manual() -> str:
    """Return docs/scheduler-metrics.md."""
    rows = [(name, _kind(name), "", doc) for name, doc, _ in ROWS]
    rows += [(name, _kind(name), f"`{label}`: {', '.join(known)}", doc) for name, doc, label, known, _ in LABELLED]
    labels = f"`verb`: {', '.join(VERBS)}; `result`: {', '.join(RESULTS)}"
    rows += [(_DECISIONS[0], "counter", labels, _DECISIONS[1])]
    rows += [(_SECONDS[0], "histogram", f"`verb`: {', '.join(VERBS)}", _SECONDS[1])]
    rows += [(_ENDS[0], "counter", "`why`", _ENDS[1])]
    lines = [
        "# Metrics of SharePod's scheduler",
        "",
        "Each replica serves its own, at `--metrics-listen`. Series are there from the start, at zero.",
        "",
        *_table(rows),
        "",
        "## Gates, queues and who yields",
        "",
        "Only with `--front gates` or `--yields on`. What waits is told by the replica that decides; others have 0.",
        f"Of queues {gate_metrics.QUEUES_MAX} are told by name, and as many that have rules, in the order in which",
        f"they came; all the rest together are `{gate_metrics.OTHER}`.",
        "",
        *_table(gate_metrics.rows()),
    ]
    return "\n".join(lines) + "\n"


def _table(rows: list[tuple[str, str, str, str]]) -> list[str]:
    return [
        "| metric | type | labels | meaning |",
        "| --- | --- | --- | --- |",
        *(f"| `{name}` | {kind} | {labels} | {doc} |" for name, kind, labels, doc in rows),
    ]


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


if __name__ == "__main__":
    sys.stdout.write(manual())
