"""Decides which replica is active, by a Lease at the API server, as Kubernetes' own controllers do.

The holder writes its name again every few seconds. The other replicas measure by their own clocks how long the Lease
stays unchanged, so the machines' clocks need not agree. A holder that could not write for RENEW_WITHIN_S stops
deciding, well before another replica may take over. If two decide for a moment, that does no harm: their writes name
the pod by its uid, and the agent has the last word about devices.

The library's election is not used (docs/adr/0026): it goes by the wall clock, writes local time as UTC, waits for an
answer for five minutes, and does not give the lease up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sharepod.kube.client import Answer, ApiUnavailable, Client
from sharepod.kube.objects import Object, at, text

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sharepod.kube.lease")

TAKE_AFTER_S: Final = 15.0
"""A lease that was not written for this time is free."""
RENEW_WITHIN_S: Final = 10.0
"""A holder that has not written the lease for this time does not decide."""
RENEW_S: Final = 2.0
"""The interval of the holder's writes and of the others' reads."""
CALL_S: Final = 4.0
"""The limit for one answer."""


class Lease:
    """One replica's hold on the lease."""

    def __init__(
        self, client: Client, *, namespace: str, name: str, holder: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`holder` names this replica. `clock` is its own clock, which never jumps."""
        self._client, self._clock = client, clock
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._holder = name, holder
        self._written_s: float | None = None
        """By `clock`: the begin of the last step that wrote the lease. None: this replica does not hold the lease."""
        self._last_change = ("", -1.0)
        """The lease's holder and time as this replica first saw them, and when that was."""
        self.turns = 0
        """How many times this replica has got the lease."""
        self.trouble = ""
        """Why the last read or write failed; empty: it succeeded."""

    def is_held(self) -> bool:
        """Tell whether this replica decides now: it has written the lease within RENEW_WITHIN_S."""
        return self._written_s is not None and self._clock() - self._written_s < RENEW_WITHIN_S

    async def keep_for_ever(self) -> None:
        """Take the lease when it is free, and keep it, for ever. A failure is logged, and tried again after RENEW_S."""
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
        """Let another replica take the lease at once, as this one ends. A failure is only logged."""
        if self._written_s is None:
            return
        self._lose("this replica ends")
        try:
            answer = await self._read()
            if answer.status == 200 and at(answer.body, "spec").get("holderIdentity") == self._holder:
                await self._replace(answer, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except ApiUnavailable as error:
            log.warning("lease not given up", extra={"cause": str(error)})

    async def _step(self) -> None:
        """Read the lease once. Renew it if this replica has it, take it if it is free. Raises ApiUnavailable."""
        began_s = self._clock()  # the hold counts from here, so that a slow read or write never makes it too long
        answer = await self._read()
        if answer.status == 404:
            await self._create(began_s)
            return
        if answer.status != 200:
            raise self._client.refusal(answer)
        spec = at(answer.body, "spec")
        holder = text(spec, "holderIdentity")
        content = f"{holder} {spec.get('renewTime')}"
        if content != self._last_change[0]:
            self._last_change = content, began_s
        is_ours = holder == self._holder
        is_free = not holder or began_s - self._last_change[1] >= TAKE_AFTER_S
        if not is_ours and self._written_s is not None:
            self._lose(f"{holder or 'no replica'} has it")
        if is_ours or is_free:
            so_far = spec.get("leaseTransitions")
            transitions = (so_far if isinstance(so_far, int) else 0) + (not is_ours)
            self._won(await self._replace(answer, self._spec(transitions, is_new=not is_ours)), began_s)

    async def _read(self) -> Answer:
        """Return the answer to a GET of the lease. Raises ApiUnavailable."""
        return await self._client.call("GET", f"{self._path}/{self._name}", timeout_s=CALL_S)

    async def _replace(self, read: Answer, changes: Object) -> Answer:
        """Put `changes` into the spec of the lease that was read, and return the answer. Raises ApiUnavailable.

        The request has the version that was read: if two replicas try, the second one gets a 409.
        """
        body: Object = {**read.body, "spec": at(read.body, "spec") | changes}
        return await self._client.call("PUT", f"{self._path}/{self._name}", body=body, timeout_s=CALL_S)

    async def _create(self, began_s: float) -> None:
        """Make the lease, which no replica has made yet, and hold it from `began_s` on. Raises ApiUnavailable."""
        body: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(0, is_new=True),
        }
        self._won(await self._client.call("POST", self._path, body=body, timeout_s=CALL_S), began_s)

    def _spec(self, transitions: int, *, is_new: bool) -> Object:
        """Return the spec that says that this replica holds the lease. `is_new`: until now it did not.

        `transitions`: how often the lease has changed hands. This number and the times are only for people: the other
        replicas merely notice that `renewTime` changes.
        """
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(TAKE_AFTER_S),
            "renewTime": now,
            "leaseTransitions": transitions,
            **({"acquireTime": now} if is_new else {}),
        }

    def _won(self, written: Answer, since_s: float) -> None:
        """Note the lease as held from `since_s` on if `written`, the answer to a write, is a success.

        If another replica was first (409), do nothing. Raises ApiUnavailable for any other failure.
        """
        if written.status == 409:
            return
        if written.status not in (200, 201):
            raise self._client.refusal(written)
        if self._written_s is None:
            self.turns += 1
            log.info("this replica decides", extra={"lease": self._name, "holder": self._holder})
        self._written_s = since_s

    def _lose(self, why: str) -> None:
        """Note, and log with the cause `why`, that this replica does not hold the lease any more."""
        self._written_s = None
        log.warning("this replica decides no more", extra={"lease": self._name, "cause": why})
