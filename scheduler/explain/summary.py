"""Computes the numbers that the scheduler's metrics show. Pure: everything is given."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sharepod.scheduler.metrics import Look
from sharepod.scheduler.placement.policy import Policy
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.usage import UsageBook


def summarise(
    cluster: Cluster,
    book: UsageBook,
    now_s: float,
    *,
    ready: bool,
    streams: int,
    stream_ends: Mapping[str, int],
) -> Look:
    """Return the numbers of this moment for the metrics; the view is brought up to `now_s` first.

    `ready`: pods can be placed. `streams`: agents that are connected. `stream_ends`: streams that were ended, by the
    reason.
    """
    cluster.advance(now_s)
    ages = {name: book.silent_s(name, now_s) or 0.0 for name in book.names()}
    fresh = [age for name, age in ages.items() if book.is_fresh(name, now_s)]
    pods: Counter[str] = Counter()
    for pod in cluster.pods():
        if pod.request.shares:
            pods["bound" if pod.node else "waiting"] += 1
            pods["assumed"] += cluster.assumed(pod.uid) is not None and not pod.node
    rows = [row for name in ages if (row := cluster.row(name)) is not None]
    yardstick = Policy("fgd", cluster.snapshot, cluster.mix)  # it judges by the most frequent kinds
    return Look(
        ready=ready,
        nodes_by_state={"reporting": len(fresh), "silent": len(ages) - len(fresh)},
        pods_by_state=pods | {"homeless": sum(len(row.homeless) for row in rows)},
        devices=sum(len(row.uuids) for row in rows),
        left=sum(cluster.snapshot.free_milli.values()) / DEVICE_MILLI,
        wasted=cluster.snapshot.fragmentation(yardstick.native) / DEVICE_MILLI,
        lag_s=max(fresh, default=0.0),
        streams=streams,
        stream_ends=stream_ends,
    )
