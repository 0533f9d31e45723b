"""The pods of this node as the API server has them: one now, all as they change, and Events about them.

Nothing is kept that the API server knows better but the view of a running watch. It says what was asked for, not what
runs: a pod that is gone here may still have containers (`processes.py`), and one that is there may have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from sharepod.deviceplugin.api import Answer, Api, ApiUnavailable, said
from sharepod.deviceplugin.event_writer import EventWriter
from sharepod.deviceplugin.events import Subject
from sharepod.deviceplugin.pod import Object, Pod, at, read_pod
from sharepod.deviceplugin.runtime import Runtime, read_runtime
from sharepod.deviceplugin.unit import RESOURCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from types import TracebackType

    from sharepod.deviceplugin.cluster import Cluster

log = logging.getLogger("sharepod.deviceplugin.pods")

GET_S: Final = 10.0
"""A pod is read while kubelet waits for PreStartContainer, 30 s at most."""
LIST_S: Final = 30.0
_BARREN_MAX: Final = 5
"""Watches in a row that brought nothing: the version may be one that the server ends without a word. List again."""
_LASTED: Final = 20
"""A watch that lives this many first pauses was one."""
_PODS: Final = "/api/v1/pods"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")

Change = tuple[Literal["set", "gone"], Pod]


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the watch comes back after it broke: the first pause doubles up to the last, all with jitter."""

    first_s: float = 0.5
    last_s: float = 30.0
    watch_s: float = 300.0
    """How long a watch is asked to last, give or take a fifth."""


class Pods:
    """The API server's pods of one node; an asynchronous context manager, one for the life of the plugin."""

    def __init__(self, cluster: Cluster, node_name: str, pace: Pace | None = None, *, resource: str = RESOURCE) -> None:
        self._server = cluster.server
        self._api = Api(cluster)
        self._node_name = node_name
        self._resource = resource
        self._pace = pace or Pace()
        self._events = EventWriter(self._api, cluster.server, node_name, self._pace.first_s)
        self._listed = False
        self.failed: Callable[[], None] = lambda: None
        """Called when the API server does not answer, or not as it should."""

    @property
    def listed(self) -> bool:
        """Tell whether whoever watches has been told of all pods once, and has done with them."""
        return self._listed

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        await self._events.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._events.__aexit__(kind, error, trace)
        await self._api.__aexit__(kind, error, trace)

    async def get(self, namespace: str, name: str) -> Pod | None:
        """Return a pod as it is now, None when there is none. Raises ApiUnavailable after at most 10 s."""
        if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            return None
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        answer = await self._patiently(path)
        if answer.status == 404 and _is_no_pod(answer.body):
            return None
        pod = read_pod(answer.body, self._resource) if answer.status == 200 else None
        if pod is None or (pod.namespace, pod.name) != (namespace, name):
            raise ApiUnavailable(said(self._server, answer.status, answer.body), status=answer.status)
        return pod

    async def runtime(self) -> Runtime:
        """Return what runs the node's containers. Raises ApiUnavailable."""
        answer = await self._patiently(f"/api/v1/nodes/{self._node_name}")
        runtime = read_runtime(answer.body) if answer.status == 200 else None
        if runtime is None:
            raise ApiUnavailable(said(self._server, answer.status, answer.body), status=answer.status)
        return runtime

    async def _patiently(self, path: str) -> Answer:
        deadline_s = time.monotonic() + GET_S
        pause_s = self._pace.first_s / 2
        while True:
            try:
                return await self._api.call("GET", path, timeout_s=max(0.1, deadline_s - time.monotonic()))
            except ApiUnavailable as error:
                self.failed()
                wait_s = _jittered(pause_s) if error.after_s is None else error.after_s
                if error.final or time.monotonic() + wait_s >= deadline_s:
                    raise
                await asyncio.sleep(wait_s)
                pause_s *= 2

    async def watch(self) -> AsyncIterator[Change]:
        """Yield every pod of the node, then what changes of what a Pod holds, for ever.

        The API server's failures are logged and waited out. Whatever was missed meanwhile comes with the next list: in
        the end the sum of what was yielded is what the server has.
        """
        view = _View(self._resource)
        trouble = _Trouble(self._pace)
        while True:
            try:
                async for change in self._list(view):
                    yield change
                self._listed = True
                while trouble.barren < _BARREN_MAX:
                    trouble.watching()
                    async with contextlib.aclosing(self._follow(view, trouble)) as changes:
                        async for change in changes:
                            yield change
                    if trouble.silent():
                        break
                    await trouble.pause(None)
                trouble.barren = 0
                view.listed = False
            except _Gone:
                view.version, view.listed = "", False
                await trouble.pause(None)
            except ApiUnavailable as error:
                self.failed()
                if error.status == 504 and not view.listed:  # the server is behind that version, maybe for ever
                    view.version = ""
                await trouble.pause(error)

    async def _list(self, view: _View) -> AsyncGenerator[Change]:
        """Take the view from a list that is at least as new as it, unless only a watch broke since the last."""
        if view.listed:
            return
        parameters = self._selector()
        if view.version:
            parameters["resourceVersion"] = view.version  # from the server's cache, as kubelet does
        answer = await self._api.call("GET", _PODS, parameters=parameters, timeout_s=LIST_S)
        items, version = answer.body.get("items"), at(answer.body, "metadata").get("resourceVersion")
        if answer.status == 410:
            raise _Gone
        if answer.status != 200 or not isinstance(version, str) or not (items is None or isinstance(items, list)):
            raise ApiUnavailable(said(self._server, answer.status, answer.body), status=answer.status)
        listed = [pod for item in items or [] if (pod := read_pod(item, self._resource)) is not None]
        for change in view.replaced(listed):
            yield change
        view.version, view.listed = version, True

    async def _follow(self, view: _View, trouble: _Trouble) -> AsyncGenerator[Change]:
        """Yield the changes of one watch from the view's version until it ends. Raises _Gone, ApiUnavailable."""
        watch_s = int(self._pace.watch_s * random.uniform(0.8, 1.2)) or 1  # noqa: S311 - no secret
        parameters = self._selector() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": view.version,
            "timeoutSeconds": str(watch_s),
        }
        try:
            async with contextlib.aclosing(self._api.stream(_PODS, parameters, watch_s + 15.0)) as lines:
                async for line in lines:
                    self._check(line)
                    trouble.over()
                    for change in view.changed(str(line.get("type")), at(line, "object")):
                        yield change
        except ApiUnavailable as error:
            if error.status == 410:
                raise _Gone from None
            raise

    def _check(self, line: Object) -> None:
        """Raise ApiUnavailable when a line of a watch is an error: a Status in place of a pod."""
        if line.get("type") == "ERROR":
            status = at(line, "object")
            code = status.get("code")
            code = code if isinstance(code, int) else 0
            raise ApiUnavailable(said(self._server, code, status), status=code)

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node_name}"}

    async def event(self, pod: Pod, reason: str, message: str, warning: bool = False) -> None:
        """Say something about a pod to those who look at it. Returns at once and never raises.

        The same again is counted in one Event; a pod gets a few writes a minute.
        """
        self._events.tell(Subject(pod.namespace, pod.name, pod.uid), reason, message, warning=warning)

    def node_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Say something about the node to its operator. Returns at once and never raises."""
        self._events.tell(Subject("", self._node_name, self._node_name), reason, message, warning=warning)


class _Gone(Exception):
    """The version that we have is too old for the server."""


class _View:
    """The pods as yielded so far, and the version up to which that is."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self.version = "0"  # whatever the server has at hand: the watch from there brings the rest
        self.listed = False
        self._pods: dict[str, Pod] = {}
        """By uid: a pod with the name of another is another pod."""

    def replaced(self, pods: list[Pod]) -> list[Change]:
        there = {pod.uid for pod in pods}
        changes: list[Change] = [("gone", self._pods.pop(uid)) for uid in list(self._pods) if uid not in there]
        for pod in pods:
            changes += self._set(pod)
        return changes

    def changed(self, kind: str, item: Object) -> list[Change]:
        """Take one line of a watch; a bookmark brings only the version."""
        version = at(item, "metadata").get("resourceVersion")
        pod = read_pod(item, self._resource) if kind in ("ADDED", "MODIFIED", "DELETED") else None
        changes: list[Change] = []
        if pod is not None and kind == "DELETED":
            known = self._pods.pop(pod.uid, None)
            changes = [("gone", pod)] if known is not None else []
        elif pod is not None:
            changes = self._set(pod)
        if isinstance(version, str) and version:
            self.version = version
        return changes

    def _set(self, pod: Pod) -> list[Change]:
        if self._pods.get(pod.uid) == pod:
            return []
        self._pods[pod.uid] = pod
        return [("set", pod)]


class _Trouble:
    """How long to wait before the next try; says once that there is trouble and once that it is over."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._failures = 0
        self._since_s = 0.0
        self._said = False
        self.barren = 0

    def watching(self) -> None:
        """A watch begins."""
        self._since_s = time.monotonic()
        self.barren += 1

    def silent(self) -> bool:
        """Tell whether a watch that ended well brought nothing in all its time, although a bookmark comes each minute.

        The server may have begun its versions anew, and then sends nothing until it reaches ours.
        """
        return self.barren > 0 and time.monotonic() - self._since_s >= self._pace.watch_s / 2

    def over(self) -> None:
        """The server sent something."""
        self._failures = 0
        self.barren = 0
        if self._said:
            self._said = False
            log.info("API server is back")

    async def pause(self, error: ApiUnavailable | None) -> None:
        """Wait after a watch or list that ended. The first pause in a row is short; none is left out."""
        if self.barren and time.monotonic() - self._since_s >= _LASTED * self._pace.first_s:
            self._failures = 0  # it was silent and lasted: nothing may have happened
        if error is not None and not self._said and self._failures:  # one alone is how many a watch ends
            self._said = True
            log.warning("pods are not watched", extra={"error": str(error)})
        pause_s = min(self._pace.first_s * 2 ** min(self._failures, 16), self._pace.last_s)
        self._failures += 1
        asked_s = error.after_s if error is not None and error.after_s is not None else 0.0
        await asyncio.sleep(max(asked_s, _jittered(pause_s)))


def _is_no_pod(body: Object) -> bool:
    """Tell the API server's word that there is no such pod from a 404 of something else at its address."""
    return body.get("kind") == "Status" and at(body, "details").get("kind") == "pods"


def _jittered(pause_s: float) -> float:
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
