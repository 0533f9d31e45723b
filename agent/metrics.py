"""What Prometheus sees: one table of metrics, and their text as of the moment of a scrape.

Adding a metric is one row here; `docs/metrics.md` is generated from the table (`python -m sharepod.agent.metrics`).
Base units: seconds, bytes, ratios. Series exist from the start of a share or device and go when it ends.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

from sharepod.agent import exposition, feed_metrics, plugin_metrics
from sharepod.agent.feed_metrics import Tally
from sharepod.agent.share import HAND_OFF_BOUNDS_NS, TURN_BOUNDS_NS, DeviceUsage, ShareState, ShareStatus, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sharepod.agent.device import DeviceInfo, DeviceStatus, NodeStatus
    from sharepod.agent.node import Identity, Node
    from sharepod.agent.share import Histogram, Share

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


@dataclass(frozen=True, slots=True)
class HistogramRow(Generic[Source]):
    """One histogram."""

    name: str
    doc: str
    bounds_ns: tuple[int, ...]
    value: Callable[[Source], Histogram]


SHARE_LABELS: Final = (
    "node", "share", "name", "namespace", "pod", "container", "pod_uid", "class", "gpu", "gpu_uuid", "UUID", "hostname",
    "modelName",
)  # fmt: skip
"""Those of pods are the share's own labels. Beside our names stand those of dcgm-exporter, to be joined with it."""
DEVICE_LABELS: Final = ("node", "gpu", "gpu_uuid", "model", "UUID", "hostname", "modelName")
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
        "sharepod_share_used_last_second_ratio",
        "Part of the device's time used over the last second.",
        lambda h: h.usage.used_1s_millipercent / 1e5,
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
        "sharepod_share_hook_attached",
        "1 while the hook of a live process has attached to the share.",
        lambda h: float(h.usage.usage.processes > 0),
    ),
    Row(
        "sharepod_share_region_usable",
        "1 while programs that start now can use the share's region; looked at every few seconds.",
        lambda h: float(not h.status.region_fault),
    ),
    Row(
        "sharepod_share_waiting",
        "1 while a launch waits at the closed gate.",
        lambda h: float(h.usage.usage.state is ShareState.WAITING),
    ),
    Row("sharepod_share_paused", "1 while it is held paused.", lambda h: float(h.status.share.paused)),
    Row(
        "sharepod_share_yielding",
        "1 while it is paused to make room: its requests count as not promised.",
        lambda h: float(h.status.share.yielding),
    ),
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
        "Sum of the requests admitted, without shares that yield; above 1 only with overcommit.",
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

SHARE_HISTOGRAMS: Final[tuple[HistogramRow[Held], ...]] = (
    HistogramRow(
        "sharepod_share_turn_wait_seconds",
        "How long the share waited for each of its finished turns, from its launch at the closed gate to the grant: "
        "what the turns of others and the hand-off took. Begins at zero when the agent restarts.",
        TURN_BOUNDS_NS,
        lambda h: h.usage.waits,
    ),
    HistogramRow(
        "sharepod_share_turn_seconds",
        "How long its finished turns were, from the grant until their work had drained. Begins at zero when the agent "
        "restarts.",
        TURN_BOUNDS_NS,
        lambda h: h.usage.turns,
    ),
)
DEVICE_HISTOGRAMS: Final[tuple[HistogramRow[DeviceStatus], ...]] = (
    HistogramRow(
        "sharepod_device_hand_off_seconds",
        "From the end of one share's turn to the grant of the next one's, who had waited for it; 0 where the grant "
        "came before the drain. Without shares that a limit or a gang may have kept waiting too.",
        HAND_OFF_BOUNDS_NS,
        lambda d: d.counters.hand_offs,
    ),
)
ENFORCEMENT_NAME: Final = "sharepod_share_enforcement_info"
ENFORCEMENT_DOC: Final = (
    "Always 1; the label `policy` says what a program does when it cannot use the share's region: open runs unmetered, "
    "closed fails CUDA initialisation."
)
ENFORCEMENT_LABELS: Final = (*SHARE_LABELS, "policy")
INFO_NAME: Final = "sharepod_build_info"
INFO_DOC: Final = "Always 1; the labels say what runs."


@dataclass(frozen=True, slots=True)
class _Written:
    """The template of a scrape, and what it was written for."""

    shares: tuple[Share, ...]
    devices: tuple[DeviceInfo, ...]
    template: exposition.Template


class NodeMetrics:
    """Writes every series from the node's status, on the thread that asks."""

    def __init__(self, node: Node, feed: Tally | None = None) -> None:
        """Take the node, and the counters of its usage feed; None: it has none."""
        self._node = node
        self._feed = feed or Tally()
        self._written: _Written | None = None
        """Replaced whole, for scrapes may overlap."""

    def text(self) -> str:
        """Return all metrics as of now."""
        status = self._node.status_from_thread()
        shares = tuple(held.share for held in status.shares)
        devices = tuple(device.info for device in status.devices)
        written = self._written
        # The shares of an unchanged node are the same objects: this compares pointers.
        if written is None or written.shares != shares or written.devices != devices:
            written = self._written = _Written(shares, devices, _template(self._node.identity, shares, devices))
        plugin = plugin_metrics.text(self._node.identity.node_name, status.plugin)
        feed = feed_metrics.text(self._node.identity.node_name, self._feed, status.now_ns)
        return written.template.filled(_values(status)) + plugin + feed


def _template(identity: Identity, shares: Sequence[Share], devices: Sequence[DeviceInfo]) -> exposition.Template:
    """Return the text with places for the values, in the order of `_values`."""
    node = identity.node_name
    infos = {info.uuid: info for info in devices}
    of_shares = [_share_labels(node, share, infos[held.device]) for share in shares for held in share.devices]
    of_devices = [_device_labels(node, info) for info in devices]
    policies = [f"{labels},{exposition.labelled(('policy',), (identity.policy,))}" for labels in of_shares]
    return exposition.Template(
        "".join(
            [
                *_places(SHARE_ROWS, of_shares),
                *_histograms(SHARE_HISTOGRAMS, of_shares),
                *_places(DEVICE_ROWS, of_devices),
                *_histograms(DEVICE_HISTOGRAMS, of_devices),
                *_places(NODE_ROWS, [exposition.labelled(("node",), (node,))]),
                exposition.header(ENFORCEMENT_NAME, "gauge", ENFORCEMENT_DOC),
                *(exposition.sample(ENFORCEMENT_NAME, labels) for labels in policies),
                exposition.header(INFO_NAME, "gauge", INFO_DOC),
                exposition.sample(INFO_NAME, _info_labels(identity)),
            ]
        )
    )


def _values(status: NodeStatus) -> list[float]:
    """Return the values for the places of `_template`."""
    held = [
        Held(shared, terms.terms, usage)
        for shared in status.shares
        for terms, usage in zip(shared.share.devices, shared.usages, strict=True)
    ]
    values = _numbers(SHARE_ROWS, held)
    values += _times(SHARE_HISTOGRAMS, held)
    values += _numbers(DEVICE_ROWS, status.devices)
    values += _times(DEVICE_HISTOGRAMS, status.devices)
    values += _numbers(NODE_ROWS, [status])
    values += [1] * (len(held) + 1)  # what is told by labels alone
    return values


def _places(rows: Sequence[Row[Source]], labels: Sequence[str]) -> Iterator[str]:
    for row in rows:
        yield exposition.header(row.name, row.kind, row.doc)
        for one in labels:
            yield exposition.sample(row.name, one)


def _numbers(rows: Sequence[Row[Source]], sources: Sequence[Source]) -> list[float]:
    return [value(source) for value in [row.value for row in rows] for source in sources]


def _histograms(rows: Sequence[HistogramRow[Source]], labels: Sequence[str]) -> Iterator[str]:
    for row in rows:
        yield exposition.header(row.name, "histogram", row.doc)
        bounds = [bound_ns / 1e9 for bound_ns in row.bounds_ns]
        for one in labels:
            yield exposition.histogram(row.name, one, bounds)


def _times(rows: Sequence[HistogramRow[Source]], sources: Sequence[Source]) -> list[float]:
    values: list[float] = []
    for row in rows:
        for source in sources:
            found = row.value(source)
            below = list(accumulate(found.counts))
            values += below
            values += (below[-1], found.sum_ns / 1e9)
    return values


def _share_labels(node: str, share: Share, info: DeviceInfo) -> str:
    pod = (share.labels.get(key, "") for key in ("namespace", "pod", "container", "pod_uid"))
    values = (node, share.id, share.name, *pod, share.share_class.name.lower(), str(info.index), info.uuid)
    return exposition.labelled(SHARE_LABELS, (*values, info.uuid, node, info.name))


def _device_labels(node: str, info: DeviceInfo) -> str:
    return exposition.labelled(DEVICE_LABELS, (node, str(info.index), info.uuid, info.name, info.uuid, node, info.name))


def _info_labels(identity: Identity) -> str:
    abi = str(identity.region_abi_version)
    values = (identity.node_name, identity.version, abi, identity.driver_version, identity.policy)
    return exposition.labelled(INFO_LABELS, values)


def manual() -> str:
    """Return docs/metrics.md."""
    parts = [
        "# Metrics",
        "",
        "Generated from `agent/metrics.py` by `python -m sharepod.agent.metrics`; a test compares the two.",
        "",
        "The agent serves them on `metrics_listen` (127.0.0.1:9464 unless set otherwise) at `/metrics`, to the network",
        "with TLS and a bearer token only (`docs/operations.md`).",
        "Seconds, bytes and ratios (1 is the whole device). Series exist, at zero, from the first scrape after a share",
        "or device appears, and go when it does. Counters of a share go on when the agent restarts.",
        "`namespace`, `pod`, `container` and `pod_uid` are the share's own labels, empty where it has none. `UUID`,",
        "`hostname` and `modelName` are dcgm-exporter's names for `gpu_uuid`, `node` and `model`.",
        "The device plugin opens no port: it hands its counters to the agent, which shows them here. They go on when",
        "the agent restarts, begin at zero when the plugin does, and are gone when it has told nothing for 30 s.",
    ]
    tables: tuple[tuple[str, Sequence[str], Sequence[tuple[str, str, str]]], ...] = (
        ("Shares, one series per share and device", SHARE_LABELS, [(r.name, r.kind, r.doc) for r in SHARE_ROWS]),
        ("Shares, turns", SHARE_LABELS, [(r.name, "histogram", r.doc) for r in SHARE_HISTOGRAMS]),
        ("Shares, enforcement", ENFORCEMENT_LABELS, [(ENFORCEMENT_NAME, "gauge", ENFORCEMENT_DOC)]),
        ("Devices", DEVICE_LABELS, [(r.name, r.kind, r.doc) for r in DEVICE_ROWS]),
        ("Devices, turns", DEVICE_LABELS, [(r.name, "histogram", r.doc) for r in DEVICE_HISTOGRAMS]),
        ("Node", ("node",), [(r.name, r.kind, r.doc) for r in NODE_ROWS]),
        ("Build", INFO_LABELS, [(INFO_NAME, "gauge", INFO_DOC)]),
        *plugin_metrics.tables(),
        *feed_metrics.tables(),
    )
    for title, labels, rows in tables:
        parts += ["", f"## {title}", "", "Labels: " + ", ".join(f"`{label}`" for label in labels) + ".", ""]
        parts += ["| name | type | meaning |", "| --- | --- | --- |"]
        parts += [f"| `{name}` | {kind} | {doc} |" for name, kind, doc in rows]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(manual())
