"""Reads the pods of this node at the API server: one as it is now, all as they change; and writes Events about them.

The API server knows what was asked for, not what runs. A pod that is gone there may still have containers
(`processes.py` tells), and a pod that is there may have none.
"""

from __future__ import annotations

import contextlib
import logging
import re
from typing import TYPE_CHECKING, Final, Self

from sharepod.deviceplugin.cdi.runtime import Runtime, read_runtime
from sharepod.deviceplugin.core.unit import RESOURCE
from sharepod.kube.client import Answer, Client
from sharepod.kube.event_writer import EventWriter
from sharepod.kube.events import Subject
from sharepod.kube.informer import Change, Informer, Pace, Source
from sharepod.kube.objects import Object, at, entries
from sharepod.kube.pod import FINISHED, Pod, read_pod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType

    from sharepod.kube.access import Access

log = logging.getLogger("sharepod.deviceplugin.pods")

COMPONENT: Final = "sharepod-device-plugin"
GET_S: Final = 10.0
"""How long one read of a pod is tried: meanwhile kubelet waits for PreStartContainer, 30 s at most."""
_PODS: Final = "/api/v1/pods"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Pods:
    """The pods of one node at the API server; an asynchronous context manager that lives as long as the plugin."""

    def __init__(self, access: Access, node_name: str, pace: Pace | None = None, *, resource: str = RESOURCE) -> None:
        """`resource`: a pod's units are what it asks for of this resource. `pace` of the watch; None: the usual one."""
        self._client = Client(access, COMPONENT)
        self._node_name = node_name
        self._resource = resource
        self._pace = pace or Pace()
        self._events = EventWriter(self._client, node_name, COMPONENT, self._pace.first_s)
        source = Source(
            _PODS,
            {"fieldSelector": f"spec.nodeName={node_name}"},
            lambda item: read_pod(item, resource),
            lambda pod: pod.uid,
        )
        self._informer = Informer(self._client, source, self._pace, log)
        self.failed: Callable[[], None] = lambda: None
        """Called when the API server does not answer, or not as it should."""

    @property
    def listed(self) -> bool:
        """Tell whether the watch has reported all pods once, and its reader has handled them."""
        return self._informer.listed

    async def __aenter__(self) -> Self:
        """Read the credentials. Raises AccessError."""
        await self._client.__aenter__()
        await self._events.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the pending Events, if that takes no more than a moment, and close the session."""
        await self._events.__aexit__(kind, error, trace)
        await self._client.__aexit__(kind, error, trace)

    async def get(self, namespace: str, name: str, within_s: float = GET_S) -> Pod | None:
        """Return a pod as it is now; None: it does not exist.

        While the API server is away, it is asked again for `within_s`. Raises ApiUnavailable after that time.
        """
        if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            return None
        answer = await self._read(f"/api/v1/namespaces/{namespace}/pods/{name}", within_s)
        if answer.status == 404 and _is_no_pod(answer.body):
            return None
        pod = read_pod(answer.body, self._resource) if answer.status == 200 else None
        if pod is None or (pod.namespace, pod.name) != (namespace, name):
            raise self._client.refusal(answer)
        return pod

    async def uids(self) -> frozenset[str]:
        """Return the cgroup uids of the node's pods that are not over, as of now. Raises ApiUnavailable."""
        answer = await self._read(f"{_PODS}?fieldSelector=spec.nodeName%3D{self._node_name}")
        if answer.status != 200:
            raise self._client.refusal(answer)
        pods = (read_pod(item, self._resource) for item in entries(answer.body, "items"))
        return frozenset(pod.cgroup_uid for pod in pods if pod is not None and pod.phase not in FINISHED)

    async def runtime(self) -> Runtime:
        """Return the versions of the node's kubelet and container runtime. Raises ApiUnavailable."""
        answer = await self._read(f"/api/v1/nodes/{self._node_name}")
        runtime = read_runtime(answer.body) if answer.status == 200 else None
        if runtime is None:
            raise self._client.refusal(answer)
        return runtime

    async def _read(self, path: str, within_s: float = GET_S) -> Answer:
        """Return the answer to a GET, which is repeated for `within_s` while the API server is away.

        Raises ApiUnavailable.
        """
        return await self._client.patiently(path, within_s, self._pace.first_s / 2, self.failed)

    async def watch(self) -> AsyncGenerator[Change[Pod]]:
        """Yield every pod of the node, then every change of a field that a Pod holds, for ever."""
        self._informer.failed = self.failed
        async with contextlib.aclosing(self._informer.changes()) as changes:
            async for change in changes:
                yield change

    async def event(self, pod: Pod, reason: str, message: str, warning: bool = False) -> None:
        """Write an Event about a pod. Returns at once and never raises.

        A repeated Event is counted in the first one. A pod gets a few writes a minute at most.
        """
        self._events.tell(Subject(pod.namespace, pod.name, pod.uid), reason, message, warning=warning)

    def node_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an Event about the node for its operator. Returns at once and never raises."""
        self._events.tell(Subject("", self._node_name, self._node_name), reason, message, warning=warning)


def _is_no_pod(body: Object) -> bool:
    """Tell whether a 404 is the API server's "no such pod", and not the answer of another server at its address."""
    return body.get("kind") == "Status" and at(body, "details").get("kind") == "pods"
