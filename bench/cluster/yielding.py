"""A latency pod comes to a device that is full of batch: which pods yield, what its requests feel, what comes back.

Agent, device plugin and scheduler are the real processes: the scheduler's controller holds pods by their gates, and the
agent tells it what the device does. kubelet and the API server are doubles. The batch programs have kernels of 20 ms,
which no arbiter can interrupt. The latency is the program's own, not measured by our meter.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.bars import figures
from bench.bars.bar import KEPT, LATENCY
from bench.bars.neighbours import PERIOD_NS, REQUESTS, serve
from bench.bars.simulated import SimulatedRig
from bench.cluster.density import program_in
from bench.scale import Scale
from bench.table import Line, milli
from rig.cluster.apiserver import unused_port
from rig.cluster.node import plugin_node
from rig.loads import SECOND
from rig.programs import Program, load_command

BATCH = {"unit": "20ms", "depth": 4}
PODS = {"batch-a": 50, "batch-b": 50, "latency": 40}
"""Units that the pods ask for. Batch may use the whole device."""
ANNOTATIONS = {
    "batch": {"sharepod.io/class": "batch", "sharepod.io/limit": "100", "sharepod.io/memory": "20Gi"},
    "latency": {"sharepod.io/class": "latency", "sharepod.io/memory": "20Gi"},
}
STEP_S = 180.0
"""The most time until the last batch pod is paused: the last minute is measured, and there are two steps."""
RESUME_S = 60.0


def _body(name: str) -> dict[str, Any]:
    """Return a pod as the webhook leaves it."""
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"sharepod.io/gpu": str(PODS[name])}}
    return {
        "metadata": {
            "name": name, "namespace": "default", "uid": f"uid-{name}",
            "annotations": dict(ANNOTATIONS[name.partition("-")[0]]),
            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        "spec": {
            "priority": 1000 if name == "latency" else 0,
            "schedulingGates": [{"name": "sharepod.io/gate"}],
            "containers": [{"name": "main", "resources": resources}],
        },
        "status": {"phase": "Pending"},
    }  # fmt: skip


@dataclass
class _Cluster:
    """One node and its scheduler."""

    node: Any
    usage_port: int
    scheduler: asyncio.subprocess.Process | None = None
    pods: dict[str, Any] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    steps: dict[str, list[str]] = field(default_factory=dict)
    """What each pod was told to do, in order."""

    async def start_scheduler(self) -> None:
        """Start the scheduler's controller as a process."""
        directory: Path = self.node.directory
        flags = {
            "kubeconfig": directory / "kubeconfig", "listen": "127.0.0.1:0", "metrics-listen": "off",
            "usage-listen": f"127.0.0.1:{self.usage_port}", "drain-seconds": 0,
        }  # fmt: skip
        with (directory / "scheduler.log").open("w") as log:
            self.scheduler = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "sharepod.scheduler.main",
                *(word for name, value in flags.items() for word in (f"--{name}", str(value))), stderr=log,
            )  # fmt: skip

    async def until(self, what: str, holds: Callable[[], object], patience_s: float) -> float:
        """Wait until `holds`, and return how long that took. Note meanwhile what pods are told."""
        began_s = time.monotonic()
        while not holds():
            self.note()
            if time.monotonic() - began_s > patience_s:
                raise RuntimeError(f"{what}: not for {patience_s:.0f} s; {self.steps}; {self.node.log()[-4000:]}")
            await asyncio.sleep(0.05)
        self.note()
        return time.monotonic() - began_s

    def note(self) -> None:
        """Add to each pod's steps what it is told now, if that is new."""
        for name in self.pods:
            steps = self.steps.setdefault(name, [""])
            if steps[-1] != (now := self.yields(name)):
                steps.append(now)

    def body(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.node.api.pods["default", name]
        return found

    def yields(self, name: str) -> str:
        return str(self.body(name)["metadata"]["annotations"].get("sharepod.io/yield", ""))

    async def run(self, name: str, command: list[str]) -> float:
        """Create a pod and run a program in it. Return how long the pod had no node."""
        self.node.api.put(_body(name))
        waited_s = await self.until(f"{name} has no place", lambda: not self.body(name)["spec"]["schedulingGates"], 60)
        pod = await self.node.kubelet.admit("default", name, {"main": PODS[name]}, uid=f"uid-{name}")
        body = self.body(name)
        body["spec"]["nodeName"] = body["metadata"]["annotations"]["sharepod.io/node"]
        self.node.api.put(body)
        await self.node.kubelet.start(pod, "main", patience_s=30)
        body = self.body(name)
        body["status"] = {"phase": "Running", "startTime": body["metadata"]["creationTimestamp"]}
        self.node.api.put(body)
        self.pods[name] = pod
        share = (await self.node.shares())[f"{name}/main"]
        program = self.programs[name] = await program_in(self.node, share, command)
        await asyncio.to_thread(program.await_ready)
        now_ns = time.monotonic_ns()
        program.go(now_ns, now_ns + 3600 * 10**9)
        return waited_s

    async def leave(self, name: str) -> tuple[int, ...]:
        """End a pod. Return the latencies of its program's requests in ns."""
        self.programs[name].stop()
        result = await asyncio.to_thread(self.programs.pop(name).result)
        self.node.kubelet.finish(self.pods.pop(name))
        body = self.body(name)
        body["status"]["phase"] = "Succeeded"
        self.node.api.put(body)
        return result.latencies_ns

    async def used(self, seconds: float) -> float:
        """Return the part of the device that batch uses."""

        async def look() -> tuple[int, int]:
            shares = await self.node.shares()
            used = sum(shares[f"{name}/main"].devices[0].usage.used_ns for name in PODS if name.startswith("batch"))
            return time.monotonic_ns(), used

        before = await look()
        await asyncio.sleep(seconds)
        after = await look()
        return (after[1] - before[1]) / (after[0] - before[0])

    async def stop(self) -> None:
        for program in self.programs.values():
            program.kill()
        if self.scheduler is not None:
            self.scheduler.terminate()
            await self.scheduler.wait()


@dataclass(frozen=True, slots=True)
class _Run:
    """The observations of a run."""

    waited_s: float
    paused_s: float
    resumed_s: float
    before_ns: float
    """p99 of the latency pod's requests while batch was beside it."""
    after_ns: float
    """The same after all of batch had yielded."""
    full: float
    back: float
    steps: dict[str, list[str]]
    same: bool
    """Whether the batch programs ran on: the same processes and shares, started once."""


async def _run(requests: int) -> _Run:
    """Fill a device with batch, bring the latency pod, wait until batch has yielded, and let the pod leave again."""
    usage_port = unused_port()
    flags = ("--metrics-listen", "off", "--node-name", "n1", "--scheduler-address", f"127.0.0.1:{usage_port}")
    async with plugin_node("1xH200", flags, spare_percent=100) as node:
        node.api.put_namespace("sharepod")
        node.api.put_node(_node(node.api))
        cluster = _Cluster(node, usage_port)
        try:
            await cluster.start_scheduler()
            batch = [name for name in PODS if name != "latency"]
            for name in batch:
                await cluster.run(name, load_command("saturate", BATCH))
            ids = {name: share.id for name, share in (await node.shares()).items()}
            full = await cluster.used(5)
            waited_s = await cluster.run("latency", load_command("periodic", REQUESTS))
            await asyncio.sleep(requests * PERIOD_NS / SECOND)
            paused_s = await cluster.until(
                "batch is not paused", lambda: all(cluster.yields(name) == "pause" for name in batch), STEP_S
            )
            await asyncio.sleep(requests * PERIOD_NS / SECOND + 1)
            latencies = await cluster.leave("latency")
            resumed_s = await cluster.until(
                "batch does not go on", lambda: not any(cluster.yields(name) for name in batch), RESUME_S + STEP_S
            )
            await asyncio.sleep(2)
            back = await cluster.used(5)
            ids_now = {name: share.id for name, share in (await node.shares()).items() if name in ids}
            once = all(pod.containers["main"].starts == 1 for pod in cluster.pods.values())
            for name in batch:
                await cluster.leave(name)
        finally:
            await cluster.stop()
    first, last = (figures.percentile(some, 99) for some in (latencies[:requests], latencies[-requests:]))
    return _Run(
        waited_s, paused_s + requests * PERIOD_NS / SECOND, resumed_s, first, last, full, back, cluster.steps,
        once and ids_now == ids,
    )  # fmt: skip


def _node(api: Any) -> dict[str, Any]:
    body: dict[str, Any] = api.nodes["", "n1"]
    body["metadata"]["labels"] = {"kubernetes.io/hostname": "n1"}
    body["status"]["allocatable"] = {"cpu": "64", "memory": "512Gi", "sharepod.io/gpu": "200"}
    return body


def measure(scale: Scale) -> list[Line]:
    """Measure the p99 of a latency pod on a device that was full of batch, and check that batch comes back."""
    requests = max(500, scale.requests // 3)
    solo = serve(SimulatedRig(replace(scale, requests=requests)), {}, hook=False).p99_ns
    run = asyncio.run(_run(requests))
    ratio, before = run.after_ns / solo, run.before_ns / solo
    detail: dict[str, object] = {
        "solo_p99": milli(solo), "p99_beside": milli(run.before_ns), "p99_after": milli(run.after_ns),
        "steps": run.steps, "waited_s": run.waited_s, "paused_s": run.paused_s, "resumed_s": run.resumed_s,
    }  # fmt: skip
    what = f"latency pod on a device full of batch, {requests} requests"
    steps = " and ".join(" → ".join(word or "runs" for word in run.steps[name]) for name in sorted(run.steps)[:2])
    limited = any("limit" in steps and steps.index("limit") < steps.index("pause") for steps in run.steps.values())
    p99 = f"{ratio:.2f} × ({milli(run.after_ns)}; before {before:.1f} ×)"
    back = f"{run.back / run.full:.2f} (after {run.resumed_s:.1f} s)"
    rows: list[tuple[str, str, str, bool]] = [
        (f"{what}: has its place after", "≤ 2 s", f"{run.waited_s:.1f} s", run.waited_s <= 2),
        (f"{what}: p99 ÷ solo p99 once batch has yielded", f"≤ {LATENCY.bound:g} ×", p99, LATENCY.met(ratio)),
        ("batch yields, step by step", "limited, then paused", f"{steps} (all after {run.paused_s:.0f} s)", limited),
        ("batch goes on by itself: of what it used before", f"≥ {KEPT.bound:g}", back, KEPT.met(run.back / run.full)),
        ("batch: the same processes and shares, started once", "yes", "yes" if run.same else "no", run.same),
    ]
    return [Line(*row, detail=detail) for row in rows]
