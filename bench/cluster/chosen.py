"""Compares where a latency share goes when the scheduler knows the devices' use, and when it knows only requests.

A node has two devices. A trainer was promised 60 % of one; it works all the time, with kernels of 20 ms. A notebook was
promised 40 % of the other and hardly works. By requests the latency share fits best beside the trainer: that device is
then nearly full. The agent reports to a real usage server, a cycle of the gate controller chooses, and the share then
runs on the chosen device. Its latency is the program's own, not measured by our meter.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bench.bars import figures
from bench.bars.neighbours import PERIOD_NS, REQUESTS
from bench.scale import Scale
from bench.table import Line, milli
from rig.loads import SECOND, Load, Terms
from rig.node import Node
from sharepod.scheduler.controller.actions import Release
from sharepod.scheduler.controller.controller_state import ControllerState
from sharepod.scheduler.controller.queues import Queues
from sharepod.scheduler.controller.scheduling_cycle import decide
from sharepod.scheduler.feed.usage_server import UsageServer
from sharepod.scheduler.state import node as nodes
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.pod import GATE, Pod, read_pod
from sharepod.scheduler.state.usage import NO_NUMBERS, NodeUse, UsageBook

NODE = "bench"
TRAINER = Load(Terms(60), "saturate", {"unit": "20ms", "depth": 2})
NOTEBOOK = Load(Terms(40), "periodic", {"unit": "1ms", "work": "1ms", "period": "200ms"})
LATENCY = Terms(30, share_class="latency")
WATCHED_S = 5
"""How long the agent has measured when the pod comes."""
BAR = 2.0


@contextmanager
def _feed() -> Iterator[tuple[int, UsageBook]]:
    """Serve agents from a thread. Yield the port and the book of what they tell."""
    book, loop = UsageBook(), asyncio.new_event_loop()
    server = UsageServer(book, None)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        port = asyncio.run_coroutine_threadsafe(server.start("127.0.0.1:0", None), loop).result(10)
        yield port, book
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _pod() -> Pod:
    """Return the pod of the latency share, held by its gate."""
    resources = {"limits": {"sharepod.io/gpu": str(int(LATENCY.request))}, "requests": {"cpu": "1", "memory": "1Gi"}}
    body = {
        "metadata": {"name": "service", "namespace": "bench", "uid": "service",
                     "annotations": {"sharepod.io/class": LATENCY.share_class}},
        "spec": {"containers": [{"name": "main", "resources": resources}], "schedulingGates": [{"name": GATE}]},
    }  # fmt: skip
    pod = read_pod(body)
    assert pod is not None
    return pod


def choose(use: NodeUse) -> int:
    """Return the index of the device for which the gate controller releases the latency share."""
    # No device plugin runs here that would tell which devices it offers.
    devices = tuple(replace(device, facts=replace(device.facts, offered=True)) for device in use.devices)
    cluster = Cluster()
    cluster.set_node(nodes.Node(NODE, 64_000, 512_000, 200))
    cluster.set_use(NODE, NodeUse(use.facts, devices))
    cluster.set_pod(_pod())
    actions = decide(cluster, ControllerState(), Queues(), 0.0)
    places = [place for action in actions if isinstance(action, Release) for place in action.places]
    if not places:
        raise RuntimeError(f"the latency share fits nowhere: {actions}")
    [[uuid]] = places[0].devices
    return next(device.facts.index for device in devices if device.facts.uuid == uuid)


def _without_numbers(use: NodeUse) -> NodeUse:
    """Return what is promised on a node, without its measured use."""
    return NodeUse(use.facts, tuple(replace(device, numbers=NO_NUMBERS) for device in use.devices))


def _told(book: UsageBook) -> NodeUse:
    """Return what the agent tells once both shares exist and the trainer is seen working."""
    deadline = time.monotonic() + 30
    while True:
        use = book.node(NODE)
        if use is not None and max(device.numbers.used_1s_millipercent for device in use.devices) > 80_000:
            return use
        if time.monotonic() > deadline:
            raise RuntimeError("the agent has not told of the trainer's work for 30 s")
        time.sleep(0.1)


def serve(requests: int, *, by_use: bool) -> tuple[int, float]:
    """Place the latency share and run it. Return the device and the p99 of its requests in ns."""
    with _feed() as (port, book):
        settings = {"node_name": NODE, "scheduler_address": f"127.0.0.1:{port}"}
        with Node("2xH200", agent_settings=settings) as node:
            others = [
                node.start("trainer", replace(TRAINER, terms=replace(TRAINER.terms, devices=("0",)))),
                node.start("notebook", replace(NOTEBOOK, terms=replace(NOTEBOOK.terms, devices=("1",)))),
            ]
            seconds = requests * PERIOD_NS // SECOND
            start_ns = node.sample().now_ns + 200_000_000
            for program in others:
                program.go(start_ns, start_ns + (WATCHED_S + seconds + 10) * 1_000_000_000)
            time.sleep(WATCHED_S)
            use = _told(book)
            device = choose(use if by_use else _without_numbers(use))
            service = node.start("latency", Load(replace(LATENCY, devices=(str(device),)), "periodic", REQUESTS))
            start_ns = node.sample().now_ns + 200_000_000
            service.go(start_ns, start_ns + (seconds + 1) * 1_000_000_000)
            latencies = service.result(seconds + 60).latencies_ns[:requests]
            for program in others:
                program.stop()
    return device, figures.percentile(latencies, 99)


def measure(scale: Scale) -> list[Line]:
    """Measure the p99 of a latency share placed by use, relative to one placed by requests alone."""
    runs = [
        (serve(scale.requests, by_use=False), serve(scale.requests, by_use=True)) for _ in range(scale.latency_runs)
    ]
    promised = figures.median([p99 for (_, p99), _ in runs])
    used = figures.median([p99 for _, (_, p99) in runs])
    detail: dict[str, object] = {
        "by_requests": [(device, milli(p99)) for (device, p99), _ in runs],
        "by_use": [(device, milli(p99)) for _, (device, p99) in runs],
    }
    what = f"latency share beside a busy or an idle device, {scale.requests} requests: p99 by requests ÷ by use"
    text = f"{promised / used:.1f} × ({milli(promised)} / {milli(used)})"
    return [Line(what, f"≥ {BAR:g} ×", text, promised >= BAR * used, detail=detail)]
