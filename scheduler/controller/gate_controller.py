"""The controller's loop: runs a scheduling cycle when something has changed or time has passed.

action_writer.py writes its actions. Only the replica that holds the lease decides; the others follow the cluster, so
that they can take over at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from sharepod.kube.events import Subject
from sharepod.kube.informer import Informer, Pace, Source
from sharepod.kube.objects import at
from sharepod.scheduler.controller.actions import Release
from sharepod.scheduler.controller.controller_state import ControllerState
from sharepod.scheduler.controller.fairness import overfull
from sharepod.scheduler.controller.queues import KEY, Queues, read_queues
from sharepod.scheduler.controller.scheduling_cycle import PLACED, decide
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.request import CLASSES, DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sharepod.kube.client import Client
    from sharepod.kube.lease import Lease
    from sharepod.scheduler.controller.action_writer import ActionWriter
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod

log = logging.getLogger("sharepod.scheduler.gates")

ROUND_S: Final = 0.25
"""The shortest time between two cycles: pods that come together are decided together."""
LOOK_S: Final = 1.0
"""The longest time between two cycles: waiting jobs age."""
FAILED_S: Final = 5.0
"""The pause after a cycle that failed: the next one may fail, too."""
TOLD_MAX: Final = 20
"""Queues over their caps that are reported at a time; `sharepod queue` shows all."""
AGE_MAX_S: Final = 30 * 86_400.0
"""The greatest age that is believed of a pod that was there before this replica: ages come from other clocks."""
NEWS_S: Final = 60.0
"""The greatest age that is believed of a pod that comes or changes while this replica follows the cluster."""
JUMP_S: Final = 5.0
"""If its offset changes by more than this between two looks, the wall clock was set, not slewed."""


class GateController:
    """The decisions of one replica."""

    def __init__(
        self,
        cluster: Cluster,
        writer: ActionWriter,
        lease: Lease,
        not_ready: Callable[[], str],
        *,
        unix: Callable[[], float] = time.time,
    ) -> None:
        """`not_ready` returns why nothing can be decided yet, empty: it can. `unix` is the wall clock, which may jump.

        `lease` says whether this replica decides. The writer gets this object's callbacks and counters.
        """
        self._cluster, self._writer, self._lease = cluster, writer, lease
        self._not_ready, self._unix = not_ready, unix
        self.state, self.queues = ControllerState(), Queues()
        self.rounds = 0
        """How many cycles have succeeded."""
        self.last_s = 0.0
        """How long the last cycle took."""
        self.refusal = ""
        """Why the rules of queues are not those that were last given; empty: they are."""
        self._rules: Subject | None = None
        """The ConfigMap with the rules of queues, for Events; None: none was seen."""
        self._news: list[tuple[str, str, bool]] = []
        """Events about queues, still to be written: reason, text, whether it is a warning."""
        self._dated = False
        """The pods that were there before this replica have got their times."""
        self._offset_s: float | None = None
        """The wall clock's offset to the monotonic clock at the last look."""
        self._jumped_s = 0.0
        """How far the wall clock has been set since this replica started."""
        self._over: frozenset[str] = frozenset()
        """Queues that hold more than their caps."""
        writer.refused, writer.released, writer.counters = self._refused, self._released, self.state.counters
        writer.leads = lease.is_held

    async def follow_rules(self, client: Client, where: str) -> None:
        """Follow the ConfigMap `where`, NAMESPACE/NAME, for ever, and take the rules of queues from it."""
        namespace, _, name = where.partition("/")
        path, query = f"/api/v1/namespaces/{namespace}/configmaps", {"fieldSelector": f"metadata.name={name}"}
        source: Source[tuple[str, str, str]] = Source(path, query, _read_rules, lambda _: name)
        async with contextlib.aclosing(Informer(client, source, Pace(last_s=5.0), log).changes()) as changes:
            async for kind, (_, uid, text) in changes:
                self._rules = Subject(namespace, name, uid, "ConfigMap")
                self.set_rules({KEY: text} if kind == "set" else {})  # else it was deleted: the defaults hold

    def set_rules(self, data: Mapping[str, object]) -> None:
        """Take the rules of queues from a ConfigMap's data. An Event says whether they could be read.

        If they could not, the former rules stay, and `refusal` says why.
        """
        try:
            self.queues = read_queues(data)
        except PlacementError as error:
            self.refusal = str(error)
            log.warning("rules of queues stay as they were", extra={"cause": self.refusal})
            self._news = [("QueuesRefused", f"the rules stay as they were: {self.refusal}", True)]
        else:
            self.refusal, self._over = "", frozenset()  # queues over their new caps are reported again
            self._news = [("QueuesRead", f"rules of {len(self.queues.by_name)} queues, and of all others", False)]
            log.info("rules of queues", extra={"queues": len(self.queues.by_name)})

    async def decide_for_ever(self) -> None:
        """Decide, for ever, when the view has changed and when LOOK_S have passed, at most every ROUND_S.

        A cycle that fails is logged, and the next one follows after FAILED_S.
        """
        decided_s, version = 0.0, -1
        while True:
            now_s = time.monotonic()
            self._cluster.advance(now_s)
            if self._cluster.version != version or now_s - decided_s >= LOOK_S:
                decided_s = now_s
                try:
                    while self.look(now_s):
                        await asyncio.sleep(0)
                except Exception:  # nothing is written; what the cycle has assumed on the view expires
                    log.exception("round failed", extra={"tried_again_s": FAILED_S})
                    await asyncio.sleep(FAILED_S)
                version = self._cluster.version
            await asyncio.sleep(ROUND_S)

    def look(self, now_s: float) -> bool:
        """Decide one cycle, and start to write its actions, if this replica holds the lease and knows enough.

        Else only follow the view. Return True if this cycle has placed as many pods as one may: then the next one
        should follow at once. An error of the cycle is counted and raised.
        """
        self._date(now_s)
        if self._not_ready() or not self._lease.is_held():
            self.state.look(self._cluster, (), now_s)  # so that it can take over at once
            self.state.decides = False
            return False
        began_s, result = time.perf_counter(), "failed"
        try:
            actions = decide(self._cluster, self.state, self.queues, now_s)
            result = "decided"
        finally:
            self.last_s = time.perf_counter() - began_s
            self.state.counters.rounds[result].observe(self.last_s)
        self.rounds += 1
        self._writer.write(actions)
        self._look_at_caps()
        self._tell_news()
        released = sum(len(action.places) for action in actions if isinstance(action, Release))
        if actions:
            log.info("decided", extra={"orders": len(actions), "released": released, "seconds": round(self.last_s, 4)})
        return released >= PLACED

    def _date(self, now_s: float) -> None:
        """Note in the state, on the monotonic clock, since when the pods that have come or changed exist and run.

        Both times are from other clocks: the creation from the API server's, the start from the node's. So an age is
        cut to AGE_MAX_S, or to NEWS_S for a pod that comes while this replica follows the cluster. A start is never
        before the creation.
        """
        unix_s = now_s + self._offset(self._unix() - now_s)
        most_s = NEWS_S if self._dated else AGE_MAX_S
        for uid in self._cluster.changed():
            pod = self._cluster.pod(uid)
            if pod is not None:
                age_s = _age(pod.created_s, unix_s, most_s)
                started_s = now_s - _age(pod.started_s, unix_s, age_s) if pod.running and pod.started_s else None
                self.state.note(pod, since_s=now_s - age_s, started_s=started_s)
        self._dated = self._dated or not self._not_ready()

    def _offset(self, shown_s: float) -> float:
        """Note whether the wall clock has jumped; return its offset to the monotonic clock, without all its jumps.

        `shown_s`: the offset now, with the jumps.
        """
        before_s, self._offset_s = self._offset_s, shown_s
        if before_s is not None and abs(shown_s - before_s) > JUMP_S:
            self._jumped_s += shown_s - before_s
            log.warning("wall clock has jumped", extra={"seconds": round(shown_s - before_s, 1)})
        return shown_s - self._jumped_s

    def _refused(self, pod: Pod) -> None:
        """Note that a disruption budget protects a pod from its eviction; the writer calls this."""
        self.state.refused(pod, time.monotonic())

    def _released(self, pod: Pod) -> None:
        """Count how long a pod waited for its gate to be removed; the writer calls this after the removal."""
        waited_s = self.state.waited_s(pod.uid, time.monotonic())
        if waited_s is not None:
            urgent = min((share.share_class for share in pod.request.shares), key=CLASSES.index, default=CLASSES[-1])
            self.state.counters.released(urgent, pod.priority, waited_s)

    def _look_at_caps(self) -> None:
        """Report the queues that have come to hold more than their caps; none of their pods is ended for that."""
        over = {name: held for name, held, cap in overfull(self.state, self.queues)}
        for name in sorted(over.keys() - self._over)[:TOLD_MAX]:
            cap = self.queues.of(name).cap_milli or 0
            text = (
                f"queue {name} holds {over[name] / DEVICE_MILLI:g} devices, its cap is {cap / DEVICE_MILLI:g}: nothing "
                "of it ends, and nothing more is released until enough has ended"
            )
            log.warning("queue holds more than its cap", extra={"queue": name, "cause": text})
            self._news.append(("QueueOverCap", text, True))
        self._over = frozenset(over)

    def _tell_news(self) -> None:
        """Have the Events about queues written, at the ConfigMap of their rules; without one they are dropped."""
        news, self._news = self._news, []
        if self._rules is not None:
            for reason, text, warning in news:
                self._writer.tell_of(self._rules, reason, text, warning=warning)


def _read_rules(item: object) -> tuple[str, str, str] | None:
    """Return the name, the uid and the rules of a ConfigMap; None: `item` is not a JSON object."""
    if not isinstance(item, dict):
        return None
    metadata = at(item, "metadata")
    return str(metadata.get("name")), str(metadata.get("uid") or ""), str(at(item, "data").get(KEY, ""))


def _age(at_s: float, unix_s: float, most_s: float) -> float:
    """Return how many seconds ago something happened, clamped to 0 to `most_s`.

    `at_s`: when it happened; 0: not known, so the age is 0. `unix_s`: now. Both are seconds since 1970.
    """
    return min(max(0.0, unix_s - at_s), most_s) if at_s else 0.0
