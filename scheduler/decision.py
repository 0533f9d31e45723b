"""Which nodes can take a pod, in which order, and why not the others: the answers to kube-scheduler. Pure.

The texts are few and the same for all nodes of a kind: kube-scheduler counts equal ones in the pod's status. They have
no % sign: kube-scheduler 1.20 takes its Event's text for a format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from sharepod.agent.share import bytes_text
from sharepod.scheduler.native import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.scheduler.cluster import Cluster
    from sharepod.scheduler.native import Ranking
    from sharepod.scheduler.pod import Pod
    from sharepod.scheduler.row import Names

SCORE_MAX: Final = 10
"""Of kube-scheduler's extenders. One node gets it, and goes where nobody outweighs that."""
NO_AGENT: Final = "no SharePod agent reports from it"


@dataclass(frozen=True, slots=True)
class Filtered:
    """What became of the nodes that kube-scheduler proposed."""

    fitting: list[str]
    failed: dict[str, str]
    """Why, by node: pods that end there may change it."""
    hopeless: dict[str, str]
    """Why, by node: nothing that ends there changes it."""


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """Nodes judged for a pod."""

    pod: Pod
    names: list[str]
    """Of the nodes that are on the board."""
    ranking: Ranking | None
    """Of those; None: there are none, or the pod asks for no share."""
    version: int
    """Of the view."""


def judge(cluster: Cluster, pod: Pod, names: Sequence[str]) -> Judgement:
    """Judge nodes for a pod."""
    if not pod.ask.shares:
        return Judgement(pod, list(names), None, cluster.version)
    known, indices = cluster.seats.find(names)
    if not known:
        return Judgement(pod, [], None, cluster.version)
    array = np.array(indices, dtype=np.int32)
    ranking = cluster.board.rank_array(pod.ask, cluster.policy.native, array, cluster.allowed(pod, array))
    return Judgement(pod, known, ranking, cluster.version)


def filter_nodes(judged: Judgement, names: Sequence[str]) -> Filtered:
    """Return which nodes have room for a pod on their devices."""
    pod, known, ranking = judged.pod, judged.names, judged.ranking
    if pod.refusal:
        return Filtered([], {}, dict.fromkeys(names, pod.refusal))
    hopeless = {} if len(known) == len(names) else dict.fromkeys(set(names).difference(known), NO_AGENT)
    if ranking is None:
        return Filtered(known, {}, hopeless)
    fits = ranking.verdict == Verdict.FITS
    if fits.all():
        return Filtered(known, {}, hopeless)
    failed: dict[str, str] = {}
    for verdict in np.unique(ranking.verdict[~fits]).tolist():
        of_it = (known[position] for position in np.flatnonzero(ranking.verdict == verdict).tolist())
        into = hopeless if verdict == Verdict.NO_MODEL else failed
        into |= dict.fromkeys(of_it, refusal_text(pod, Verdict(verdict)))
    return Filtered([known[position] for position in np.flatnonzero(fits).tolist()], failed, hopeless)


@dataclass(frozen=True, slots=True)
class Ranked:
    """Nodes in kube-scheduler's order with their scores."""

    scores: list[int]
    best: str
    """The node that gets SCORE_MAX; empty: none fits any more."""
    devices: Names
    """Those of the best node that the pod would get."""


def rank_nodes(cluster: Cluster, judged: Judgement, names: Sequence[str]) -> Ranked:
    """Return scores, 0..10: one node gets the most, the others by how far they are from it."""
    ranking, known = judged.ranking, judged.names
    best = -1 if ranking is None else _best(ranking, known)
    if ranking is None or best < 0:
        return Ranked([0] * len(names), "", ())
    found = _scores(ranking, best)
    if len(known) != len(names) or known != names:
        by_name = dict(zip(known, found, strict=True))
        found = [by_name.get(name, 0) for name in names]
    row = cluster.row(known[best])
    return Ranked(found, known[best], row.named(ranking.devices(best)) if row else ())


def _best(ranking: Ranking, names: Sequence[str]) -> int:
    """Return the position of the least cost, of equal ones that of the first name; -1: none fits.

    Where a node is on the board depends on when it was heard of, which is not the same for all replicas.
    """
    first = ranking.best()
    if first < 0:
        return -1
    equal = np.flatnonzero((ranking.verdict == Verdict.FITS) & (ranking.cost == ranking.cost[first]))
    return int(min(equal.tolist(), key=lambda position: names[position]))


def _scores(ranking: Ranking, best: int) -> list[int]:
    fits = ranking.verdict == Verdict.FITS
    least = int(ranking.cost[best])
    span = max(1, int(ranking.cost[fits].max()) - least)
    scores = np.where(fits, (SCORE_MAX - 1) - (ranking.cost - least) * (SCORE_MAX - 1) // span, 0)
    scores[best] = SCORE_MAX
    found: list[int] = scores.tolist()
    return found


def refusal_text(pod: Pod, verdict: Verdict) -> str:
    """Return why a node cannot take a pod."""
    shares = pod.ask.shares
    most = max(shares, key=lambda share: (share.devices, share.milli))
    time = f"{most.milli // 10} percent" if most.milli < 1000 else "whole"
    several = f"{most.devices} devices" if most.devices > 1 else "device"
    if verdict is Verdict.NO_CPU:
        return "not enough processors beside the pods that are to come"
    if verdict is Verdict.NO_MEMORY:
        return "not enough memory beside the pods that are to come"
    if verdict is Verdict.NO_MODEL:
        return "its devices are of no model that the pod takes"
    if verdict is Verdict.FEW_DEVICES:
        text = (
            f"fewer than {most.devices} healthy devices are offered"
            if most.devices > 1
            else "no healthy device is offered"
        )
        return text + (" that device affinity allows" if pod.affinity or pod.anti_affinity else "")
    if len(shares) > 1:
        text = f"its devices have no room for {len(shares)} shares together"
    elif time == "whole":
        text = f"no {several} free" if most.devices == 1 else f"fewer than {several} free"
    else:
        text = f"no device with {time} left" if most.devices == 1 else f"fewer than {several} with {time} left on each"
    if verdict is Verdict.NO_DEVICE_MEMORY:
        need = f"{bytes_text(most.mib * 2**20)} of memory" if most.mib is not None else "memory in proportion"
        return f"{text} and {need}"
    return text
