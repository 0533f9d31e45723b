"""Writes the actions of a scheduling cycle to the API server (gates, annotations, evictions) and reports the results.

Each order is one request. It names its pod by uid, so that the API server refuses it for another pod of the same name.
A request may be made twice without harm. One that fails is tried again while the decision counts on the view (TRY_S);
after that the next cycle decides anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.terms import YIELD
from sharepod.kube.client import MERGE, Answer, ApiUnavailable
from sharepod.kube.events import Subject
from sharepod.scheduler.controller.actions import Action, Evict, Release, Tell, Yield
from sharepod.scheduler.gate_metrics import GateCounters
from sharepod.scheduler.state.cluster import ASSUMED_S
from sharepod.scheduler.state.pod import GATE, NODE, device_annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from sharepod.kube.client import Client
    from sharepod.kube.event_writer import EventWriter
    from sharepod.scheduler.state.cluster import Assumed, Cluster
    from sharepod.scheduler.state.pod import Pod

log = logging.getLogger("sharepod.scheduler.orders")

CALL_S: Final = 5.0
TRY_S: Final = ASSUMED_S - CALL_S
"""How long a request is tried again: the last try ends while the decision still counts on the view."""
_PAUSE_S: Final = 0.2
"""The pause after the first failure; it doubles after each further one. Chance shortens each, by half at most."""
_PAUSE_MAX_S: Final = 5.0
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_BUDGET: Final = "disruption budget"
"""Marks a 429 as the refusal of an eviction; any other 429 says that the API server is busy."""
_DONE: Final = {200: "written", 201: "written", 404: "gone", 409: "conflict"}
"""The result, one of gate_metrics.RESULTS, by the status of an answer. 404, 409: the pod has gone, and another may have
come."""
_FAILED: Final = {
    0: "away", 401: "forbidden", 403: "forbidden", 400: "invalid", 409: "conflict", 410: "invalid", 422: "invalid",
}  # fmt: skip
"""The result by the status of ApiUnavailable: 0 if there was no answer; 409 if this replica does not decide any more.
Any other status counts as `busy`."""
_NEWS_MAX: Final = 128
"""A Released Event is dropped while more Events than this wait to be written: others matter more."""


class ActionWriter:
    """The writer of one controller."""

    def __init__(self, client: Client, cluster: Cluster, events: EventWriter) -> None:
        self._client, self._cluster, self._events = client, cluster, events
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused: Callable[[Pod], None] = lambda _: None
        """Called for a pod that a disruption budget protects from its eviction."""
        self.released: Callable[[Pod], None] = lambda _: None
        """Called for a pod after its gate was removed."""
        self.leads: Callable[[], bool] = lambda: True
        """Tells whether this replica still decides. When it does not, no request is tried again."""
        self.counters = GateCounters()

    def write(self, actions: Iterable[Action]) -> None:
        """Start to write actions, each request in a task of its own, without waiting for any of them.

        Those that make room come first. What a cycle has assumed for an action that is not written expires.
        """
        rank = {Yield: 0, Evict: 1, Release: 2, Tell: 3}
        for action in sorted(actions, key=lambda action: rank[type(action)]):
            if isinstance(action, Tell):
                self.tell(action.pod, action.reason, action.text, warning=action.warning)
            elif isinstance(action, Yield):
                reason = {"pause": "Paused", "limit": "Limited", "": "Resumed"}[action.how]
                self._start("yield", action.pod, self._yield(action), partial(self._after_yield, reason.lower()))
                self.tell(action.pod, reason, action.why, warning=False)
            elif isinstance(action, Evict):
                self._start("evict", action.pod, self._evict(action), partial(self._after_eviction, action))
            else:
                for assumed in action.places:
                    done = partial(self._after_release, action, assumed)
                    self._start("release", assumed.pod, self._release(assumed), done)

    def tell(self, pod: Pod, reason: str, text: str, *, warning: bool) -> None:
        """Have an Event about a pod written: `reason` is one word, `text` a line for users (EventWriter.tell)."""
        self.tell_of(Subject(pod.namespace, pod.name, pod.uid), reason, text, warning=warning)

    def tell_of(self, subject: Subject, reason: str, text: str, *, warning: bool) -> None:
        """Have an Event about any object written, as `tell` does about a pod."""
        self._events.tell(subject, reason, text, warning=warning)

    async def stop(self) -> None:
        """Cancel the requests that are under way: the next replica that decides finds them undone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, kind: str, pod: Pod, work: Coroutine[None, None, Answer | None], done: Callable[[], None]) -> None:
        """Start a request about a pod as a task of its own: `work` makes it, `done` is called after it was written.

        `kind`: one of gate_metrics.ORDERS.
        """
        task = asyncio.create_task(self._finish(kind, pod, work, done), name=f"sharepod {kind} {pod.title}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(
        self, kind: str, pod: Pod, work: Coroutine[None, None, Answer | None], done: Callable[[], None]
    ) -> None:
        """Await a request and count its result; call `done` if it was written, log why if it was not.

        Arguments: as for `_start`. `work` returns None if a disruption budget protects the pod.
        """
        try:
            answer = await work
        except ApiUnavailable as error:
            cause, result = str(error), _FAILED.get(error.status, "busy")
        else:
            result = "budget" if answer is None else _result(answer)
            cause = "" if answer is None or answer.status in _DONE else str(self._client.refusal(answer))
        self.counters.actions[kind, result] += 1
        if result == "written":
            done()
        if cause:
            extra = {"order": kind, "pod": pod.title, "pod_uid": pod.uid, "cause": cause}
            log.warning("order not written", extra=extra)

    def _after_release(self, action: Release, assumed: Assumed) -> None:
        """Count a released pod (`assumed`). At the first pod of its action, write one Event for all of them.

        The Event is left out if too many Events wait.
        """
        self.released(assumed.pod)
        if assumed is not action.places[0] or self._events.waiting > _NEWS_MAX:
            return
        nodes = sorted({place.node for place in action.places})
        text = f"its gate has gone: it goes to node {assumed.node}"
        if len(action.places) > 1:
            text += f", all {len(action.places)} of {action.job.title} that it needs to {len(nodes)} nodes"
        self.tell(assumed.pod, "Released", text, warning=False)

    def _after_eviction(self, action: Evict) -> None:
        """Count a pod that was evicted, and write an Event about it."""
        self.counters.evictions[action.cause] += 1
        self.counters.yields["evicted"] += action.cause == "yield"
        self.tell(action.pod, "Evicted", action.why, warning=True)

    def _after_yield(self, kind: str) -> None:
        """Count a pod that was made to yield or to go on; `kind` is one of gate_metrics.YIELDS."""
        self.counters.yields[kind] += 1

    async def _release(self, assumed: Assumed) -> Answer | None:
        """Name a pod's node and devices, and remove its gate, in one request. Raises ApiUnavailable.

        The node is named as a node selector, so that kube-scheduler binds the pod there and nowhere else.
        """
        pod = assumed.pod
        node = self._cluster.node(assumed.node)
        if node is None or not node.hostname:
            raise ApiUnavailable(f"node {assumed.node} has no label kubernetes.io/hostname: give it one", status=422)
        body: dict[str, object] = {
            "metadata": {
                "uid": pod.uid,
                "annotations": {**device_annotations(pod, assumed.devices), NODE: assumed.node},
            },
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node.hostname},
                "schedulingGates": [{"$patch": "delete", "name": GATE}],
            },
        }
        return await self._patch(pod, body, _STRATEGIC)

    async def _yield(self, action: Yield) -> Answer:
        """Write into a pod's annotation how it yields; remove the annotation if it goes on. Raises ApiUnavailable."""
        body: dict[str, object] = {"metadata": {"uid": action.pod.uid, "annotations": {YIELD: action.how or None}}}
        return await self._patch(action.pod, body, MERGE)

    async def _patch(self, pod: Pod, body: dict[str, object], media: str) -> Answer:
        """Change a pod by a patch of the content type `media`. Raises ApiUnavailable."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        return await self._repeat(lambda: self._client.call("PATCH", path, body=body, media=media, timeout_s=CALL_S))

    async def _evict(self, action: Evict) -> Answer | None:
        """Ask the API server to evict a pod, and return the answer; None: a disruption budget protects the pod.

        In that case `refused` is called, and an Event is written. Raises ApiUnavailable for any other failure.
        """
        pod = action.pod
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        body: dict[str, object] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            return await self._repeat(lambda: self._client.call("POST", path, body=body, timeout_s=CALL_S))
        except ApiUnavailable as error:
            if error.status != 429 or _BUDGET not in str(error):
                raise
            self.refused(pod)
            self.tell(pod, "NotEvicted", f"a disruption budget keeps it: {action.why}", warning=True)
            return None

    async def _repeat(self, call: Callable[[], Coroutine[None, None, Answer]]) -> Answer:
        """Make a request by `call`, and again while the API server is away or busy; return the answer.

        Raises ApiUnavailable when the pauses add up to TRY_S, when this replica does not decide any more, and when
        another try would not help.
        """
        pause_s, waited_s = _PAUSE_S, 0.0
        while True:
            if not self.leads():
                raise ApiUnavailable("this replica is not the leader any more: the leader decides anew", status=409)
            try:
                return await call()
            except ApiUnavailable as error:
                if error.final or error.status == 400 or _BUDGET in str(error) or waited_s + pause_s > TRY_S:
                    raise
                pause_s = max(pause_s, min(error.after_s or 0.0, _PAUSE_MAX_S))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, _PAUSE_MAX_S)


def _result(answer: Answer) -> str:
    """Return what became of an order, one of gate_metrics.RESULTS.

    A 422 about metadata.uid means that another pod has the name now.
    """
    is_another = answer.status == 422 and "metadata.uid" in str(answer.body.get("message"))
    return "conflict" if is_another else _DONE.get(answer.status, "invalid")
