"""Writes the chosen devices onto pods: `sharepod.io/device`, which the node's device plugin reads.

There is no lock and no order: each pod is written for itself, by the replica that chose. What was not written, because
the API server or that replica was away, is found by looking at what is bound and untold.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.api import Api, ApiUnavailable, said
from sharepod.scheduler.pod import device_annotations

if TYPE_CHECKING:
    from sharepod.scheduler.pod import Pod
    from sharepod.scheduler.row import Names

log = logging.getLogger("sharepod.scheduler")

WRITE_S: Final = 5.0
WAIT_S: Final = 1.0
"""For a pod whose devices kubelet picks while it admits it: they must be known before it is bound."""
_MERGE: Final = "application/merge-patch+json"
_AT_ONCE: Final = 1024


class Annotator:
    """The writer of one replica."""

    def __init__(self, api: Api, server: str) -> None:
        self._api = api
        self._server = server
        self._writing: dict[str, tuple[Names, asyncio.Task[None]]] = {}
        """By the pod's uid."""
        self.written = 0
        self.failed = 0

    def write(self, pod: Pod, devices: Names) -> asyncio.Task[None] | None:
        """Begin to write; what was begun before for the pod ends. None: too much is under way, it is tried again."""
        before = self._writing.get(pod.uid)
        if before is not None and before[0] == devices:
            return before[1]
        if before is not None:
            before[1].cancel()
        elif len(self._writing) >= _AT_ONCE:
            return None
        task = asyncio.create_task(self._write(pod, devices), name=f"sharepod devices of {pod.title}")
        self._writing[pod.uid] = devices, task
        task.add_done_callback(lambda done: self._ended(pod.uid, done))
        return task

    async def stop(self) -> None:
        """End what is under way: the next replica finds what is untold."""
        tasks = [task for _, task in self._writing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        if uid in self._writing and self._writing[uid][1] is task:
            del self._writing[uid]

    async def _write(self, pod: Pod, devices: Names) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        # With its uid: another pod of that name is refused.
        body: dict[str, object] = {"metadata": {"uid": pod.uid, "annotations": device_annotations(pod, devices)}}
        try:
            answer = await self._api.call("PATCH", path, body=body, media=_MERGE, timeout_s=WRITE_S)
        except ApiUnavailable as error:
            cause = str(error)
        else:
            if answer.status in (200, 404, 409):  # 404, 409: it has gone, and another may have come
                self.written += answer.status == 200
                return
            cause = said(self._server, answer.status, answer.body)
        self.failed += 1
        log.warning("devices not written", extra={"pod": pod.title, "pod_uid": pod.uid, "cause": cause})
