"""Answers kube-scheduler: which nodes, in which order; and counts what was answered until it is seen. No I/O.

kube-scheduler takes one pod after the other, and binds it while it goes on with the next. What an answer chose is
therefore assumed at once: the next pod does not get the same room. An answer is the same however often it is asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from sharepod.scheduler.decision import Filtered, Judgement, Ranked, filter_nodes, judge, rank_nodes
from sharepod.scheduler.victims import least_victims

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sharepod.scheduler.cluster import Assumed, Cluster
    from sharepod.scheduler.pod import Pod

Known = TypeVar("Known")

REMEMBERED: Final = 1024
"""Pods whose last answers are kept."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The last answers about a pod."""

    at_s: float
    pod: Pod
    proposed: int
    """Nodes that kube-scheduler found fit."""
    filtered: Filtered
    ranked: Ranked | None


class Extender:
    """The answers of one replica."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.chosen: Callable[[Assumed], None] = lambda _: None
        """Called with each choice, as soon as it is made."""
        self._answered: OrderedDict[str, Answered] = OrderedDict()
        self._judged: tuple[Judgement, list[str]] | None = None
        """What the last filter judged, and the nodes that it let pass: they are asked about again at once."""
        self._victims: OrderedDict[str, frozenset[str]] = OrderedDict()
        """Uids of the pods that were named to go for a pod, by its uid."""

    def filter(self, pod: Pod, names: Sequence[str], now_s: float) -> Filtered:
        """Return which of these nodes can take a pod; a single one is chosen."""
        if self._is_bound(pod):
            return Filtered(list(names), {}, {})
        self.cluster.forget(pod.uid)
        self.cluster.settle(now_s)
        judged = judge(self.cluster, pod, names)
        filtered = filter_nodes(judged, names)
        self._judged = judged, filtered.fitting
        _keep(self._answered, pod.uid, Answered(now_s, pod, len(names), filtered, None))
        if len(filtered.fitting) == 1:  # kube-scheduler asks for no order then
            self._choose(rank_nodes(self.cluster, judged, names), pod, now_s)
        return filtered

    def prioritise(self, pod: Pod, names: Sequence[str], now_s: float) -> Ranked:
        """Return the scores of nodes; the one that gets the most is chosen."""
        if self._is_bound(pod):
            return Ranked([0] * len(names), "", ())
        self.cluster.forget(pod.uid)
        self.cluster.settle(now_s)
        ranked = rank_nodes(self.cluster, self._judgement(pod, names), names)
        last = self._answered.get(pod.uid)
        filtered = last.filtered if last else Filtered(list(names), {}, {})
        answered = Answered(now_s, pod, last.proposed if last else len(names), filtered, ranked)
        _keep(self._answered, pod.uid, answered)
        self._choose(ranked, pod, now_s)
        return ranked

    def preempt(
        self, pod: Pod, proposed: Mapping[str, tuple[Sequence[str], int]], now_s: float
    ) -> dict[str, tuple[list[str], int]]:
        """Return by node the uids of the pods that are to go for a pod, and how many budgets that breaks.

        kube-scheduler's victims are left as they are where only they make room for what is not ours to see; a node
        where nobody of lower priority makes room on the devices is left out. Nobody else is to go as long as one that
        was named before is on its way out.
        """
        if self.makes_room(pod):
            return {}
        self.cluster.forget(pod.uid)
        self.cluster.settle(now_s)
        found: dict[str, tuple[list[str], int]] = {}
        for name, (uids, broken) in proposed.items():
            there = self.cluster.rest(pod, name) if not pod.refusal else None
            if there is None:
                continue
            rest, running = there
            victims = least_victims(rest, pod.ask, pod.priority, running, uids)
            if victims is None or not (victims or uids):
                continue
            # Pods without shares are not among ours: whoever of them was to go makes room for something else.
            others = set(uids).difference(other.uid for other in running)
            found[name] = sorted({*victims, *others}) if victims else sorted(uids), broken
        _keep(self._victims, pod.uid, frozenset(uid for uids, _ in found.values() for uid in uids))
        return found

    def makes_room(self, pod: Pod) -> bool:
        """Tell whether a pod that was named to go for this one is on its way out, and not seen to be gone."""
        named = (self.cluster.pod(uid) for uid in self._victims.get(pod.uid, ()))
        return any(one is not None and one.deleting for one in named)

    def answered(self, uid: str) -> Answered | None:
        """Return the last answers about a pod."""
        return self._answered.get(uid)

    def _judgement(self, pod: Pod, names: Sequence[str]) -> Judgement:
        """Judge nodes, unless the filter has just done so and nothing has changed since."""
        if self._judged is not None:
            judged, fitting = self._judged
            if judged.pod == pod and judged.version == self.cluster.version and fitting == names:
                return judged
        return judge(self.cluster, pod, names)

    def _choose(self, ranked: Ranked, pod: Pod, now_s: float) -> None:
        if ranked.best and ranked.devices:
            self.chosen(self.cluster.assume(pod, ranked.best, ranked.devices, now_s))

    def _is_bound(self, pod: Pod) -> bool:
        """Tell whether the API server shows a pod bound already: kube-scheduler is behind, nothing is to be chosen."""
        known = self.cluster.pod(pod.uid)
        return known is not None and bool(known.node)


def _keep(memory: OrderedDict[str, Known], uid: str, known: Known) -> None:
    """Note what is known of a pod; of too many the oldest is forgotten."""
    memory[uid] = known
    memory.move_to_end(uid)
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)
