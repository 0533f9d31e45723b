"""Decides which nodes can take a pod, and says why the others cannot. Pure.

There are few texts, and nodes that refuse for the same reason get the same one: nodes are counted by text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from sharepod.agent.shares.share import MIB, bytes_text
from sharepod.scheduler.placement.native import Verdict
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.scheduler.placement.native import Ranking
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod

NO_AGENT: Final = "no SharePod agent reports from it"


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """The judgement of nodes for a pod."""

    pod: Pod
    names: list[str]
    """The names of the judged nodes: those in the snapshot; all, if the pod asks for no share."""
    ranking: Ranking | None
    """The ranking of these nodes; None: there are none, or the pod asks for no share."""


def judge(cluster: Cluster, pod: Pod, names: Sequence[str]) -> Judgement:
    """Judge the nodes `names` for a pod, by the cluster's policy and the devices that the pod may have there.

    Nodes that take no shares are left out, unless the pod asks for none.
    """
    if not pod.request.shares:
        return Judgement(pod, list(names), None)
    known, indices = cluster.node_index.find(names)
    if not known:
        return Judgement(pod, [], None)
    array = np.array(indices, dtype=np.int32)
    ranking = cluster.snapshot.rank_array(pod.request, cluster.policy.native, array, cluster.allowed(pod, array))
    return Judgement(pod, known, ranking)


def refusal_text(pod: Pod, verdict: Verdict) -> str:
    """Return, in words for users, why a node cannot take a pod; `verdict`: the node's, any but FITS and NO_NODE.

    Where the text is about one of several shares, that is the one on the most devices.
    """
    shares = pod.request.shares
    asked = max(shares, key=lambda share: (share.devices, share.milli))
    time = f"{asked.milli // 10} percent" if asked.milli < DEVICE_MILLI else "whole"
    several = f"{asked.devices} devices" if asked.devices > 1 else "device"
    if verdict is Verdict.NO_CPU:
        return "not enough processors beside the pods that are to come"
    if verdict is Verdict.NO_MEMORY:
        return "not enough memory beside the pods that are to come"
    if verdict is Verdict.NO_MODEL:
        return "its devices are of no model that the pod takes"
    if verdict is Verdict.FEW_DEVICES:
        text = (
            f"fewer than {asked.devices} healthy devices are offered"
            if asked.devices > 1
            else "no healthy device is offered"
        )
        return text + (" that device affinity allows" if pod.affinity or pod.anti_affinity else "")
    if len(shares) > 1:
        text = f"its devices have no room for {len(shares)} shares together"
    elif time == "whole":
        text = f"no {several} free" if asked.devices == 1 else f"fewer than {several} free"
    else:
        text = f"no device with {time} left" if asked.devices == 1 else f"fewer than {several} with {time} left on each"
    if verdict is Verdict.NO_DEVICE_MEMORY:
        need = (
            "memory in proportion"
            if asked.mib is None or asked.memory_milli
            else f"{bytes_text(asked.mib * MIB)} of memory"
        )
        return f"{text} and {need}"
    return text
