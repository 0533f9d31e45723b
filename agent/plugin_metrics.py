"""The device plugin's metrics: the second half of the table in `metrics.py`, of what `plugin.py` holds."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from sharepod.agent import exposition
from sharepod.agent.plugin import CALL_BOUNDS_NS, SIDES, STARTS, PluginReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.agent.share import Histogram

REPORTING_NAME: Final = "sharepod_plugin_reporting"
REPORTING_DOC: Final = (
    "1 while the node's device plugin hands over its counters, 0 when it has not for 30 s, and on nodes without one. "
    "The other series of the plugin are there only while this is 1."
)

ROWS: Final[tuple[tuple[str, str, Callable[[PluginReport], float]], ...]] = (
    ("sharepod_plugin_serving", "1 while kubelet has the plugin.", lambda r: float(r.serving)),
    ("sharepod_plugin_registrations_total", "Registrations with kubelet.", lambda r: r.registrations),
    ("sharepod_plugin_allocations", "Allocations: units given out for a container each.", lambda r: r.allocations),
    (
        "sharepod_plugin_unbound_allocations",
        "Those of them that no container has begun to use.",
        lambda r: r.unbound,
    ),
    (
        "sharepod_plugin_rival_devices",
        "Devices that NVIDIA's device plugin gives out as well: they take no new shares.",
        lambda r: r.rival_devices,
    ),
)
LABELLED_ROWS: Final[tuple[tuple[str, str, str, tuple[str, ...], Callable[[PluginReport], dict[str, int]]], ...]] = (
    (
        "sharepod_plugin_container_starts_total",
        (
            "Starts of containers, by how they ended: ready with a share; no_room; waiting for somebody who is away or "
            "behind; refused for what the pod asks; failed through a fault of ours. All but the first are tried again."
        ),
        "result",
        STARTS,
        lambda r: r.starts,
    ),
    (
        "sharepod_plugin_errors_total",
        "Calls that failed, by whom they asked: api_server, kubelet (pod-resources) or agent.",
        "side",
        SIDES,
        lambda r: r.errors,
    ),
)
HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[PluginReport], Histogram]], ...]] = (
    ("sharepod_plugin_allocate_seconds", "How long kubelet's Allocate took.", lambda r: r.allocate),
    (
        "sharepod_plugin_pre_start_seconds",
        "How long kubelet's PreStartContainer took, the wait for room included.",
        lambda r: r.pre_start,
    ),
)


def kind_of(name: str) -> str:
    """Return the Prometheus type of a row."""
    return "counter" if name.endswith("_total") else "gauge"


def text(node: str, report: PluginReport | None) -> str:
    """Return the plugin's series; None: it does not report."""
    labels = exposition.labelled(("node",), (node,))
    parts = [exposition.header(REPORTING_NAME, "gauge", REPORTING_DOC), exposition.sample(REPORTING_NAME, labels)]
    values: list[float] = [float(report is not None)]
    if report is not None:
        for name, doc, value in ROWS:
            parts += [exposition.header(name, kind_of(name), doc), exposition.sample(name, labels)]
            values.append(value(report))
        for name, doc, label, known, counts in LABELLED_ROWS:
            parts.append(exposition.header(name, kind_of(name), doc))
            for key in known:
                parts.append(exposition.sample(name, f"{labels},{exposition.labelled((label,), (key,))}"))
                values.append(counts(report)[key])
        bounds = [bound_ns / 1e9 for bound_ns in CALL_BOUNDS_NS]
        for name, doc, times in HISTOGRAMS:
            parts += [exposition.header(name, "histogram", doc), exposition.histogram(name, labels, bounds)]
            below = list(accumulate(times(report).counts))
            values += [*below, below[-1], times(report).sum_ns / 1e9]
    return exposition.Template("".join(parts)).filled(values)


def tables() -> tuple[tuple[str, tuple[str, ...], list[tuple[str, str, str]]], ...]:
    """Return title, labels and (name, type, meaning) of each table for docs/metrics.md."""
    plain = [(REPORTING_NAME, "gauge", REPORTING_DOC), *((name, kind_of(name), doc) for name, doc, _ in ROWS)]
    plain += [(name, "histogram", doc) for name, doc, _ in HISTOGRAMS]
    labelled = [
        (f"Device plugin, by {label}", ("node", label), [(name, kind_of(name), doc)])
        for name, doc, label, _, _ in LABELLED_ROWS
    ]
    return (("Device plugin", ("node",), plain), *labelled)
