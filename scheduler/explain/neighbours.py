"""Lists the other shares on the devices of a pod, as the scheduler sees them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.state.node_info import MILLIPERCENT_PER_MILLI

if TYPE_CHECKING:
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod
    from sharepod.scheduler.state.usage import DeviceUse, ShareUse

LISTED: Final = 16
"""Shares that are listed of one device: those that ask for the most."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A share beside the pod's own."""

    pod: str
    """Namespace and name; empty: it belongs to no pod."""
    container: str
    share_class: str
    asked_percent: int
    used_percent: int | None
    """In the last minute; None: its agent does not report it yet."""
    yields: str = ""
    """How its pod makes room (Pod.yields)."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The other shares on a device."""

    device: int
    shares: tuple[Neighbour, ...]
    """At most LISTED."""
    more: int
    """Shares that are not listed."""


def counted(cluster: Cluster, node: str, uid: str) -> Pod | None:
    """Return the pod with this uid as it counts on a node; None: it does not count there.

    A pod that is bound or released to the node counts as it is now, else as it was when the node was chosen for it.
    """
    pod, assumed = cluster.pod(uid), cluster.assumed(uid)
    if pod is not None and pod.place == node:
        return pod
    return assumed.pod if assumed is not None and assumed.node == node else None


def neighbours(cluster: Cluster, pod: Pod, node: str) -> tuple[Neighbours, ...]:
    """Return the other shares on each of the devices of `node` where a pod counts; empty: they are not known."""
    row, use = cluster.row(node), cluster.use(node)
    if row is None or use is None:
        return ()
    own = sorted({device for share in row.places.get(pod.uid, ()) for device in share})
    expected: dict[int, dict[str, list[Neighbour]]] = {index: {} for index in own}
    for uid, places in row.places.items():
        other = counted(cluster, node, uid) if uid != pod.uid else None
        if other is None:
            continue
        for container, share, devices in zip(other.containers, other.request.shares, places, strict=True):
            one = Neighbour(other.title, container, share.share_class, share.milli // 10, None, other.yields)
            for index in devices:
                if index in expected:
                    expected[index].setdefault(uid, []).append(one)
    yields = {other.uid: other.yields for other in cluster.pods_on(node)}
    return tuple(_of_device(index, use.devices[index], pod.uid, expected[index], yields) for index in own)


def _of_device(
    index: int, device: DeviceUse, own: str, expected: dict[str, list[Neighbour]], yields: dict[str, str]
) -> Neighbours:
    """Return a device's neighbours: the shares that the agent reports, and those of pods that it does not report yet.

    `index`: the device's. `own`: the uid of the pod itself. `expected`: by uid, the shares that count on the device.
    `yields`: by uid, how a pod yields (Pod.yields).
    """
    reported = [share for share in device.shares if share.terms.pod_uid != own]
    uids = {share.terms.pod_uid for share in reported}
    others = [_neighbour_of(share, yields) for share in reported]
    others += [one for uid, shares in expected.items() if uid not in uids for one in shares]
    others.sort(key=lambda one: (-one.asked_percent, one.pod, one.container))
    return Neighbours(index, tuple(others[:LISTED]), max(0, len(others) - LISTED))


def _neighbour_of(share: ShareUse, yields: dict[str, str]) -> Neighbour:
    """Return a share that the agent reports as a neighbour; `yields`: by uid, how a pod yields (Pod.yields)."""
    terms = share.terms
    return Neighbour(
        f"{terms.namespace}/{terms.pod}" if terms.pod_uid else "",
        terms.container,
        terms.share_class.name.lower(),
        terms.request_millipercent // MILLIPERCENT_PER_MILLI // 10,
        share.used_1m_millipercent // MILLIPERCENT_PER_MILLI // 10,
        "pause" if terms.yielding else yields.get(terms.pod_uid, ""),
    )
