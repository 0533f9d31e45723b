"""Which replica decides: a Lease at the API server, as Kubernetes' own controllers have it.

Who holds it writes its name again every few seconds. Who does not watches whether that name is written: by its own
clock, so that clocks of machines need not agree. Who could not write for RENEW_WITHIN_S stops deciding, well before
another may take over. Two that decide for a moment do no harm: what they write names the pod by its uid, and the agent
has the last word about devices.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.api import Answer, Api, ApiUnavailable, said
from sharepod.deviceplugin.pod import at

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sharepod.scheduler.lease")

TAKE_AFTER_S: Final = 15.0
"""A lease that nobody has written for so long is anyone's."""
RENEW_WITHIN_S: Final = 10.0
RENEW_S: Final = 2.0
CALL_S: Final = 4.0
_FORMAT: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


class Lease:
    """One replica's hold on the lease."""

    def __init__(
        self,
        api: Api,
        server: str,
        *,
        namespace: str,
        name: str,
        holder: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`holder` names this replica; `clock` is its own, and does not jump."""
        self._api, self._server, self._clock = api, server, clock
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._holder = name, holder
        self._written_s: float | None = None
        """When we last wrote it; None: it is not ours."""
        self._seen = ("", -1.0)
        """What the lease said when it last changed, and when we saw that."""
        self.turns = 0
        """How often it has become ours."""
        self.trouble = ""
        """Why it could not be read or written when that was last tried; empty: it could."""

    def is_held(self) -> bool:
        """Tell whether this replica decides now."""
        return self._written_s is not None and self._clock() - self._written_s < RENEW_WITHIN_S

    async def keep_for_ever(self) -> None:
        """Take the lease when it is free, and keep it."""
        while True:
            try:
                await self._step()
                self.trouble = ""
            except ApiUnavailable as error:
                self.trouble = str(error)
                log.warning("lease not read or written", extra={"cause": str(error), "held": self.is_held()})
            if self._written_s is not None and not self.is_held():
                self._lose("it could not be written in time")
            await asyncio.sleep(RENEW_S * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    async def give_up(self) -> None:
        """Let another take it at once."""
        if self._written_s is None:
            return
        self._lose("this replica ends")
        try:
            answer = await self._read()
            if answer.status == 200 and at(answer.body, "spec").get("holderIdentity") == self._holder:
                spec = at(answer.body, "spec") | {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._write(answer, spec)
        except ApiUnavailable as error:
            log.warning("lease not given up", extra={"cause": str(error)})

    async def _step(self) -> None:
        began_s = self._clock()
        answer = await self._read()
        if answer.status == 404:
            await self._create(began_s)
            return
        if answer.status != 200:
            raise ApiUnavailable(said(self._server, answer.status, answer.body), status=answer.status)
        spec = at(answer.body, "spec")
        holder = str(spec.get("holderIdentity") or "")
        said_now = f"{holder} {spec.get('renewTime')}"
        if said_now != self._seen[0]:
            self._seen = said_now, began_s
        ours = holder == self._holder
        free = not holder or began_s - self._seen[1] >= TAKE_AFTER_S
        if not ours and self._written_s is not None:
            self._lose(f"{holder or 'nobody'} has it")
        if not (ours or free):
            return
        changes = spec.get("leaseTransitions")
        transitions = (changes if isinstance(changes, int) else 0) + (not ours)
        written = await self._write(answer, self._spec(transitions, None if ours else _now(), spec))
        if written.status == 200:
            self._win(began_s)
        elif written.status != 409:  # 409: another was faster
            raise ApiUnavailable(said(self._server, written.status, written.body), status=written.status)

    def _spec(self, transitions: int, acquired: str | None, before: dict[str, object]) -> dict[str, object]:
        return {
            **before,
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(TAKE_AFTER_S),
            "renewTime": _now(),
            "leaseTransitions": transitions,
            **({"acquireTime": acquired} if acquired else {}),
        }

    async def _read(self) -> Answer:
        return await self._api.call("GET", f"{self._path}/{self._name}", timeout_s=CALL_S)

    async def _write(self, read: Answer, spec: dict[str, object]) -> Answer:
        """Replace the lease as it was read: of two that try, the API server refuses the second."""
        body: dict[str, object] = {**read.body, "spec": spec}
        return await self._api.call("PUT", f"{self._path}/{self._name}", body=body, timeout_s=CALL_S)

    async def _create(self, began_s: float) -> None:
        body: dict[str, object] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(0, _now(), {}),
        }
        answer = await self._api.call("POST", self._path, body=body, timeout_s=CALL_S)
        if answer.status == 201:
            self._win(began_s)
        elif answer.status != 409:
            raise ApiUnavailable(said(self._server, answer.status, answer.body), status=answer.status)

    def _win(self, at_s: float) -> None:
        if self._written_s is None:
            self.turns += 1
            log.info("this replica decides", extra={"lease": self._name, "holder": self._holder})
        self._written_s = at_s

    def _lose(self, why: str) -> None:
        self._written_s = None
        log.warning("this replica decides no more", extra={"lease": self._name, "cause": why})


def _now() -> str:
    return datetime.now(UTC).strftime(_FORMAT)
