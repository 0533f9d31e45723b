"""Starts and stops the extender: settings, API server, feed, answers. Nothing is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

# Before grpc loads its C core, which would log to stderr in its own way.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from sharepod.deviceplugin.api import Api, ApiUnavailable
from sharepod.deviceplugin.cluster import ClusterError, from_kubeconfig, in_cluster
from sharepod.deviceplugin.event_writer import EventWriter
from sharepod.deviceplugin.events import Subject
from sharepod.deviceplugin.loop import for_ever
from sharepod.process import log as logs
from sharepod.process import metrics_server
from sharepod.process.credentials import Credentials
from sharepod.process.errors import CannotStart
from sharepod.process.metrics import families
from sharepod.process.run import take_open_files
from sharepod.scheduler import gate_metrics, heap, metrics, usage_server
from sharepod.scheduler.annotator import Annotator
from sharepod.scheduler.cluster import Cluster
from sharepod.scheduler.endings import Endings
from sharepod.scheduler.extender import Extender
from sharepod.scheduler.extender_server import ExtenderServer
from sharepod.scheduler.gate_summary import summarise_gates
from sharepod.scheduler.gatekeeper import Gatekeeper
from sharepod.scheduler.informer import Informer
from sharepod.scheduler.lease import Lease
from sharepod.scheduler.metrics import Tally
from sharepod.scheduler.order_writer import OrderWriter
from sharepod.scheduler.policy import Numbers, Outline, Policy
from sharepod.scheduler.queue_view import view
from sharepod.scheduler.settings import OPTIONS, Settings
from sharepod.scheduler.summary import summarise
from sharepod.scheduler.turn import turn_of
from sharepod.scheduler.usage import UsageBook
from sharepod.scheduler.usage_identity import Identities

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from prometheus_client import Metric

    from sharepod.deviceplugin import cluster as access
    from sharepod.scheduler.mix import Mix

log = logging.getLogger("sharepod.scheduler")

COMPONENT: Final = "sharepod-scheduler"
LOOK_S: Final = 1.0
GRACE_S: Final = 2.0
"""A bound pod that does not say where it is has so long to be told by the replica that chose, which knows best."""
RENEW_S: Final = 60.0
"""Between two looks at which pods are to be expected."""
METRICS_S: Final = 5.0
PATIENCE_S: Final = 3.0
"""For kube-scheduler to find a place by itself, before others are made to yield."""
_EXIT_FAILURE: Final = 1


class Teller:
    """Finds bound pods whose devices nobody has told, and tells them."""

    def __init__(self, cluster: Cluster, annotator: Annotator, events: EventWriter, scheduler_name: str) -> None:
        self._cluster = cluster
        self._annotator = annotator
        self._events = events
        self._scheduler_name = scheduler_name
        self._since_s: dict[str, float] = {}
        # Replicas do not agree who does it: they look at different times.
        self._grace_s = GRACE_S * random.uniform(1.0, 2.0)  # noqa: S311 - no secret

    def look(self, now_s: float) -> None:
        """Tell those that have waited for long enough."""
        self._cluster.settle(now_s)
        waiting: dict[str, float] = {}
        for pod, devices in self._cluster.untold():
            use = self._cluster.use(pod.node)
            # Where kubelet picks devices while it admits pods it has done so: the agent will say where they are.
            if pod.scheduler != self._scheduler_name or use is None or use.facts.late is not True:
                continue
            since_s = waiting[pod.uid] = self._since_s.get(pod.uid, now_s)
            if now_s - since_s < self._grace_s:
                continue
            if devices:
                self._annotator.write(pod, devices)
            else:
                text = f"its shares fit on no device of node {pod.node} now: it starts when others there end"
                subject = Subject(pod.namespace, pod.name, pod.uid)
                self._events.tell(subject, "NoDeviceFits", text, warning=True)
        self._since_s = waiting

    async def look_for_ever(self) -> None:
        """Tell those that have waited for long enough, again and again."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(LOOK_S)


async def renew_for_ever(cluster: Cluster, name: str) -> None:
    """Have the view judge by the pods that are to be expected now, and the nodes that there are."""
    judged: tuple[Outline, Mix] | None = None
    while True:
        mix, board = cluster.expected(), cluster.board
        outline = Outline.of(board)
        if (outline, mix) != judged:
            judged = outline, mix
            numbers = await asyncio.to_thread(Numbers.of, name, outline, mix)
            if cluster.board is board:
                cluster.renew(Policy.made_of(numbers, board), mix)
        await asyncio.sleep(RENEW_S)


def _cluster(settings: Settings) -> access.Cluster:
    return from_kubeconfig(Path(settings.kubeconfig)) if settings.kubeconfig else in_cluster(os.environ)


class _OnLoop:
    """A collector whose families are made on a loop, while another thread waits for them."""

    def __init__(self, collected: Callable[[], list[Metric]]) -> None:
        """Take what makes them on the loop that runs now."""
        self._collected = collected
        self._loop = asyncio.get_running_loop()

    def collect(self) -> list[Metric]:
        """Return all metrics as of now."""

        async def collected() -> list[Metric]:
            return self._collected()

        return asyncio.run_coroutine_threadsafe(collected(), self._loop).result(METRICS_S)


def _serve_metrics(settings: Settings, collected: Callable[[], list[Metric]], stack: contextlib.AsyncExitStack) -> None:
    """Serve what `collected` returns. Raises CannotStart."""
    if settings.metrics_listen == "off":
        return
    credentials = Credentials(
        settings.metrics_tls_certificate, settings.metrics_tls_key, settings.metrics_token_file, reader="scheduler"
    )
    stack.callback(metrics_server.serve(_OnLoop(collected), settings.metrics_listen, credentials))


async def _listen_to_agents(
    settings: Settings, book: UsageBook, api: Api, stack: contextlib.AsyncExitStack
) -> usage_server.Tally:
    """Take what agents report into the book; return what is counted. Raises SettingsError."""
    if settings.usage_listen == "off":
        return usage_server.Tally()
    certificate, node_of = None, None
    if settings.usage_certificate:
        certificate = Credentials(settings.usage_certificate, settings.usage_key, what="usage feed", reader="scheduler")
        node_of = Identities(
            api, ApiUnavailable, time.monotonic, user=settings.usage_account, audience=settings.usage_audience
        ).node_of
    server = usage_server.UsageServer(book, node_of)
    port = await server.start(settings.usage_listen, certificate)
    stack.push_async_callback(server.stop)
    log.info("agents may report", extra={"listen": settings.usage_listen, "port": port})
    return server.tally


def _keep_gates(
    settings: Settings,
    api: Api,
    server: access.Cluster,
    cluster: Cluster,
    informer: Informer,
    events: EventWriter,
    answers: ExtenderServer,
    stack: contextlib.AsyncExitStack,
) -> tuple[list[Coroutine[None, None, None]], Callable[[], list[Metric]]]:
    """Return the work of deciding who is released and who yields, and its metrics; none where nobody asks for that."""
    if not settings.keeps:
        return [], list
    gates = settings.front == "gates"
    namespace, _, name = settings.lease.partition("/")
    holder = f"{os.environ.get('HOSTNAME', COMPONENT)}_{secrets.token_hex(4)}"
    lease = Lease(api, server.server, namespace=namespace, name=name, holder=holder)
    writer = OrderWriter(api, server.server, cluster, events, gates=gates)
    keeper = Gatekeeper(
        cluster, writer, lease, lambda: informer.not_ready(time.monotonic()), patience_s=0.0 if gates else PATIENCE_S
    )
    answers.queue = lambda now_s: view(keeper.memory, keeper.queues, lease, now_s, refusal=keeper.refusal)
    answers.turn = lambda pod, now_s: turn_of(
        cluster, keeper.memory, keeper.queues, pod, now_s, decides=lease.is_held(), gates=gates
    )
    names = gate_metrics.QueueNames()

    def collected() -> list[Metric]:
        found = summarise_gates(
            keeper.memory, keeper.queues, time.monotonic(), leading=lease.is_held(), turns=lease.turns,
            rules_refused=bool(keeper.refusal),
        )  # fmt: skip
        snapshot = gate_metrics.GateSnapshot(found, keeper.memory.tally, names.told(found))
        return families(gate_metrics.TABLES, snapshot)

    answers.preempts = False
    stack.push_async_callback(writer.stop)
    stack.push_async_callback(lease.give_up)
    return [
        lease.keep_for_ever(),
        keeper.decide_for_ever(),
        keeper.follow_rules(api, server.server, settings.queues),
        Endings(api, keeper.memory.restarts, lease).ask_for_ever(),
    ], collected


async def _run(settings: Settings, stopping: asyncio.Event) -> None:
    server = _cluster(settings)
    credentials = Credentials(
        settings.tls_certificate, settings.tls_key, client_ca=settings.client_ca, what="extender", reader="scheduler"
    )
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(Api(server, agent=COMPONENT))
        host = os.environ.get("HOSTNAME", COMPONENT)
        events = await stack.enter_async_context(EventWriter(api, server.server, host, 0.5, COMPONENT))
        cluster, book = Cluster(settings.policy), UsageBook()
        informer = Informer(
            api, server.server, cluster, book, resource=settings.resource, domains=settings.domains,
            waits_for=settings.scheduler_name if settings.front == "extender" and settings.keeps else "",
        )  # fmt: skip
        extender, annotator = Extender(cluster), Annotator(api, server.server)
        stack.push_async_callback(annotator.stop)
        answers = ExtenderServer(
            extender, annotator, resource=settings.resource, not_ready=lambda: informer.not_ready(time.monotonic()),
            scheduler_name=settings.scheduler_name,
        )  # fmt: skip
        teller = Teller(cluster, annotator, events, settings.scheduler_name)
        keeping, of_gates = _keep_gates(settings, api, server, cluster, informer, events, answers, stack)
        agents = await _listen_to_agents(settings, book, api, stack)
        tally = Tally()
        answers.decided = tally.decided

        def collected() -> list[Metric]:
            found = summarise(
                cluster, book, time.monotonic(), ready=not informer.not_ready(time.monotonic()),
                written=annotator.written, failed=annotator.failed, streams=agents.streams, stream_ends=agents.ended,
            )  # fmt: skip
            return [
                *families(metrics.TABLES, found), *families(metrics.DECISION_TABLES, tally), *of_gates(),
            ]  # fmt: skip

        _serve_metrics(settings, collected, stack)
        port = await answers.start(settings.listen, credentials.following())
        stack.push_async_callback(answers.stop)
        log.info("extender started", extra={"listen": settings.listen, "port": port, "policy": settings.policy})
        gc.freeze()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(for_ever(work))
                for work in (
                    informer.follow_pods(),
                    informer.follow_nodes(),
                    informer.follow_usage(),
                    teller.look_for_ever(),
                    renew_for_ever(cluster, settings.policy),
                    *keeping,
                )
            ]
            await stopping.wait()
            log.info("extender stopping", extra={"drain_seconds": settings.drain_seconds})
            await asyncio.sleep(settings.drain_seconds)
            for task in running:
                task.cancel()


async def _serve(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await _run(settings, stopping)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the extender until SIGTERM or SIGINT. Returns the exit code."""
    try:
        settings = OPTIONS.start(arguments)
        logs.set_up(settings.log_format, settings.log_level)
        take_open_files()
        heap.tune()
        asyncio.run(_serve(settings))
    except (CannotStart, ClusterError) as error:
        sys.stderr.write(f"sharepod-scheduler: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"sharepod-scheduler: cannot listen: {error.strerror}: choose another address or port\n")
        return 2
    except BaseExceptionGroup as group:
        for cause in group.exceptions:
            log.critical("extender ended", exc_info=cause)
        return _EXIT_FAILURE
    return 0


if __name__ == "__main__":
    sys.exit(main())
