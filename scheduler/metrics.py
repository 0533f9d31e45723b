"""The scheduler's metrics: adding one is one row here; docs/scheduler-metrics.md is generated from the tables.

Those of gates are in gate_metrics.py. `python -m sharepod.scheduler.metrics` prints the page.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.agent import exposition
from sharepod.scheduler import gate_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Look:
    """How the scheduler stands."""

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
    streams: int
    stream_ends: Mapping[str, int]


STATES: Final = ("reporting", "silent")
POD_STATES: Final = ("bound", "waiting", "assumed", "homeless")
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
            "those that have a node, homeless as they fit on no device there."
        ),
        "state",
        POD_STATES,
        lambda k: k.pods_by_state,
    ),
)
_ENDS: Final = ("sharepod_scheduler_feed_streams_ended_total", "Agents' streams that were ended, by why.")


def text(look: Look) -> str:
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
    parts.append(exposition.header(_ENDS[0], "counter", _ENDS[1]))
    for why, count in sorted(look.stream_ends.items()):
        parts.append(exposition.sample(_ENDS[0], exposition.labelled(("why",), (why,))))
        values.append(count)
    return exposition.Template("".join(parts)).filled(values)


def manual() -> str:
    """Return docs/scheduler-metrics.md."""
    rows = [(name, _kind(name), "", doc) for name, doc, _ in ROWS]
    rows += [(name, _kind(name), f"`{label}`: {', '.join(known)}", doc) for name, doc, label, known, _ in LABELLED]
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
        "What waits is told by the replica that decides; others have 0.",
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
