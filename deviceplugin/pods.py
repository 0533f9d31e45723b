"""The pods of this node as the API server has them: one now, all as they change, and Events about them.

Nothing is kept that the API server knows better but the view of a running watch. It says what was asked for, not what
runs: a pod that is gone here may still have containers (`processes.py`), and one that is there may have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from typing import TYPE_CHECKING, Final, Self

from sharepod.deviceplugin.api import Answer, Api, ApiUnavailable, said
from sharepod.deviceplugin.event_writer import EventWriter
from sharepod.deviceplugin.events import Subject
from sharepod.deviceplugin.pod import Object, Pod, at, read_pod
from sharepod.deviceplugin.runtime import Runtime, read_runtime
from sharepod.deviceplugin.unit import RESOURCE
from sharepod.deviceplugin.watch import Change, Pace, Source, Watch, jittered

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType

    from sharepod.deviceplugin.cluster import Cluster

log = logging.getLogger("sharepod.deviceplugin.pods")

GET_S: Final = 10.0
"""A pod is read while kubelet waits for PreStartContainer, 30 s at most."""
_PODS: Final = "/api/v1/pods"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Pods:
    """The API server's pods of one node; an asynchronous context manager, one for the life of the plugin."""

    def __init__(self, cluster: Cluster, node_name: str, pace: Pace | None = None, *, resource: str = RESOURCE) -> None:
        self._server = cluster.server
        self._api = Api(cluster)
        self._node_name = node_name
        self._resource = resource
        self._pace = pace or Pace()
        self._events = EventWriter(self._api, cluster.server, node_name, self._pace.first_s)
        source = Source(
            _PODS,
            {"fieldSelector": f"spec.nodeName={node_name}"},
            lambda item: read_pod(item, resource),
            lambda pod: pod.uid,
        )
        self._watch = Watch(self._api, cluster.server, source, self._pace, log)
        self.failed: Callable[[], None] = lambda: None
        """Called when the API server does not answer, or not as it should."""

    @property
    def listed(self) -> bool:
        """Tell whether whoever watches has been told of all pods once, and has done with them."""
        return self._watch.listed

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
                wait_s = jittered(pause_s) if error.after_s is None else error.after_s
                if error.final or time.monotonic() + wait_s >= deadline_s:
                    raise
                await asyncio.sleep(wait_s)
                pause_s *= 2

    async def watch(self) -> AsyncGenerator[Change[Pod]]:
        """Yield every pod of the node, then what changes of what a Pod holds, for ever (`watch.py`)."""
        self._watch.failed = self.failed
        async with contextlib.aclosing(self._watch.changes()) as changes:
            async for change in changes:
                yield change

    async def event(self, pod: Pod, reason: str, message: str, warning: bool = False) -> None:
        """Say something about a pod to those who look at it. Returns at once and never raises.

        The same again is counted in one Event; a pod gets a few writes a minute.
        """
        self._events.tell(Subject(pod.namespace, pod.name, pod.uid), reason, message, warning=warning)

    def node_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Say something about the node to its operator. Returns at once and never raises."""
        self._events.tell(Subject("", self._node_name, self._node_name), reason, message, warning=warning)


def _is_no_pod(body: Object) -> bool:
    """Tell the API server's word that there is no such pod from a 404 of something else at its address."""
    return body.get("kind") == "Status" and at(body, "details").get("kind") == "pods"
