"""Serves the extender over HTTP: POST /filter, /prioritize, /preempt; GET /healthz, /readyz, /explain/NAMESPACE/POD.

Where pods wait for gates here, or yield to each other, GET /queue has what waits, and why.

In the clear on loopback; elsewhere with TLS, and only to those who show a certificate of the given authority.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import ssl
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sharepod.scheduler import wire
from sharepod.scheduler.annotator import WAIT_S
from sharepod.scheduler.explanation import explain, find

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sharepod.scheduler.annotator import Annotator
    from sharepod.scheduler.cluster import Assumed, Cluster
    from sharepod.scheduler.extender import Extender
    from sharepod.scheduler.pod import Pod
    from sharepod.scheduler.turn import Turn

log = logging.getLogger("sharepod.scheduler.http")

BODY_MAX: Final = 32 * 2**20
"""100,000 names of nodes and the largest pod."""
PATIENCE_S: Final = 5.0
"""For a body to arrive; kube-scheduler waits as long for the answer."""
IDLE_S: Final = 300.0
SEE_OUT_S: Final = 0.5
SEE_OUT_LOOK_S: Final = 0.01
NAME_MAX: Final = 253
COMPARED: Final = 1000
"""Names that a mistyped one is compared with: twenty milliseconds, in which nothing else is answered."""


class ExtenderServer:
    """Serves until it is stopped."""

    def __init__(
        self,
        extender: Extender,
        annotator: Annotator,
        *,
        resource: str,
        not_ready: Callable[[], str],
        scheduler_name: str = "",
    ) -> None:
        """`not_ready` returns why nothing can be decided yet, an empty text when it can; pods name the scheduler."""
        self._extender = extender
        self._annotator = annotator
        self._resource = resource
        self._not_ready = not_ready
        self._scheduler_name = scheduler_name
        self.decided: Callable[[str, float, str], None] = lambda *_: None
        """Called with the verb, the seconds that it took, and how it ended: "ok", "refused" or "error"."""
        self.preempts = True
        """False: whoever has pods yield decides about victims, too, and kube-scheduler's are none."""
        self.queue: Callable[[float], dict[str, object]] | None = None
        """Returns what waits, and why, at a time; None: kube-scheduler's queue is the only one."""
        self.turn: Callable[[Pod, float], Turn | None] = lambda *_: None
        """Returns what the controller of gates and yields knows of a pod at a time."""
        self._chosen: Assumed | None = None
        extender.chosen = self._note
        application = web.Application(client_max_size=BODY_MAX)
        for verb, serve in (("filter", self._filter), ("prioritize", self._prioritise), ("preempt", self._preempt)):
            application.router.add_post("/" + verb, self._route(verb, serve))
        application.router.add_get("/healthz", _healthy)
        application.router.add_get("/readyz", self._ready)
        application.router.add_get("/queue", self._queue)
        application.router.add_get("/explain/{namespace}/{name}", self._explain)
        self._runner = web.AppRunner(
            application, access_log=None, keepalive_timeout=IDLE_S, shutdown_timeout=PATIENCE_S
        )
        self.application = application

    async def start(self, address: str, context: ssl.SSLContext | None) -> int:
        """Listen at HOST:PORT; return the port. Raises OSError."""
        host, _, port = address.rpartition(":")
        await self._runner.setup()
        site = web.TCPSite(self._runner, host.strip("[]"), int(port), ssl_context=context, reuse_address=True)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """End what is under way, a few seconds at most, and close."""
        await self._runner.cleanup()

    def _note(self, assumed: Assumed) -> None:
        self._chosen = assumed

    def _route(
        self, verb: str, serve: Callable[[bytes], Awaitable[tuple[bytes, str]]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    body = await request.read()
                reply, result = await serve(body)
                response = web.Response(body=reply, content_type="application/json")
            except wire.MalformedArguments as error:
                log.warning("request not understood", extra={"verb": verb, "peer": request.remote, "cause": str(error)})
                response, result = web.Response(status=400, text=f"{error}\n"), "error"
            except web.HTTPRequestEntityTooLarge:
                text = f"the body is longer than {BODY_MAX} bytes: ask for fewer nodes at a time\n"
                response, result = web.Response(status=413, text=text), "error"
                response.force_close()
            except TimeoutError:
                text = f"the body did not arrive within {PATIENCE_S:g} s: send it at once\n"
                response, result = web.Response(status=408, text=text), "error"
                response.force_close()
            self.decided(verb, time.perf_counter() - began, result)
            return response

        return answer

    async def _filter(self, body: bytes) -> tuple[bytes, str]:
        if why := self._not_ready():
            wire.read_arguments(body, self._resource)
            return wire.filter_error(why), "error"
        asked = wire.read_arguments(body, self._resource)
        await self._see_out(asked.pod)
        self._chosen = None
        filtered = self._extender.filter(asked.pod, asked.names, time.monotonic())
        reply = wire.filter_answer(filtered)
        await self._tell(self._chosen)
        return reply, "ok" if filtered.fitting else "refused"

    async def _prioritise(self, body: bytes) -> tuple[bytes, str]:
        asked = wire.read_arguments(body, self._resource)
        self._chosen = None
        ranked = self._extender.prioritise(asked.pod, asked.names, time.monotonic())
        reply = wire.priority_answer(asked.names, ranked)
        await self._tell(self._chosen)
        return reply, "ok" if ranked.best else "refused"

    async def _preempt(self, body: bytes) -> tuple[bytes, str]:
        asked = wire.read_preemption(body, self._resource)
        victims = self._extender.preempt(asked.pod, asked.victims, time.monotonic()) if self.preempts else {}
        return wire.preemption_answer(victims), "ok" if victims else "refused"

    async def _see_out(self, pod: Pod) -> None:
        """Wait a moment for who makes room for a pod to be gone.

        That it is gone has kube-scheduler ask again, and often it is told so before we are.
        """
        until_s = time.monotonic() + SEE_OUT_S
        while self._extender.makes_room(pod) and time.monotonic() < until_s:
            await asyncio.sleep(SEE_OUT_LOOK_S)

    async def _tell(self, assumed: Assumed | None) -> None:
        """Have the choice written; wait for that where kubelet picks devices while it admits a pod."""
        if assumed is None:
            return
        use = self._extender.cluster.use(assumed.node)
        writing = self._annotator.write(assumed.pod, assumed.devices)
        if writing is not None and use is not None and use.facts.late is False:
            await asyncio.wait([writing], timeout=WAIT_S)

    async def _queue(self, _: web.Request) -> web.Response:
        if self.queue is None:
            text = "kube-scheduler has the queue: start with --front gates, or --yields on, for one of SharePod's\n"
            return web.Response(status=404, text=text)
        return web.json_response(self.queue(time.monotonic()))

    async def _ready(self, _: web.Request) -> web.Response:
        why = self._not_ready()
        return web.Response(status=503 if why else 200, text=(why or "ok") + "\n")

    async def _explain(self, request: web.Request) -> web.Response:
        cluster, why, now_s = self._extender.cluster, self._not_ready(), time.monotonic()
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        pod = find(cluster, namespace, name)
        if pod is None:
            return web.Response(status=503 if why else 404, text=(why or _unknown(cluster, namespace, name)) + "\n")
        cluster.settle(now_s)
        found = explain(
            cluster, pod, self._extender.answered(pod.uid), now_s, scheduler_name=self._scheduler_name, incomplete=why,
            turn=self.turn(pod, now_s),
        )  # fmt: skip
        return web.Response(body=wire.explanation_answer(found), content_type="application/json")


def _unknown(cluster: Cluster, namespace: str, name: str) -> str:
    """Return one line; of a cluster's pods no more are looked at than takes a few milliseconds."""
    what = f"pod {ascii(f'{namespace}/{name}'[: 2 * NAME_MAX])[1:-1]} is not known"
    if len(name) > NAME_MAX:
        return f"{what}: a pod's name has at most {NAME_MAX} characters"
    elsewhere = next((pod.namespace for pod in cluster.pods() if pod.name == name), "")
    if elsewhere:
        return f"{what}: one of that name is in namespace {elsewhere}: add -n {elsewhere}"
    others = (pod.name for pod in cluster.pods() if pod.namespace == namespace and pod.ask.shares)
    near = difflib.get_close_matches(name, islice(others, COMPARED), 1)
    return f"{what}: " + (f"did you mean {near[0]}?" if near else "name a pod of that namespace that has not ended")


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")
