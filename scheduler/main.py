"""Starts and stops the scheduler: settings, API server, usage feed, gate controller, status. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

# Set before grpc loads its C core, which would otherwise log to stderr in its own format.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from sharepod.kube.access import Access, AccessError, from_kubeconfig, in_cluster
from sharepod.kube.client import ApiUnavailable, Client
from sharepod.kube.event_writer import EventWriter
from sharepod.kube.lease import Lease
from sharepod.process import metrics_server
from sharepod.process.credentials import Credentials
from sharepod.process.errors import EXIT_USAGE
from sharepod.process.metrics import families
from sharepod.process.run import drained, listening, run, take_open_files, work_until
from sharepod.scheduler import gate_metrics, metrics
from sharepod.scheduler.controller.action_writer import ActionWriter
from sharepod.scheduler.controller.exit_status import ExitStatuses
from sharepod.scheduler.controller.gate_controller import GateController
from sharepod.scheduler.explain.gate_summary import summarise_gates
from sharepod.scheduler.explain.pending_status import turn_of
from sharepod.scheduler.explain.queue_view import view
from sharepod.scheduler.explain.status_server import StatusServer
from sharepod.scheduler.explain.summary import summarise
from sharepod.scheduler.feed import heap, usage_server
from sharepod.scheduler.feed.usage_identity import Identities
from sharepod.scheduler.placement.policy import Numbers, Outline, Policy
from sharepod.scheduler.settings import OPTIONS, Settings
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.observer import Observer
from sharepod.scheduler.state.usage import UsageBook

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.process.metrics_page import Family
    from sharepod.scheduler.placement.mix import Mix

log = logging.getLogger("sharepod.scheduler")

COMPONENT: Final = "sharepod-scheduler"
RENEW_S: Final = 60.0
"""The time between two estimates of the expected pods."""
METRICS_S: Final = 5.0
"""How long a scrape waits for the event loop."""


async def renew_for_ever(cluster: Cluster, name: str) -> None:
    """Every RENEW_S, for ever, give the cluster a new policy if what its numbers are made of has changed.

    They are made of the expected pods, and of the models, devices and processors of the nodes. `name`: the policy's,
    one of policy.ROWS. The numbers are computed in a thread, because they take up to half a second.
    """
    latest: tuple[Outline, Mix] | None = None
    while True:
        mix, snapshot = cluster.expected(), cluster.snapshot
        outline = Outline.of(snapshot)
        if (outline, mix) != latest:
            latest = outline, mix
            numbers = await asyncio.to_thread(Numbers.of, name, outline, mix)
            if cluster.snapshot is snapshot:  # else the numbers are for a snapshot that has been replaced meanwhile
                cluster.renew(Policy.made_of(numbers, snapshot), mix)
        await asyncio.sleep(RENEW_S)


def _access(settings: Settings) -> Access:
    """Return the access to the API server, by the kubeconfig or the pod's service account. Raises AccessError."""
    return from_kubeconfig(Path(settings.kubeconfig)) if settings.kubeconfig else in_cluster(os.environ)


class _OnLoop:
    """A Prometheus collector that makes its metrics on the event loop. The scraping thread waits for them."""

    def __init__(self, make_metrics: Callable[[], list[Family]]) -> None:
        """Take the function that makes the metrics; it is called on the event loop that runs now."""
        self._make_metrics = make_metrics
        self._loop = asyncio.get_running_loop()

    def collect(self) -> list[Family]:
        """Return all metrics as of now. Raises TimeoutError if the event loop is busy for METRICS_S."""

        async def make_on_loop() -> list[Family]:
            return self._make_metrics()

        return asyncio.run_coroutine_threadsafe(make_on_loop(), self._loop).result(METRICS_S)


def _serve_metrics(
    settings: Settings, make_metrics: Callable[[], list[Family]], stack: contextlib.AsyncExitStack
) -> None:
    """Serve the metrics that `make_metrics` returns, at the address in the settings, if any, until `stack` closes.

    `make_metrics` is called on the event loop for each scrape. Raises CannotStart.
    """
    if settings.metrics_listen == "off":
        return
    credentials = Credentials(
        settings.metrics_tls_certificate, settings.metrics_tls_key, settings.metrics_token_file, reader="scheduler"
    )
    stack.callback(metrics_server.serve(_OnLoop(make_metrics), settings.metrics_listen, credentials))


async def _listen_to_agents(
    settings: Settings, book: UsageBook, client: Client, stack: contextlib.AsyncExitStack
) -> usage_server.Counters:
    """Begin to take the agents' reports into the book, until `stack` closes; return the counters of the streams.

    If `usage_listen` is off, nothing is taken and the counters stay 0. `client` asks about the agents' tokens. Without
    a certificate, on the loopback only, the node that a report names is believed. Raises SettingsError.
    """
    if settings.usage_listen == "off":
        return usage_server.Counters()
    certificate, node_of = None, None
    if settings.usage_certificate:
        certificate = Credentials(settings.usage_certificate, settings.usage_key, what="usage feed", reader="scheduler")
        node_of = Identities(
            client, ApiUnavailable, time.monotonic, user=settings.usage_account, audience=settings.usage_audience
        ).node_of
    server = usage_server.UsageServer(book, node_of)
    port = await server.start(settings.usage_listen, certificate)
    stack.push_async_callback(server.stop)
    log.info("agents may report", extra={"listen": settings.usage_listen, "port": port})
    return server.counters


def _gate_controller(
    settings: Settings,
    client: Client,
    cluster: Cluster,
    events: EventWriter,
    not_ready: Callable[[], str],
    stack: contextlib.AsyncExitStack,
) -> tuple[GateController, Lease]:
    """Return the controller that releases pods and makes shares yield, and the lease that lets one replica decide.

    Neither runs yet. `not_ready` returns why nothing can be decided yet; empty: it can. When `stack` closes, the lease
    is given up, then the requests under way are cancelled.
    """
    namespace, _, name = settings.lease.partition("/")
    holder = f"{os.environ.get('HOSTNAME', COMPONENT)}_{secrets.token_hex(4)}"
    lease = Lease(client, namespace=namespace, name=name, holder=holder)
    writer = ActionWriter(client, cluster, events)
    stack.push_async_callback(writer.stop)
    stack.push_async_callback(lease.give_up)
    return GateController(cluster, writer, lease, not_ready), lease


async def _serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Run the scheduler until `stopping` is set, then go on answering for `drain_seconds`; `run` (run.py) calls it.

    Raises AccessError or CannotStart if it cannot start, BaseExceptionGroup if a part of it ends by itself.
    """
    take_open_files()
    heap.tune()
    access = _access(settings)
    credentials = Credentials(
        settings.tls_certificate, settings.tls_key, client_ca=settings.client_ca, what="status", reader="scheduler"
    )
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(access, COMPONENT))
        host = os.environ.get("HOSTNAME", COMPONENT)
        events = await stack.enter_async_context(EventWriter(client, host, COMPONENT))
        cluster, book = Cluster(settings.policy), UsageBook()
        observer = Observer(client, cluster, book, resource=settings.resource, domains=settings.domains)

        def not_ready() -> str:
            return observer.not_ready(time.monotonic())

        controller, lease = _gate_controller(settings, client, cluster, events, not_ready, stack)
        state = controller.state
        status = StatusServer(
            cluster, not_ready=not_ready,
            queue=lambda now_s: view(state, controller.queues, lease, now_s, refusal=controller.refusal),
            turn=lambda pod, now_s: turn_of(cluster, state, controller.queues, pod, now_s, decides=lease.is_held()),
        )  # fmt: skip
        agents = await _listen_to_agents(settings, book, client, stack)
        queue_names = gate_metrics.QueueNames()

        def make_metrics() -> list[Family]:
            now_s = time.monotonic()
            numbers = summarise(
                cluster, book, now_s, ready=not not_ready(), streams=agents.streams, stream_ends=agents.ended
            )
            gates = summarise_gates(
                state, controller.queues, now_s, leading=lease.is_held(), turns=lease.turns,
                rules_refused=bool(controller.refusal),
            )  # fmt: skip
            of_gates = gate_metrics.GateSnapshot(gates, state.counters, queue_names.told(gates))
            return [*families(metrics.TABLES, numbers), *families(gate_metrics.TABLES, of_gates)]

        _serve_metrics(settings, make_metrics, stack)
        with listening():
            port = await status.start(settings.listen, credentials.following())
        stack.push_async_callback(status.stop)
        log.info("scheduler started", extra={"listen": settings.listen, "port": port, "policy": settings.policy})
        gc.freeze()  # what is there now stays: no collection has to look at it
        works = (
            observer.follow_pods(),
            observer.follow_nodes(),
            observer.follow_usage(),
            renew_for_ever(cluster, settings.policy),
            lease.keep_for_ever(),
            controller.decide_for_ever(),
            controller.follow_rules(client, settings.queues),
            ExitStatuses(client, state.restarts, lease).ask_for_ever(),
        )
        stops = {"drain_seconds": settings.drain_seconds}
        end = drained(stopping, settings.drain_seconds, lambda: log.info("scheduler stopping", extra=stops))
        await work_until(end, works)


if __name__ == "__main__":
    sys.exit(run(OPTIONS.program, OPTIONS.start(), _serve, expected={AccessError: EXIT_USAGE}))
