"""The extender at the size of a large cluster: pods a second that one core places, and how long kube-scheduler waits.

It runs in a process of its own and knows 10,000 nodes with 100,000 pods from an API server. This process is that API
server, and kube-scheduler: it asks for one pod after the other, filter and then prioritise over HTTP, and binds it;
the extender writes the devices onto it and sees all of that in its watch. Both share the processors, so it is the
extender's own processor time that says what a core can do.
"""

import asyncio
import itertools
import json
import random
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import trustme
from aiohttp import web

from bench import extender_cluster, figures
from bench.programs import ProgramFailed
from bench.scale import FULL, Scale
from bench.table import Line, milli
from sharepod.cli.scratch import Scratch

RATE = 200
CANDIDATES = ((1000, 1500), (10_000, 150))
"""Nodes that kube-scheduler proposes, and for how many pods. What an answer takes without HTTP is judged elsewhere."""
START_S = 300
Object = dict[str, Any]


class _ApiServer:
    """Lists in pages, watches, and takes annotations: as fast as Python can, for it is not what is measured."""

    def __init__(self, nodes: int) -> None:
        self.objects = {
            "nodes": extender_cluster.lines(extender_cluster.node(number) for number in range(nodes)),
            "pods": extender_cluster.lines(extender_cluster.placed_pods(nodes)),
        }
        self.waiting: dict[str, Object] = {}
        self._version = itertools.count(1000)
        self._watches: list[asyncio.Queue[bytes]] = []

    async def start(self, context: ssl.SSLContext) -> web.AppRunner:
        application = web.Application()
        application.router.add_get("/api/v1/{kind}", self._get)
        application.router.add_patch("/api/v1/namespaces/team/pods/{name}", self._patch)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        return runner

    async def _get(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        if request.query.get("watch"):
            return await self._watch(request, kind)
        begin, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        items = self.objects[kind][begin : begin + limit]
        rest = begin + limit if begin + limit < len(self.objects[kind]) else ""
        metadata = json.dumps({"resourceVersion": "999", "continue": str(rest)}).encode()
        body = b'{"metadata":' + metadata + b',"items":[' + b",".join(items) + b"]}"
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        if kind == "pods":
            self._watches.append(queue)
        try:
            while True:
                await response.write(await queue.get())
        finally:
            if kind == "pods":
                self._watches.remove(queue)

    async def _patch(self, request: web.Request) -> web.Response:
        body = self.waiting[request.match_info["name"]]
        patch = json.loads(await request.read())
        body["metadata"]["annotations"] |= patch["metadata"]["annotations"]
        self.tell("MODIFIED", body)
        return web.Response(body=json.dumps(body).encode(), content_type="application/json")

    def tell(self, kind: str, body: Object) -> None:
        """Let the watches see a pod."""
        body["metadata"]["resourceVersion"] = str(next(self._version))
        line = json.dumps({"type": kind, "object": body}).encode() + b"\n"
        for queue in self._watches:
            queue.put_nowait(line)


@contextmanager
def _server(kubeconfig: Path, nodes: int, pods: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.extender_server", str(kubeconfig), str(nodes), str(pods)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def _line(process: subprocess.Popen[str]) -> Object:
    assert process.stdout is not None
    text = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), START_S)
    if not text:
        raise ProgramFailed(f"the extender has ended with {process.wait(10)}")
    answer: Object = json.loads(text)
    return answer


async def _ask(process: subprocess.Popen[str]) -> Object:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return await _line(process)


class _Scheduler:
    """kube-scheduler: one pod after the other."""

    def __init__(self, api: _ApiServer, session: aiohttp.ClientSession, nodes: int) -> None:
        self._api = api
        self._session = session
        self._names = [extender_cluster.node_name(number) for number in range(nodes)]
        self._chance = random.Random(1)
        self._number = itertools.count()
        self.failed = 0

    async def place(self, candidates: int) -> tuple[float, float]:
        """Schedule one pod and bind it; return the seconds that filter and prioritise took."""
        size = self._chance.choice(extender_cluster.SIZES)
        annotations = {"sharepod.io/class": "latency"} if self._chance.random() < 0.2 else {}
        body = extender_cluster.pod(f"new-{next(self._number)}", size, annotations)
        self._api.waiting[body["metadata"]["name"]] = body
        self._api.tell("ADDED", body)
        names = self._names if candidates >= len(self._names) else self._chance.sample(self._names, candidates)
        began = time.perf_counter()
        fitting = (await self._post("filter", {"Pod": body, "NodeNames": names}))["NodeNames"]
        filtered_s = time.perf_counter() - began
        if len(fitting) < 2:
            self.failed += not fitting
            return filtered_s, 0.0
        data = json.dumps({"Pod": body, "NodeNames": fitting}).encode()
        began = time.perf_counter()
        scores = await self._post("prioritize", data)
        ranked_s = time.perf_counter() - began
        body["spec"]["nodeName"] = max(scores, key=lambda item: item["Score"])["Host"]
        self._api.tell("MODIFIED", body)
        return filtered_s, ranked_s

    async def _post(self, verb: str, body: Object | bytes) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.post(f"/{verb}", data=data) as response:
            found = await response.read()
            if response.status != 200:
                raise ProgramFailed(f"the extender answers {response.status}: {found[:200]!r}")
        return json.loads(found)


async def _measure(scale: Scale, directory: Path) -> list[Line]:
    nodes = 10_000 if scale.agents >= FULL.agents else 1000
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(directory / "ca.crt"))
    api = _ApiServer(nodes)
    runner = await api.start(context)
    config = {
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": f"https://127.0.0.1:{runner.addresses[0][1]}", "certificate-authority": str(directory / "ca.crt"),
        }}],
        "users": [{"name": "u", "user": {"token": "bench"}}],
    }  # fmt: skip
    (directory / "kubeconfig").write_text(json.dumps(config))
    lines: list[Line] = []
    began = time.monotonic()
    pods = nodes * extender_cluster.PODS_OF_NODE
    with _server(directory / "kubeconfig", nodes, pods) as process:
        port = (await _line(process))["port"]
        started_s = time.monotonic() - began
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            scheduler = _Scheduler(api, session, nodes)
            for candidates, count in CANDIDATES:
                lines += await _one(scheduler, process, min(candidates, nodes), count if nodes > 1000 else 100)
    await runner.cleanup()
    start = f"{started_s:.0f} s"
    what = f"extender knows {nodes:,} nodes and {pods:,} pods after"
    return [*lines, Line("extender", what, "", start, None)]


async def _one(scheduler: _Scheduler, process: subprocess.Popen[str], candidates: int, count: int) -> list[Line]:
    for _ in range(20):
        await scheduler.place(candidates)
    before, failed = await _ask(process), scheduler.failed
    began = time.monotonic()
    times = []
    for number in range(count):
        times.append(await scheduler.place(candidates))
        due = began + (number + 1) / RATE
        if due > time.monotonic():
            await asyncio.sleep(due - time.monotonic())
    passed = time.monotonic() - began
    after = await _ask(process)
    cpu_ms = (after["cpu_s"] - before["cpu_s"]) / count * 1e3
    both = sorted((filtered + ranked) * 1e9 for filtered, ranked in times)
    at_50, at_99 = figures.percentile(both, 50), figures.percentile(both, 99)
    own = f"of {candidates:,} nodes"
    detail: dict[str, object] = {
        "candidates": candidates, "pods": count, "failed": scheduler.failed - failed, "cpu_ms_per_pod": cpu_ms,
        "pods_per_core_second": 1000 / cpu_ms, "p50_ms": at_50 / 1e6, "p99_ms": at_99 / 1e6, "seconds": passed,
    }  # fmt: skip
    what = f"filter and prioritise {own} over HTTP, as kube-scheduler sees it, p50 / p99"
    lines = [Line("extender", what, "", f"{milli(at_50)} / {milli(at_99)}", None, detail=detail)]
    if candidates <= 1000:
        rate = 1000 / cpu_ms
        lines.append(
            Line(
                "extender", f"pods that a core places, {own} each, watch and annotations included", f"≥ {RATE}/s",
                f"{rate:.0f}/s ({cpu_ms:.2f} ms each; {count / passed:.0f}/s here, beside the rest)", rate >= RATE,
            )
        )  # fmt: skip
    return lines


def extender(scale: Scale) -> list[Line]:
    """Place pods through the extender."""
    scratch = Scratch("sharepod-bench")
    try:
        return asyncio.run(_measure(scale, scratch.path))
    finally:
        scratch.remove()
