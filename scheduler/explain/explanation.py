"""Explains why a pod is where it is, or waits: the verdict on each node, with what is left there. Pure.

The answer is that of this moment, from the same code that the gate controller decides with. However large the cluster
is, the answer is short enough to be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from sharepod.scheduler.explain.neighbours import Neighbours, counted, neighbours
from sharepod.scheduler.placement.decision import NO_AGENT, judge, refusal_text
from sharepod.scheduler.placement.native import Verdict
from sharepod.scheduler.placement.policy import GRAIN_MILLI, ROWS
from sharepod.scheduler.placement.tables import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.scheduler.explain.pending_status import Turn
    from sharepod.scheduler.placement.decision import Judgement
    from sharepod.scheduler.placement.native import Ranking
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.node_info import Row
    from sharepod.scheduler.state.pod import Pod
    from sharepod.scheduler.state.usage import DeviceFacts

LISTED: Final = 20
"""Nodes that are listed one by one."""
EXAMPLES: Final = 3
"""Nodes that are listed for each reason of a refusal."""


@dataclass(frozen=True, slots=True)
class Held:
    """The devices on which a container has its share."""

    container: str
    devices: tuple[tuple[int, str], ...]
    """Index on the node and UUID of each, in the order of the indices."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device as the scheduler sees it; percentages are of its time."""

    index: int
    left_percent: int
    left_mib: int
    memory_mib: int
    """In all."""
    used_percent: int
    """The highest of the averages over the last second, minute and quarter of an hour."""
    waited_percent: int
    """Time that shares waited there in the last minute, all together."""
    latency_percent: int
    """Promised to latency shares."""
    closed: str
    """Why the pod cannot have it, whatever is left; empty: it can."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a node."""

    node: str
    cpu_milli: int
    """Below 0 where more is promised than there is; so is the memory."""
    memory_mib: int
    devices: tuple[Device, ...]
    """Empty: nothing is known of the node's devices."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A node that can take the pod."""

    left: Left
    behind: int
    """How much more it costs than the best one, in the policy's steps."""
    behind_milli: int | None
    """The same in milli of a device; None: the policy counts in steps alone."""
    behind_use: int
    """The part of `behind` that is for measured use, promises and links; the rest is for the room that it takes."""
    devices: tuple[tuple[int, ...], ...]
    """Of each share, the indices of its devices."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nodes that cannot take the pod, for one reason."""

    reason: str
    nodes: int
    examples: tuple[Left, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole explanation of a pod."""

    pod: str
    uid: str
    state: str
    """`bound`, `sent` (chosen, and not seen bound yet), `waiting` or `refused` (it asks for the impossible)."""
    node: str
    policy: str
    text: str
    """The answer in one sentence."""
    known_by: str
    """The source of its place: `agent`, `annotation`, `assumed`, `presumed` (no source) or `homeless` (no source, and
    it fits nowhere); empty: it has no place to tell."""
    held: tuple[Held, ...]
    there: tuple[Neighbours, ...]
    """The neighbours on each of its devices."""
    left: Left | None
    """What is left of the node where it is."""
    fitting: tuple[Fit, ...]
    """The best first, at most LISTED."""
    fitting_nodes: int
    refused: tuple[Refused, ...]
    incomplete: str
    """Why not everything is known yet; empty: everything is."""
    turn: Turn | None = None
    """What the controller knows of the pod; None: there is no controller, or the pod neither waits nor yields."""


def explain(cluster: Cluster, pod: Pod, *, incomplete: str = "", turn: Turn | None = None) -> Explanation:
    """Explain a pod of the view, which must be up to date (`Cluster.advance`). This changes nothing.

    `incomplete`, `turn`: as in Explanation.
    """
    assumed = cluster.assumed(pod.uid)
    node = pod.place or (assumed.node if assumed else "")
    if pod.refusal or not pod.request.shares or node:
        state = "refused" if pod.refusal else "bound" if pod.node else "sent" if node else "waiting"
        known_by = "" if pod.refusal else _known_by(cluster, pod, node)
        text = pod.refusal or _place_text(cluster, pod, node, known_by) + _yield_text(cluster, pod)
        held = _held(cluster, pod, node)
        return Explanation(
            pod.title, pod.uid, state, node, cluster.policy.name, text + _deletion_text(pod), known_by, held,
            there=neighbours(cluster, pod, node), left=_left(cluster, node) if held else None,
            fitting=(), fitting_nodes=0, refused=(), incomplete=incomplete, turn=turn,
        )  # fmt: skip
    judgement = judge(cluster, pod, sorted(cluster.names()))
    fitting, count = _fitting(cluster, judgement)
    refused = _refused(cluster, judgement)
    total = count + sum(one.nodes for one in refused)
    text = f"its shares fit on {count} of {total} nodes"
    if pod.withheld:
        text = f"another's scheduling gate holds it, and it takes no room before that has gone; {text}"
    elif turn is not None:
        text = f"its gate is kept: {turn.why}; by devices alone {text}"
    elif not pod.gated:
        text = f"it has no gate, so kube-scheduler places it by what nodes have left in all; by devices {text}"
    return Explanation(
        pod.title, pod.uid, "waiting", "", cluster.policy.name, text + _deletion_text(pod),
        known_by="", held=(), there=(), left=None,
        fitting=fitting, fitting_nodes=count, refused=refused, incomplete=incomplete, turn=turn,
    )  # fmt: skip


def find(cluster: Cluster, namespace: str, name: str) -> Pod | None:
    """Return the pod of that name that has not ended; None: there is none."""
    return next((pod for pod in cluster.pods() if pod.name == name and pod.namespace == namespace), None)


def _yield_text(cluster: Cluster, pod: Pod) -> str:
    """Return in words how a pod makes room, by its annotation and by what its agent reports; empty: it makes none."""
    use = cluster.use(pod.node)
    shares = [one.terms for device in use.devices for one in device.shares] if use else []
    is_paused = any(terms.yielding for terms in shares if terms.pod_uid == pod.uid)
    if pod.yields == "limit":
        return "; it yields: its limit is its request for now"
    if pod.yields == "pause" and is_paused:
        return "; it yields: it is paused, and its time is others'"
    if pod.yields == "pause":
        return "; it is to yield its time, and its agent does not report it paused yet"
    return "; it has yielded, and stays paused until its time is free again" if is_paused else ""


def _deletion_text(pod: Pod) -> str:
    """Return in words that a pod is being deleted; empty: it is not."""
    return "; it is being deleted" if pod.deleting else ""


def _known_by(cluster: Cluster, pod: Pod, node: str) -> str:
    """Return the source of a pod's place on `node`, where it counts, as in Explanation.known_by."""
    row, use = cluster.row(node), cluster.use(node)
    if row is None or use is None or not pod.request.shares:
        return ""
    if pod.uid in row.homeless:
        return "homeless"
    if any(share.terms.pod_uid == pod.uid for device in use.devices for share in device.shares):
        return "agent"
    if pod.uid in row.presumed:
        return "presumed"
    known = {name for share in pod.chosen for name in share} if pod.place else set()
    return "annotation" if known and known.issubset(row.uuids) else "assumed"


def _place_text(cluster: Cluster, pod: Pod, node: str, known_by: str) -> str:
    """Return in words where a pod is (`node`), and from which source that is known (Explanation.known_by)."""
    if not pod.request.shares:
        return "it asks for no share of a device"
    if cluster.row(node) is None:
        return f"it is on {node}: {NO_AGENT}"
    where = f"it is bound to {node}" if pod.node else f"it was sent to {node}, and is not seen bound yet"
    return {
        "homeless": f"{where}, where its shares fit on no device now: it starts when others there end",
        "presumed": f"{where}; its agent has not reported its devices, so it counts where the agent would put it",
        "annotation": f"{where}; its annotation names its devices, its agent does not report its shares yet",
        "agent": f"{where}, and its agent reports its shares",
    }.get(known_by, f"{where}; its devices are chosen, and not seen on it yet" if pod.node else where)


def _held(cluster: Cluster, pod: Pod, node: str) -> tuple[Held, ...]:
    """Return the devices on which each container of a pod has its share on its node; empty: they are not known."""
    row, as_counted = cluster.row(node), counted(cluster, node, pod.uid)
    if row is None or as_counted is None or pod.uid not in row.places:
        return ()
    return tuple(
        Held(name, tuple((index, row.uuids[index]) for index in devices))
        for name, devices in zip(as_counted.containers, row.places[pod.uid], strict=True)
    )


def _fitting(cluster: Cluster, judgement: Judgement) -> tuple[tuple[Fit, ...], int]:
    """Return the nodes that can take the pod, the best first and at most LISTED, and how many there are in all."""
    ranking = judgement.ranking
    if ranking is None:
        return (), 0
    positions = np.flatnonzero(ranking.verdict == Verdict.FITS).tolist()
    positions.sort(key=lambda position: (int(ranking.cost[position]), judgement.names[position]))
    listed = positions[:LISTED]
    if not listed:
        return (), 0
    # The costs are told relative to the best node, the first. Only the rule WORTH counts in milli.
    use_costs = _use_costs(cluster, judgement, ranking, listed)
    least = int(ranking.cost[listed[0]])
    fits = []
    for position, use_cost in zip(listed, use_costs, strict=True):
        left = _left(cluster, judgement.names[position], judgement.pod)
        behind = int(ranking.cost[position]) - least
        behind_milli = round(behind * GRAIN_MILLI) if ROWS[cluster.policy.name] is Rule.WORTH else None
        fits.append(Fit(left, behind, behind_milli, use_cost - use_costs[0], ranking.devices(position)))
    return tuple(fits), len(positions)


def _use_costs(cluster: Cluster, judgement: Judgement, ranking: Ranking, positions: Sequence[int]) -> list[int]:
    """Return the part of each place's cost, in the policy's steps, that is for measured use, promises and links.

    `positions`: in the judgement. Each place is judged again, with its devices as the only ones that are allowed, and
    with weights of 0 for measured use, promises and links. The part is the difference to that cost.
    """
    allowed = [sum({1 << device for share in ranking.devices(at) for device in share}) for at in positions]
    _, indices = cluster.node_index.find([judgement.names[position] for position in positions])
    native = cluster.policy.native
    with native.unweighted():
        bare = cluster.snapshot.rank_array(judgement.pod.request, native, indices, np.array(allowed, dtype=np.uint16))
    return [
        int(ranking.cost[position]) - int(cost) for position, cost in zip(positions, bare.cost.tolist(), strict=True)
    ]


def _refused(cluster: Cluster, judgement: Judgement) -> tuple[Refused, ...]:
    """Return the nodes that cannot take the pod, by reason, the most frequent reason first.

    Nodes that take no shares, and so are not in the judgement, are among them.
    """
    reasons: dict[str, list[str]] = {}
    if judgement.ranking is not None:
        for name, verdict in zip(judgement.names, judgement.ranking.verdict.tolist(), strict=True):
            if verdict != Verdict.FITS:
                reasons.setdefault(refusal_text(judgement.pod, Verdict(verdict)), []).append(name)
    known = set(judgement.names)
    if silent := [name for name in sorted(cluster.names()) if name not in known]:
        reasons[NO_AGENT] = silent
    return tuple(
        Refused(text, len(names), tuple(_left(cluster, name, judgement.pod) for name in names[:EXAMPLES]))
        for text, names in sorted(reasons.items(), key=lambda item: -len(item[1]))
    )


def _left(cluster: Cluster, name: str, pod: Pod | None = None) -> Left:
    """Return what is left of a node; `pod`: one that waits, for which device affinity may close devices.

    If the node takes no shares, the numbers are 0, and there are no devices.
    """
    row, use = cluster.row(name), cluster.use(name)
    if row is None or use is None:
        return Left(name, 0, 0, ())
    allowed = row.usable
    if pod is not None:
        allowed = int(cluster.allowed(pod, np.array(cluster.node_index.find([name])[1], dtype=np.int32))[0])
    # A row has the first NODE_DEVICES_MAX devices that the agent reports; no pod is placed on others.
    devices = (_device(row, index, device.facts, allowed) for index, device in enumerate(use.devices[: len(row.uuids)]))
    return Left(name, row.cpu_milli, row.memory_mib, tuple(devices))


def _device(row: Row, index: int, facts: DeviceFacts, allowed: int) -> Device:
    """Return the device of a node at this index; `allowed`: a bit for each device that the pod may have."""
    closed, strain = "", row.strains[index]
    if not facts.healthy:
        closed = f"not healthy: {facts.health_reason or 'its agent does not say why'}"
    elif not facts.offered:
        closed = "not offered by its device plugin"
    elif not allowed >> index & 1:
        closed = "not allowed by the pod's device affinity"
    return Device(
        index=index,
        left_percent=max(0, row.free_milli[index]) // 10,  # 10 milli are 1 percent
        left_mib=max(0, row.free_mib[index]),
        memory_mib=row.device_mib,
        used_percent=strain.busy_milli // 10,
        waited_percent=strain.waited_milli // 10,
        latency_percent=strain.latency_milli // 10,
        closed=closed,
    )
