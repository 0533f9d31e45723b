"""What Prometheus sees: one table of metrics, one collector that asks for the status at scrape.

Adding a metric is one row here; `docs/metrics.md` is generated from the table (`python -m sharepod.agent.metrics`).
Base units: seconds, bytes, ratios. Series exist from the start of a share or device and go when it ends.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.share import DeviceUsage, ShareState, ShareStatus, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from sharepod.agent.device import DeviceStatus, NodeStatus
    from sharepod.agent.node import Node

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Held:
    """A share on one of its devices: what a share metric is computed from."""

    status: ShareStatus
    terms: Terms
    usage: DeviceUsage


@dataclass(frozen=True, slots=True)
class Row(Generic[Source]):
    """One metric: a counter's name ends in _total."""

    name: str
    doc: str
    value: Callable[[Source], float]

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """Return the Prometheus type."""
        return "counter" if self.name.endswith("_total") else "gauge"


SHARE_LABELS: Final = ("node", "share", "name", "namespace", "pod", "container", "class", "gpu", "gpu_uuid")
DEVICE_LABELS: Final = ("node", "gpu", "gpu_uuid", "model")
INFO_LABELS: Final = ("node", "version", "region_abi", "driver_version", "policy")

SHARE_ROWS: Final[tuple[Row[Held], ...]] = (
    Row("sharepod_share_used_seconds_total", "Device time used: the bill.", lambda h: h.usage.usage.used_ns / 1e9),
    Row(
        "sharepod_share_charged_seconds_total",
        "What counts against the share: used time, and idle time of its turns that kept others out.",
        lambda h: h.usage.usage.charged_ns / 1e9,
    ),
    Row(
        "sharepod_share_estimated_seconds_total",
        "The part of used time that was shared out while turns overlapped.",
        lambda h: h.usage.usage.estimated_ns / 1e9,
    ),
    Row(
        "sharepod_share_waited_seconds_total",
        "Time with a launch waiting at the closed gate.",
        lambda h: h.usage.usage.waited_ns / 1e9,
    ),
    Row(
        "sharepod_share_overrun_seconds_total",
        "Time past the end of its quanta.",
        lambda h: h.usage.usage.overrun_ns / 1e9,
    ),
    Row("sharepod_share_turns_total", "Turns held.", lambda h: h.usage.usage.turns),
    Row("sharepod_share_launches_total", "Launches that passed the gate.", lambda h: h.usage.usage.launches),
    Row(
        "sharepod_share_passed_launches_total",
        "Launches that passed deliberately (no progress for 2 ms past the predicted end, or no agent).",
        lambda h: h.usage.usage.passed,
    ),
    Row(
        "sharepod_share_cogrants_total",
        "Turns granted to others because the share's drain was late.",
        lambda h: h.usage.usage.cogrants,
    ),
    Row(
        "sharepod_share_faults_total",
        "Values in the share's region that had to be clamped or put right.",
        lambda h: h.usage.usage.faults,
    ),
    Row(
        "sharepod_share_memory_refusals",
        "Allocations that did not fit under the memory cap.",
        lambda h: h.usage.usage.memory_refusals,
    ),
    Row(
        "sharepod_share_host_to_device_bytes_total",
        "Copied from the host's memory to the device: not gated, not billed.",
        lambda h: h.usage.usage.copies.to_device_bytes,
    ),
    Row(
        "sharepod_share_device_to_host_bytes_total",
        "Copied from the device to the host's memory: not gated, not billed.",
        lambda h: h.usage.usage.copies.to_host_bytes,
    ),
    Row(
        "sharepod_share_host_to_device_copies_total",
        "Copies from the host's memory to the device.",
        lambda h: h.usage.usage.copies.to_device_count,
    ),
    Row(
        "sharepod_share_device_to_host_copies_total",
        "Copies from the device to the host's memory.",
        lambda h: h.usage.usage.copies.to_host_count,
    ),
    Row(
        "sharepod_share_request_ratio",
        "Guaranteed part of the device's time.",
        lambda h: h.terms.request_millipercent / 1e5,
    ),
    Row("sharepod_share_limit_ratio", "The most it may use.", lambda h: h.terms.limit_millipercent / 1e5),
    Row(
        "sharepod_share_used_ratio",
        "Part of the device's time used over the last minute.",
        lambda h: h.usage.used_1m_millipercent / 1e5,
    ),
    Row(
        "sharepod_share_memory_used_bytes",
        "Device memory in use.",
        lambda h: h.usage.usage.memory_used_bytes,
    ),
    Row("sharepod_share_memory_limit_bytes", "Memory cap; 0 is none.", lambda h: h.terms.memory_limit_bytes),
    Row(
        "sharepod_share_memory_overhead_bytes",
        "Of the memory in use, what NVML shows beyond the allocations: contexts, modules, rounding.",
        lambda h: h.usage.usage.memory_overhead_bytes,
    ),
    Row(
        "sharepod_share_memory_driver_limited",
        "1 while the driver's own limit, per cgroup, stands beside the hook's cap.",
        lambda h: float(bool(h.usage.driver_limit.cgroup)),
    ),
    Row("sharepod_share_processes", "Live processes.", lambda h: h.usage.usage.processes),
    Row(
        "sharepod_share_waiting",
        "1 while a launch waits at the closed gate.",
        lambda h: float(h.usage.usage.state is ShareState.WAITING),
    ),
    Row("sharepod_share_paused", "1 while an operator holds it paused.", lambda h: float(h.status.share.paused)),
)

DEVICE_ROWS: Final[tuple[Row[DeviceStatus], ...]] = (
    Row("sharepod_device_healthy", "1 when work can run on the device.", lambda d: float(d.healthy)),
    Row(
        "sharepod_device_charged_seconds_total", "Device time charged to shares.", lambda d: d.counters.charged_ns / 1e9
    ),
    Row("sharepod_device_decisions_total", "Decisions of the arbiter.", lambda d: d.counters.decisions),
    Row("sharepod_device_decision_seconds_total", "Time spent on decisions.", lambda d: d.counters.decision_ns / 1e9),
    Row(
        "sharepod_device_requested_ratio",
        "Sum of the requests admitted; above 1 only with overcommit.",
        lambda d: d.requested_millipercent / 1e5,
    ),
    Row(
        "sharepod_device_memory_bytes",
        "Memory of the device; 0 where it does not say.",
        lambda d: d.info.memory_total_bytes,
    ),
    Row(
        "sharepod_device_memory_used_bytes", "Memory in use by everybody, as NVML says.", lambda d: d.memory_used_bytes
    ),
    Row("sharepod_device_memory_promised_bytes", "Sum of the memory caps.", lambda d: d.memory_promised_bytes),
    Row("sharepod_device_foreign_processes", "Processes on the device without a share.", lambda d: len(d.foreign)),
    Row(
        "sharepod_device_foreign_processes_seen_total",
        "Processes without a share found so far.",
        lambda d: d.foreign_seen,
    ),
    Row(
        "sharepod_device_unmetered_processes_seen_total",
        "Those of them that were started in a share of this node: their region is gone or could not be used.",
        lambda d: d.unmetered_seen,
    ),
    Row("sharepod_device_xid_events_total", "Xid events since the agent started.", lambda d: d.xids_seen),
)

NODE_ROWS: Final[tuple[Row[NodeStatus], ...]] = (
    Row("sharepod_node_shares", "Live shares.", lambda n: len(n.shares)),
    Row("sharepod_node_devices", "Devices of the node.", lambda n: len(n.devices)),
)

INFO_NAME: Final = "sharepod_build_info"
INFO_DOC: Final = "Always 1; the labels say what runs."


def _family(row: Row[Source], labels: Sequence[str]) -> CounterMetricFamily | GaugeMetricFamily:
    if row.kind == "counter":
        return CounterMetricFamily(row.name.removesuffix("_total"), row.doc, labels=labels)
    return GaugeMetricFamily(row.name, row.doc, labels=labels)


class NodeCollector(Collector):
    """Computes every series from the node's status, on the thread that was asked."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as of now."""
        status, identity = self._node.status_from_thread(), self._node.identity
        name = identity.node_name
        indices = {device.info.uuid: str(device.info.index) for device in status.devices}
        held = [
            (_share_labels(name, shared, usage, indices[terms.device]), Held(shared, terms.terms, usage))
            for shared in status.shares
            for terms, usage in zip(shared.share.devices, shared.usages, strict=True)
        ]
        devices = [((name, str(d.info.index), d.info.uuid, d.info.name), d) for d in status.devices]
        yield from _filled(SHARE_ROWS, SHARE_LABELS, held)
        yield from _filled(DEVICE_ROWS, DEVICE_LABELS, devices)
        yield from _filled(NODE_ROWS, ("node",), [((name,), status)])
        info = GaugeMetricFamily(INFO_NAME, INFO_DOC, labels=INFO_LABELS)
        info.add_metric(
            [name, identity.version, str(identity.region_abi_version), identity.driver_version, identity.policy], 1
        )
        yield info

    def describe(self) -> list[Metric]:
        """Return nothing: the registry then does not collect at registration."""
        return []


def _filled(
    rows: Sequence[Row[Source]], labels: Sequence[str], sources: Sequence[tuple[Sequence[str], Source]]
) -> Iterator[Metric]:
    for row in rows:
        family = _family(row, labels)
        for values, source in sources:
            family.add_metric(values, row.value(source))
        yield family


def _share_labels(node: str, status: ShareStatus, usage: DeviceUsage, index: str) -> tuple[str, ...]:
    share = status.share
    return (
        node,
        share.id,
        share.name,
        share.labels.get("namespace", ""),
        share.labels.get("pod", ""),
        share.labels.get("container", ""),
        share.share_class.name.lower(),
        index,
        usage.device,
    )


def serve(node: Node, address: str) -> Callable[[], None]:
    """Serve /metrics on `address` ("127.0.0.1:9464") from a thread; return what stops it. Raises AgentUnavailable."""
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise AgentUnavailable(
            f"metrics address {address}: {error.strerror}: choose another with --metrics-listen, or off"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def manual() -> str:
    """Return docs/metrics.md."""
    parts = [
        "# Metrics",
        "",
        "Generated from `agent/metrics.py` by `python -m sharepod.agent.metrics`; a test compares the two.",
        "",
        "The agent serves them on `metrics_listen` (127.0.0.1:9464 unless set otherwise) at `/metrics`.",
        "Seconds, bytes and ratios (1 is the whole device). Series exist, at zero, from the first scrape after a share",
        "or device appears, and go when it does. Counters of a share go on when the agent restarts.",
    ]
    tables: tuple[tuple[str, Sequence[str], Sequence[tuple[str, str, str]]], ...] = (
        ("Shares, one series per share and device", SHARE_LABELS, [(r.name, r.kind, r.doc) for r in SHARE_ROWS]),
        ("Devices", DEVICE_LABELS, [(r.name, r.kind, r.doc) for r in DEVICE_ROWS]),
        ("Node", ("node",), [(r.name, r.kind, r.doc) for r in NODE_ROWS]),
        ("Build", INFO_LABELS, [(INFO_NAME, "gauge", INFO_DOC)]),
    )
    for title, labels, rows in tables:
        parts += ["", f"## {title}", "", "Labels: " + ", ".join(f"`{label}`" for label in labels) + ".", ""]
        parts += ["| name | type | meaning |", "| --- | --- | --- |"]
        parts += [f"| `{name}` | {kind} | {doc} |" for name, kind, doc in rows]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(manual())
