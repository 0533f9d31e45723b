"""Asks the API server how members of gangs ended: whether they failed, succeeded or were deleted.

The scheduler watches only live pods, so the watch does not say how a pod ended. Only the replica that decides asks. A
question without an answer is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.terms import shown
from sharepod.kube.client import ApiUnavailable
from sharepod.kube.objects import Object, at, entries
from sharepod.scheduler.controller.restarts import FAILED, GONE, SUCCEEDED

if TYPE_CHECKING:
    from sharepod.kube.client import Client
    from sharepod.kube.lease import Lease
    from sharepod.scheduler.controller.restarts import Restarts
    from sharepod.scheduler.state.pod import Pod

log = logging.getLogger("sharepod.scheduler.endings")

CALL_S: Final = 5.0
LOOK_S: Final = 0.25
"""The time between two looks whether there are questions."""
AWAY_S: Final = 2.0
"""The pause after a question without an answer."""
ASKED_MAX: Final = 16
"""Pods that are asked about at a time."""


class ExitStatuses:
    """One replica's questions to the API server, about the pods that `restarts` wants to know of."""

    def __init__(self, client: Client, restarts: Restarts, lease: Lease) -> None:
        self._client, self._restarts, self._lease = client, restarts, lease

    async def ask_for_ever(self) -> None:
        """Ask about the members that gangs have lost, for ever."""
        while True:
            answered = True
            for pod in self._restarts.unknown(ASKED_MAX) if self._lease.is_held() else ():
                answered = await self._ask(pod)
                if not answered:
                    break
            await asyncio.sleep(LOOK_S if answered else AWAY_S)

    async def _ask(self, pod: Pod) -> bool:
        """Ask how a pod ended, and tell `restarts`; return whether there was an answer."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            answer = await self._client.call("GET", path, timeout_s=CALL_S)
        except ApiUnavailable as error:
            log.warning("not told how a pod ended", extra={"pod": pod.title, "pod_uid": pod.uid, "cause": str(error)})
            return False
        how, detail = GONE, "it was deleted"
        if answer.status == 200 and at(answer.body, "metadata").get("uid") == pod.uid:
            how, detail = how_ended(answer.body)
        self._restarts.found(pod.uid, how, detail)
        log.info("a pod of a gang has ended", extra={"pod": pod.title, "pod_uid": pod.uid, "how": how or "it lives"})
        return True


def how_ended(body: Object) -> tuple[str, str]:
    """Return how a pod ended (FAILED, GONE or SUCCEEDED), and the cause in a few words; two empty texts: it lives.

    `body`: the pod's JSON, as the API server has it now.
    """
    status = at(body, "status")
    if status.get("phase") == "Succeeded":
        return SUCCEEDED, "it has done its work"
    if status.get("phase") != "Failed":
        return (GONE, "it was deleted") if at(body, "metadata").get("deletionTimestamp") else ("", "")
    for entry in entries(status, "containerStatuses"):
        ended = at(at(entry, "state"), "terminated")
        code = ended.get("exitCode")
        if isinstance(code, int) and code:
            return FAILED, f"its container {shown(str(entry.get('name')))} ended with {code}"
    reason = status.get("reason")
    if isinstance(reason, str) and reason:
        return FAILED, f"reason {shown(reason)}"
    return FAILED, "its API object does not say why"
