"""The metrics of a node for Prometheus: tables of metrics, and the collector that fills them at each scrape.

Adding a metric is one row here, or in `usage.def` if it is a number of an account; `docs/metrics.md` is made from
the tables (`python -m sharepod.agent.metrics.collector`).
Base units: seconds, bytes, ratios. Series exist from the start of a share or device and go when it ends.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.agent._native_usage import METRICS
from sharepod.agent.metrics import feed, plugin
from sharepod.agent.metrics.feed import Counters, Look
from sharepod.agent.shares.share import (
    HAND_OFF_BOUNDS_NS,
    TURN_BOUNDS_NS,
    DeviceUsage,
    ShareState,
    ShareStatus,
    Terms,
)
from sharepod.process import metrics
from sharepod.process.metrics import AnyTable, HistogramRow, InfoRow, Row, Table, families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sharepod.agent.devices.device import DeviceInfo, DeviceStatus, NodeStatus
    from sharepod.agent.node import Identity, Node
    from sharepod.agent.shares.spending import Spent
    from sharepod.process.metrics_page import Family


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A node at the moment of a scrape."""

    identity: Identity
    status: NodeStatus


@dataclass(frozen=True, slots=True)
class Held:
    """A share on one of its devices: what a share metric is computed from."""

    identity: Identity
    device: DeviceInfo
    status: ShareStatus
    terms: Terms
    usage: DeviceUsage


POD_LABELS: Final = ("namespace", "pod", "container")
SHARE_LABELS: Final = ("share", "gpu", *POD_LABELS)
SHARE_INFO_LABELS: Final = ("node", "name", "class", "pod_uid", "UUID", "modelName", "policy")
DEVICE_LABELS: Final = ("node", "gpu", "UUID", "modelName")
BUILD_LABELS: Final = ("version", "region_abi", "driver_version", "policy")
TURN_BOUNDS_S: Final = tuple(bound_ns / 1e9 for bound_ns in TURN_BOUNDS_NS)
HAND_OFF_BOUNDS_S: Final = tuple(bound_ns / 1e9 for bound_ns in HAND_OFF_BOUNDS_NS)


def _number(name: str, metric: str, meaning: str) -> Row[Held]:
    """Return the metric of the number `name` of an account; a time, which is in ns, becomes seconds."""
    scale = 1e9 if name.endswith("_ns") else 1
    return Row(metric, meaning, lambda h: getattr(h.usage.usage, name) / scale)


SHARE_ROWS: Final[tuple[Row[Held] | HistogramRow[Held] | InfoRow[Held], ...]] = (
    *(_number(name, metric, meaning) for name, (metric, meaning) in METRICS.items() if metric),
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
    Row("sharepod_share_memory_limit_bytes", "Memory cap; 0 is none.", lambda h: h.terms.memory_limit_bytes),
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
    HistogramRow(
        "sharepod_share_turn_wait_seconds",
        "How long the share waited for each of its finished turns, from its launch at the closed gate to the grant: "
        "what the turns of others and the hand-off took. Begins at zero when the agent restarts.",
        TURN_BOUNDS_S,
        lambda h: h.usage.waits.seconds,
    ),
    HistogramRow(
        "sharepod_share_turn_seconds",
        "How long its finished turns were, from the grant until their work had drained. Begins at zero when the agent "
        "restarts.",
        TURN_BOUNDS_S,
        lambda h: h.usage.turns.seconds,
    ),
    InfoRow(
        "sharepod_share_info",
        "Always 1. `policy` says what a program does when it cannot use the share's region: open runs unmetered, "
        "closed fails CUDA initialisation.",
        SHARE_INFO_LABELS,
        lambda h: (
            h.identity.node_name,
            h.status.share.name,
            h.status.share.share_class.name.lower(),
            h.status.share.labels.get("pod_uid", ""),
            h.device.uuid,
            h.device.name,
            h.identity.policy,
        ),
    ),
)

DEVICE_ROWS: Final[tuple[Row[DeviceStatus] | HistogramRow[DeviceStatus], ...]] = (
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
    Row("sharepod_device_foreign_processes", "Processes on the device without a share.", lambda d: len(d.unmanaged)),
    Row(
        "sharepod_device_foreign_processes_seen_total",
        "Processes without a share found so far.",
        lambda d: d.unmanaged_seen,
    ),
    Row(
        "sharepod_device_unmetered_processes_seen_total",
        "Those of them that were started in a share of this node: their region is gone or could not be used.",
        lambda d: d.unmetered_seen,
    ),
    Row("sharepod_device_xid_events_total", "Xid events since the agent started.", lambda d: d.xids_seen),
    HistogramRow(
        "sharepod_device_hand_off_seconds",
        "From the end of one share's turn to the grant of a share that had waited for it; 0 where the grant came "
        "before the drain. Without shares that a limit or a gang may have kept waiting too.",
        HAND_OFF_BOUNDS_S,
        lambda d: d.counters.hand_offs.seconds,
    ),
)

NODE_ROWS: Final[tuple[Row[NodeStatus], ...]] = (
    Row("sharepod_node_shares", "Live shares.", lambda n: len(n.shares)),
    Row("sharepod_node_devices", "Devices of the node.", lambda n: len(n.devices)),
)

SPENT_ROWS: Final[tuple[Row[Spent], ...]] = (
    Row(
        "sharepod_spent_seconds_total",
        "Device time that the shares of a workload or a user have used, those that have ended too. It goes on after a "
        "restart of the agent, a planned one only if there was a share.",
        lambda s: s.used_ns / 1e9,
    ),
    Row("sharepod_spent_shares_total", "How many shares that were.", lambda s: s.shares),
)

BUILD_ROWS: Final[tuple[InfoRow[Identity], ...]] = (
    InfoRow(
        "sharepod_build_info",
        "Always 1: what runs.",
        BUILD_LABELS,
        lambda i: (i.version, str(i.region_abi_version), i.driver_version, i.policy),
    ),
)


def _held(snapshot: Snapshot, shares: Iterable[ShareStatus]) -> Iterator[tuple[tuple[str, ...], Held]]:
    """Yield each share on each of its devices, with its SHARE_LABELS; POD_LABELS, the last of these, only for a pod."""
    devices = {device.info.uuid: device.info for device in snapshot.status.devices}
    for status in shares:
        labels = status.share.labels
        pod = tuple(labels.get(name, "") for name in POD_LABELS) if "pod" in labels else ()
        for held, usage in zip(status.share.devices, status.usages, strict=True):
            device = devices[held.device]
            values = (status.share.id, str(device.index), *pod)
            yield values, Held(snapshot.identity, device, status, held.terms, usage)


def _devices(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], DeviceStatus]]:
    """Yield each device with its DEVICE_LABELS."""
    for device in snapshot.status.devices:
        info = device.info
        yield (snapshot.identity.node_name, str(info.index), info.uuid, info.name), device


TABLES: Final[tuple[AnyTable[Snapshot], ...]] = (
    Table(
        "Shares, one series per share and device",
        dict.fromkeys(SHARE_LABELS, ()),
        SHARE_ROWS,
        lambda s: _held(s, s.status.shares),
        lambda s: _held(s, s.status.ended),
    ),
    Table(
        "Device time by namespace, workload and user",
        {"namespace": (), "owner": (), "user": ()},
        SPENT_ROWS,
        lambda s: [((one.party.namespace, one.party.owner, one.party.user), one) for one in s.status.spent],
    ),
    Table("Devices", dict.fromkeys(DEVICE_LABELS, ()), DEVICE_ROWS, _devices),
    Table("Node", {"node": ()}, NODE_ROWS, lambda s: [((s.identity.node_name,), s.status)]),
    Table("Build", {"node": ()}, BUILD_ROWS, lambda s: [((s.identity.node_name,), s.identity)]),
)


class NodeMetrics:
    """The agent's collector. It asks the node for its status on the thread that scrapes."""

    def __init__(self, node: Node, feed: Counters | None = None) -> None:
        """Take the node, and the counters of its usage feed; None: it has none."""
        self._node = node
        self._feed = feed or Counters()

    def collect(self) -> Iterator[Family]:
        """Yield all metrics as of now. Called on the thread that scrapes; the node answers from its event loop."""
        identity, status = self._node.identity, self._node.status_from_thread()
        node = identity.node_name
        yield from families(TABLES, Snapshot(identity, status))
        yield from families(plugin.TABLES, (node, status.plugin))
        yield from families(feed.TABLES, (node, Look(self._feed, status.now_ns)))


def manual() -> str:
    """Return docs/metrics.md."""
    introduction = (
        "Generated from `agent/metrics/collector.py`, and `agent/arbiter/usage.def` for a share's account, by",
        "`python -m sharepod.agent.metrics.collector`; a test compares them.",
        "",
        "The agent serves them on `metrics_listen` (127.0.0.1:9464 unless set otherwise) at `/metrics`, to the network",
        "with TLS and a bearer token only (`docs/operations.md`), as OpenMetrics and with gzip if the scraper accepts",
        "these. Seconds, bytes and ratios (1 is the whole device). Series exist, at zero, from the first scrape after",
        "a share or device appears, and go when it does. What a share has counted stays for `keep_series` seconds, and",
        "goes on when the agent restarts.",
        "",
        "Every series of a share has the labels `share`, its id, and `gpu`, the index of the device on its node; a",
        "pod's share also has `namespace`, `pod` and `container`. `sharepod_share_info` has the other labels. A join",
        "adds them to any series of a share:",
        "",
        "    sharepod_share_used_ratio * on (share, gpu) group_left (name, class, UUID) sharepod_share_info",
        "",
        "`gpu`, `UUID` and `modelName` mean what they mean in dcgm-exporter.",
        "",
        "`sharepod_spent_*` are there for jobs that are shorter than the time between two scrapes. Of a namespace 64",
        "workloads are counted by name, later ones together, without `owner`. The series of a workload begins with",
        "its first job, so `increase()` misses that job. This is a day's device time with it:",
        "",
        "    sharepod_spent_seconds_total",
        "        - (sharepod_spent_seconds_total offset 1d or sharepod_spent_seconds_total * 0)",
        "",
        "The device plugin opens no port: it hands its counters to the agent, which shows them here. They go on when",
        "the agent restarts, begin at zero when the plugin does, and are gone when it has told nothing for 30 s.",
    )
    return metrics.manual("Metrics", introduction, (*TABLES, *plugin.TABLES, *feed.TABLES))


if __name__ == "__main__":
    sys.stdout.write(manual())
