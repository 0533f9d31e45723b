"""Serves what the scheduler knows over HTTP: GET /explain/NAMESPACE/POD, /queue, /healthz, /readyz.

On the loopback it serves without TLS. Elsewhere it serves with TLS, and only clients that show a certificate of the
given authority.
"""

from __future__ import annotations

import difflib
import ssl
import time
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sharepod.process.readiness import add_probes
from sharepod.scheduler.explain.explanation import explain, find

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.scheduler.explain.pending_status import Turn
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod

PATIENCE_S: Final = 5.0
"""The time for answers that are under way when the server stops."""
IDLE_S: Final = 300.0
NAME_MAX: Final = 253
COMPARED: Final = 1000
"""The most names that a mistyped one is compared with: that takes 20 ms, in which nothing else is answered."""


class StatusServer:
    """The HTTP server, from `start` to `stop`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        not_ready: Callable[[], str],
        queue: Callable[[float], dict[str, object]],
        turn: Callable[[Pod, float], Turn | None],
    ) -> None:
        """`not_ready` returns why nothing can be decided yet; empty: decisions can be made.

        `queue` returns the answer to GET /queue at a time. `turn` returns what the gate controller knows of a pod at a
        time. Times are of the monotonic clock.
        """
        self._cluster, self._not_ready = cluster, not_ready
        self._queue_at, self._turn_of = queue, turn
        application = web.Application()
        add_probes(application, not_ready)
        application.router.add_get("/queue", self._queue)
        application.router.add_get("/explain/{namespace}/{name}", self._explain)
        self._runner = web.AppRunner(
            application, access_log=None, keepalive_timeout=IDLE_S, shutdown_timeout=PATIENCE_S
        )

    async def start(self, address: str, context: ssl.SSLContext | None) -> int:
        """Listen at `address`, HOST:PORT; return the port. `context`: for TLS; None: without. Raises OSError."""
        host, _, port = address.rpartition(":")
        await self._runner.setup()
        site = web.TCPSite(self._runner, host.strip("[]"), int(port), ssl_context=context, reuse_address=True)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Finish the answers that are under way, for a few seconds at most, and close."""
        await self._runner.cleanup()

    async def _queue(self, _: web.Request) -> web.Response:
        """Answer GET /queue."""
        return web.json_response(self._queue_at(time.monotonic()))

    async def _explain(self, request: web.Request) -> web.Response:
        """Answer GET /explain/NAMESPACE/POD with an Explanation as JSON, on a view that is brought up to date.

        404: the pod is not known. 503: it may not be known yet.
        """
        cluster, why, now_s = self._cluster, self._not_ready(), time.monotonic()
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        pod = find(cluster, namespace, name)
        if pod is None:
            return web.Response(status=503 if why else 404, text=(why or _unknown(cluster, namespace, name)) + "\n")
        cluster.advance(now_s)
        found = explain(cluster, pod, incomplete=why, turn=self._turn_of(pod, now_s))
        return web.json_response(asdict(found))


def _unknown(cluster: Cluster, namespace: str, name: str) -> str:
    """Return one line for users about a pod that is not known, with a similar name if there is one.

    The name is compared with at most COMPARED others of the namespace.
    """
    title = ascii(f"{namespace}/{name}"[: 2 * NAME_MAX])[1:-1]  # escaped, without the quotes
    what = f"pod {title} is not known"
    if len(name) > NAME_MAX:
        return f"{what}: a pod's name has at most {NAME_MAX} characters"
    elsewhere = next((pod.namespace for pod in cluster.pods() if pod.name == name), "")
    if elsewhere:
        return f"{what}: one of that name is in namespace {elsewhere}: add -n {elsewhere}"
    others = (pod.name for pod in cluster.pods() if pod.namespace == namespace and pod.request.shares)
    near = difflib.get_close_matches(name, islice(others, COMPARED), 1)
    return f"{what}: " + (f"did you mean {near[0]}?" if near else "name a pod of that namespace that has not ended")
