"""Measures a node with a hundred shares: how fast containers start, and what agent and device plugin use of the node.

Both are the real processes. kubelet and the API server are the doubles of rig/cluster, which are slower than the real
ones and share the processors with the rest. So a start is judged by our own time: the processor time that agent and
plugin took while kubelet's call was open, for this start or for others at the same time. On that machine no start can
be faster. With a kubelet and an API server that answer at once, only the syncing of files would make one slower. How
long kubelet waited, for us and for the doubles, is shown beside it.
"""

import asyncio
import os
import ssl
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from bench.bars import figures
from bench.bars.arbiter import cpu_s, node_of
from bench.scale import FULL, Scale
from bench.table import Line, milli
from rig.cluster import apiserver
from rig.cluster.node import plugin_node
from rig.programs import Program, load_command
from sharepod.cli.commands.launch import program_environment
from sharepod.cli.scratch import Scratch
from sharepod.proto import v1_pb2

DEVICES = "8xH200"
PODS = 100
SIZES = (4, 6, 8, 10)
"""Percent of a device, in turn: in sum 700 of the node's 800."""
AT_ONCE = 10
SCRAPE_S = 15
SCRAPES = 50
SCRAPE_MS = 30
SCRAPE_PERCENT = 1
"""Percent of a core, at a scrape every SCRAPE_S."""
CALLS_MS = 50
MEMORY_MIB = 180
CPU_PERCENT = 3
ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
"""The Accept header that Prometheus sends."""
TOKEN = "of-the-bench-and-no-other"  # noqa: S105
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class _Taken:
    """The cost of a start."""

    own_ns: int
    waited_ns: int


_TIMED = ("AllocateResponse", "PreStartContainerResponse")
_calls: ContextVar[list[_Taken]] = ContextVar("_calls")
"""The calls of the start that the running task makes."""


class _Stopwatch:
    """Times kubelet's calls, from its side."""

    def __init__(self, endpoint: Any, own_ns: Callable[[], int]) -> None:
        self._own_ns = own_ns
        self._call = endpoint.call
        endpoint.call = self._timed

    async def _timed(self, call: Any) -> Any:
        own_ns, began_ns = self._own_ns(), time.perf_counter_ns()
        answer = await self._call(call)
        waited_ns = time.perf_counter_ns() - began_ns
        if type(answer).__name__ in _TIMED:
            _calls.get().append(_Taken(self._own_ns() - own_ns, waited_ns))
        return answer

    async def time(self, step: Awaitable[object]) -> _Taken:
        """Do a step that makes kubelet call. Return the cost of its calls together."""
        calls: list[_Taken] = []
        _calls.set(calls)
        await step
        return _Taken(sum(call.own_ns for call in calls), sum(call.waited_ns for call in calls))


class _Busy:
    """A node with its pods, and the use of its two processes."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.watch = _Stopwatch(node.kubelet.endpoint, lambda: sum(map(_cpu_ns, self.pids().values())))
        self.pods: list[Any] = []

    def pids(self) -> dict[str, int]:
        return {"agent": self.node.agent.pid, "plugin": self.node.plugin.pid}

    async def admit(self) -> None:
        """Let one more pod be admitted."""
        number = len(self.node.kubelet.pods)
        self.pods.append(await self.node.admit(f"p{number}", {"main": SIZES[number % len(SIZES)]}))

    async def start(self, count: int) -> list[_Taken]:
        """Admit `count` pods, one after the other as kubelet does, then start them all at once."""
        admitted = [await self.watch.time(self.admit()) for _ in range(count)]
        kubelet = self.node.kubelet
        starts = [kubelet.start(pod, "main", patience_s=PATIENCE_S) for pod in self.pods[-count:]]
        started = await asyncio.gather(*map(self.watch.time, starts))
        return [
            _Taken(first.own_ns + second.own_ns, first.waited_ns + second.waited_ns)
            for first, second in zip(admitted, started, strict=True)
        ]

    async def restart(self, first: int, count: int) -> list[_Taken]:
        """Restart the containers of `count` pods at once."""
        starts = [self.node.kubelet.restart(pod, "main") for pod in self.pods[first : first + count]]
        return await asyncio.gather(*map(self.watch.time, starts))

    async def empty(self) -> None:
        """End all pods and wait until their shares are released."""
        for pod in self.pods:
            self.node.kubelet.finish(pod)
            self.node.show(pod, {}, phase="Succeeded")
        self.pods.clear()
        until = time.monotonic() + 2 * PATIENCE_S
        while await self.node.shares():
            if time.monotonic() > until:
                raise RuntimeError(f"shares of pods that are over stay: {self.node.log()}")
            await asyncio.sleep(0.2)

    async def starts(self) -> list[Line]:
        """Start containers: one after the other and at once, new ones and restarts."""
        lines = []
        for at_once, how in ((1, "one after the other"), (AT_ONCE, f"{AT_ONCE} at once")):
            new = [await self.start(at_once) for _ in range(0, PODS, at_once)]
            lines.append(self._calls(f"Allocate + PreStartContainer, {how}", chain(*new)))
            again = [await self.restart(first, at_once) for first in range(0, PODS, at_once)]
            lines.append(self._calls(f"PreStartContainer of a restart, {how}", chain(*again)))
            if at_once == 1:
                await self.empty()
        return lines

    def _calls(self, what: str, starts: Iterable[_Taken]) -> Line:
        """Return the line about the cost of these starts. Our own time is judged."""
        taken = list(starts)
        own, waited = [item.own_ns for item in taken], [item.waited_ns for item in taken]
        of_own, of_waited = ([figures.percentile(times, percent) for percent in (50, 99)] for times in (own, waited))
        text = f"{_both(of_own)} (kubelet waited {_both(of_waited)})"
        bar = f"p99 ≤ {CALLS_MS} ms"
        what = f"to {PODS} pods: {what}, own p50 / p99"
        detail: dict[str, object] = {"own_ns": own, "waited_ns": waited}
        return Line(what, bar, text, of_own[1] <= CALLS_MS * 1e6, detail=detail)

    def memory(self) -> Line:
        """Measure the resident memory of both processes."""
        mib = {name: rss_mib(pid) for name, pid in self.pids().items()}
        total = sum(mib.values())
        what = f"{PODS} shares: memory of agent and plugin"
        text = f"{total:.0f} MiB ({mib['agent']:.0f} + {mib['plugin']:.0f})"
        return Line(what, f"≤ {MEMORY_MIB} MiB", text, total <= MEMORY_MIB, detail={"mib": mib})

    async def cpu(self, what: str, seconds: float, scrape: Callable[[], int] | None, *, judged: bool = True) -> Line:
        """Measure the processor time of both processes for `seconds`, while nothing starts or ends.

        `scrape` (may be None) is called every SCRAPE_S.
        """
        before, began = {name: cpu_s(pid) for name, pid in self.pids().items()}, time.monotonic()
        scraped = 0
        while (passed := time.monotonic() - began) < seconds:
            if scrape:
                scraped = await asyncio.to_thread(scrape)
            await asyncio.sleep(min(SCRAPE_S, seconds - passed))
        passed = time.monotonic() - began
        percent = {name: (cpu_s(pid) - before[name]) / passed * 100 for name, pid in self.pids().items()}
        total = sum(percent.values())
        text = f"{total:.2f} % ({percent['agent']:.2f} + {percent['plugin']:.2f})"
        detail: dict[str, object] = {"percent": percent, "seconds": passed, "scraped_bytes": scraped}
        what = f"{PODS} shares: of a core for agent and plugin, {what}"
        bar = f"≤ {CPU_PERCENT} %" if judged else ""
        return Line(what, bar, text, total <= CPU_PERCENT if judged else None, detail=detail)

    async def scrapes(self, scrape: Callable[[], int]) -> Line:
        """Scrape the agent many times, one after the other. Judge the agent's processor time per scrape."""
        pid, waited_ns, scraped = self.pids()["agent"], [], 0
        await asyncio.to_thread(scrape)  # only the first scrape writes the labels
        before_s = cpu_s(pid)
        for _ in range(SCRAPES):
            began_ns = time.perf_counter_ns()
            scraped = await asyncio.to_thread(scrape)
            waited_ns.append(time.perf_counter_ns() - began_ns)
        own_ms = (cpu_s(pid) - before_s) / SCRAPES * 1e3
        percent = own_ms / 1e3 / SCRAPE_S * 100
        text = f"{own_ms:.1f} ms, {percent:.2f} % (waited {milli(figures.median(waited_ns))}, {scraped / 1e3:.0f} kB)"
        what = f"{PODS} shares: a scrape, and of a core for the agent at one every {SCRAPE_S} s"
        bar = f"≤ {SCRAPE_MS} ms, ≤ {SCRAPE_PERCENT} %"
        is_met = own_ms <= SCRAPE_MS and percent <= SCRAPE_PERCENT
        return Line(what, bar, text, is_met, detail={"own_ms": own_ms, "waited_ns": waited_ns})

    async def programs(self, seconds: float) -> Line:
        """Run a program in one share of each device. Each uses its whole device."""
        chosen = {share.devices[0].device_uuid: share for share in (await self.node.shares()).values()}
        running: list[Program] = []
        try:
            for share in chosen.values():
                running.append(await program_in(self.node, share, load_command("saturate", {"unit": "5ms"})))
                await asyncio.to_thread(running[-1].await_ready)
            now_ns = time.monotonic_ns()
            for program in running:
                program.go(now_ns, now_ns + round((seconds + 2) * 1e9))
            await asyncio.sleep(1)
            line = await self.cpu(f"programs at work in {len(running)} of them", seconds, None, judged=False)
            for program in running:
                await asyncio.to_thread(program.result)
        finally:
            for program in running:
                program.kill()
        return line


def _both(values: Sequence[float]) -> str:
    return " / ".join(map(milli, values))


def _cpu_ns(pid: int) -> int:
    """Return the processor time that a process's threads have used."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has just ended
            total += int(path.read_text().split()[0])
    return total


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


async def program_in(node: Any, share: v1_pb2.Share, command: Sequence[str]) -> Program:
    """Start a program in a share, as the container runtime would. It waits for its go."""
    view = await asyncio.to_thread(node_of, node.runtime / "agent.sock")
    uuid = share.devices[0].device_uuid
    own = {**view.environment, "SHAREPOD_REGION": share.directory, "CUDA_VISIBLE_DEVICES": uuid}
    return Program(share.id, command, program_environment(os.environ, own, view.hook_path))


class _Scraper:
    """Scrapes an agent as Prometheus does under daemonset/monitoring: with TLS and a token."""

    def __init__(self, directory: Path) -> None:
        certificate, key, token = (directory / name for name in ("tls.crt", "tls.key", "token"))
        apiserver.SERVER.cert_chain_pems[0].write_to_path(str(certificate))
        apiserver.SERVER.private_key_pem.write_to_path(str(key))
        token.write_text(TOKEN)
        port = apiserver.unused_port()
        self.flags = [
            "--metrics-listen", f"127.0.0.1:{port}", "--metrics-tls-certificate", str(certificate),
            "--metrics-tls-key", str(key), "--metrics-token-file", str(token),
        ]  # fmt: skip
        self._request = urllib.request.Request(f"https://127.0.0.1:{port}/metrics")
        self._request.add_header("Authorization", f"Bearer {TOKEN}")
        self._request.add_header("Accept", ACCEPT)
        self._request.add_header("Accept-Encoding", "gzip")
        self._context = ssl.create_default_context()
        apiserver.AUTHORITY.configure_trust(self._context)

    def scrape(self) -> int:
        """Return the size of the page."""
        with urllib.request.urlopen(self._request, timeout=10, context=self._context) as answer:  # noqa: S310
            return len(answer.read())


async def _measure(scale: Scale, scraper: _Scraper) -> list[Line]:
    seconds = SCRAPE_S if scale.short_s < FULL.short_s else 2 * SCRAPE_S
    async with plugin_node(DEVICES, scraper.flags) as node:
        busy = _Busy(node)
        lines = await busy.starts()
        await asyncio.sleep(2)
        lines.append(await busy.cpu("nothing at work", seconds, None))
        lines.append(await busy.cpu(f"scraped every {SCRAPE_S} s", seconds, scraper.scrape))
        lines.append(await busy.scrapes(scraper.scrape))
        lines.append(await busy.programs(scale.short_s))
        lines.append(busy.memory())
        return lines


def density(scale: Scale) -> list[Line]:
    """Fill a node of eight devices with a hundred pods."""
    scratch = Scratch("sharepod-bench")
    try:
        return asyncio.run(_measure(scale, _Scraper(scratch.path)))
    finally:
        scratch.remove()
