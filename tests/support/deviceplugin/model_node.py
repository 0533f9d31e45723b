"""A node in virtual time: its kubelet with pods and containers, and a plugin that is made of the real parts.

The model is about what each party knows at what time: deletion comes before the end or after it, kubelet gives units
away while their container lives, a kubelet that starts knows no pods, a reboot leaves files and no processes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from model_sides import Lag, ModelAgent, ModelApi, ModelList, ModelProcesses, holder

from sharepod.deviceplugin.cdi.files import CdiDirectory
from sharepod.deviceplugin.cdi.injection import Place
from sharepod.deviceplugin.core.allocation_table import Record
from sharepod.deviceplugin.core.checkpoint import Store
from sharepod.deviceplugin.core.device_filter import DeviceFilter
from sharepod.deviceplugin.core.placement import Placement
from sharepod.deviceplugin.core.shares import Shares
from sharepod.deviceplugin.core.unit import UnitId
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
from sharepod.deviceplugin.reconcile.garbage_collector import GarbageCollector
from sharepod.deviceplugin.v1beta1.allocator import Allocator, Policy
from sharepod.deviceplugin.v1beta1.kubelet_checkpoint import Recorded
from sharepod.deviceplugin.v1beta1.podresources import Listing
from sharepod.kube.pod import Container as PodContainer
from sharepod.kube.pod import Pod

UNITS = 24
KUBELET_WAITS_S = 30.0


@dataclass(eq=False)
class Container:
    name: str
    size: int
    init: bool
    units: frozenset[UnitId] = frozenset()
    token: str = ""
    """The share that Allocate named; the runtime will never know more than this."""
    created: bool = False
    """Whether PreStartContainer has ended for it."""
    lives: bool = False
    done: bool = False


@dataclass(eq=False)
class NodePod:
    """A pod as kubelet has it."""

    pod: Pod
    containers: list[Container]
    listed: bool = False
    doomed: bool = False
    failed: bool = False
    admitted: bool = False
    task: asyncio.Task[None] | None = field(default=None)


class Plugin:
    """One process of the plugin; what it holds in memory ends with it."""

    def __init__(self, node: "ModelNode") -> None:
        self.record = Record(Store(node.directory))
        cdi = CdiDirectory(node.directory / "cdi")
        agent, api = node.agent, node.api
        shares = Shares(self.record, agent, cdi)  # type: ignore[arg-type]
        reconciler = AnnotationReconciler(self.record, shares, agent, api, limit_percent=100)  # type: ignore[arg-type]
        sides = (shares, reconciler, agent, api, node.listing)
        self.collector = GarbageCollector(self.record, *sides, node.processes)  # type: ignore[arg-type]
        place = Place("/run/shares", "/hook", "/preload")
        placement = Placement(self.record, reconciler, DeviceFilter())
        self.allocator = Allocator(Policy(), self.record, *sides, cdi, lambda _: place, placement)  # type: ignore[arg-type]
        work = reconciler.follow(), reconciler.resume_for_ever(), self.collector.collect_for_ever()
        self.tasks = [asyncio.create_task(one) for one in work]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, PluginError):
                raise result


class ModelNode:
    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.lag = Lag(seed)
        self.random = self.lag.random
        self.pods: list[NodePod] = []
        """The pods that kubelet knows, which are those of its checkpoint."""
        self.leaving: list[NodePod] = []
        """Pods that kubelet has forgotten while their containers live."""
        self.api = ModelApi(self.lag)
        self.listing = ModelList(self.lag, self._listed, self._recorded)
        self.processes = ModelProcesses(self.lag, self._live_pods)
        self.agent = ModelAgent(self.lag, self._lives)
        self.plugin: Plugin | None = None
        self.count = 0
        self.others: set[tuple[str, str]] = set()
        """Pods without a share. The plugin's own pod is one, unless a person has started the plugin."""
        if self.random.random() < 0.7:
            self.add_other()

    # The truth

    def _everybody(self) -> list[NodePod]:
        return [*self.pods, *self.leaving]

    def _lives(self, share: str) -> bool:
        return any(item.created and item.token == share for pod in self._everybody() for item in pod.containers)

    def _live_pods(self) -> frozenset[str]:
        return frozenset(
            pod.pod.uid for pod in self._everybody() if any(container.lives for container in pod.containers)
        )

    def _listed(self) -> Listing:
        holders = [
            holder(pod.pod, container.name, container.units)
            for pod in self.pods
            for container in pod.containers
            if pod.listed and not pod.failed and not container.init and container.units
        ]
        known = {(pod.pod.namespace, pod.pod.name) for pod in self.pods if not pod.failed} | self.others
        return Listing(tuple(holders), frozenset(known))

    def _recorded(self) -> tuple[Recorded, ...]:
        return tuple(
            Recorded(pod.pod.uid, container.name, container.units)
            for pod in self.pods
            for container in pod.containers
            if container.token and container.units
        )

    # The plugin

    async def start_plugin(self) -> None:
        if self.plugin is None:
            self.plugin = Plugin(self)

    async def stop_plugin(self) -> None:
        plugin, self.plugin = self.plugin, None
        if plugin is not None:
            await plugin.stop()

    # Kubelet

    async def _ready(self) -> None:
        while not (self.listing.up and self.listing.synced):
            await asyncio.sleep(0.5)

    def add_other(self) -> None:
        self.others.add(("default", "plugin"))
        self.api.put(Pod("uid-plugin", "default", "plugin", phase="Running"))

    async def create(self, size: int, init: int) -> None:
        self.count += 1
        name = f"p{self.count}"
        containers = [Container("init", init, init=True)] * bool(init) + [Container("main", size, init=False)]
        main = (PodContainer("main", units=size),)
        early = (PodContainer("init", ("initContainers", 0), units=init, stays=False),) * bool(init)
        pod = Pod(f"uid-{name}", "default", name, containers=main, init_containers=early, phase="Pending")
        self.api.put(pod)
        made = NodePod(pod, containers)
        made.task = asyncio.create_task(self._run(made))

    async def _run(self, pod: NodePod) -> None:
        """Admit and start a pod, and keep its main container running."""
        await self.lag()
        await self._ready()
        if pod.pod.name not in self.api.pods or not await self._admit(pod):
            return
        await asyncio.sleep(self.random.choice((0, 1, 20, 150)))  # the image is pulled
        for container in pod.containers:
            if container.done or container.created:
                continue
            await self._start(pod, container)
            if container.init:
                await asyncio.sleep(self.random.choice((0.1, 3, 40)))
                container.created = container.lives = False
                container.done = True
                if pod.pod.name in self.api.pods:
                    now = datetime.now(UTC).isoformat(timespec="seconds")
                    self.api.put(replace(self.api.pods[pod.pod.name], finished={container.name: now}))

    async def _admit(self, pod: NodePod) -> bool:
        if pod.admitted:
            return True
        free = {UnitId(f"u{number:04}") for number in range(UNITS)}
        free -= {unit for other in self.pods for container in other.containers for unit in container.units}
        self.pods.append(pod)
        reusable: list[UnitId] = []
        for container in pod.containers:
            chosen = reusable[: container.size]
            rest = sorted(free - set(chosen) - set(reusable))
            chosen += self.random.sample(rest, min(len(rest), container.size - len(chosen)))
            if len(chosen) < container.size or self.plugin is None:
                return self._refuse(pod)
            container.units = frozenset(chosen)
            if container.units:
                edits = await self.plugin.allocator.allocate(container.units)
                container.token = edits.cdi[0].rpartition("=")[2]
            reusable = chosen if container.init else []
        pod.admitted = True
        await asyncio.sleep(0.02)
        pod.listed = True
        return True

    def _refuse(self, pod: NodePod) -> bool:
        pod.failed = True
        for container in pod.containers:
            container.units = frozenset()
        if pod.pod.name in self.api.pods:
            self.api.put(replace(self.api.pods[pod.pod.name], phase="Failed"))
        return False

    async def _start(self, pod: NodePod, container: Container) -> None:
        while container.units:
            await self._ready()
            if self.plugin is not None and await self._pre_start(self.plugin, container):
                break
            await asyncio.sleep(self.random.choice((0.5, 6, 14)))
        container.created = True
        assert container.token in {"", *self.agent.held} or not self.agent.up, "a container starts without its share"
        await asyncio.sleep(self.random.choice((0.002, 0.1)))
        container.lives = True
        if pod.pod.name in self.api.pods:
            self.api.put(replace(self.api.pods[pod.pod.name], phase="Running", running=frozenset({container.name})))

    async def _pre_start(self, plugin: Plugin, container: Container) -> bool:
        begun = asyncio.get_running_loop().time()
        call = asyncio.create_task(plugin.allocator.pre_start(container.units))
        plugin.tasks.append(call)
        await asyncio.wait([call])
        assert asyncio.get_running_loop().time() - begun < KUBELET_WAITS_S, "kubelet would have given up"
        if call.cancelled():
            return False
        error = call.exception()
        assert error is None or isinstance(error, PluginError), repr(error)
        assert "never given out" not in str(error), f"{error}"
        return error is None

    # What happens

    def started(self) -> list[NodePod]:
        return [pod for pod in self.pods if pod.containers[-1].lives and not pod.doomed]

    async def crash(self, number: int) -> None:
        """End a main container; kubelet starts it again."""
        if not (pods := self.started()):
            return
        pod = pods[number % len(pods)]
        main = pod.containers[-1]
        main.created = main.lives = False
        pod.task = asyncio.create_task(self._start(pod, main))

    async def make_yield(self, number: int, how: str) -> None:
        """Have the scheduler make a pod yield: by `limit`, by `pause`, or no longer."""
        if not (pods := [pod for pod in self.pods if pod.pod.name in self.api.pods]):
            return
        shown = self.api.pods[pods[number % len(pods)].pod.name]
        self.api.put(replace(shown, annotations={"sharepod.io/yield": how} if how else {}))

    async def delete(self, number: int, how: str) -> None:
        """Delete a pod. `calm`: in the usual order; `forced`: first from the API server; `early`: first its units."""
        if not (pods := [pod for pod in self.pods if not pod.doomed and pod.admitted]):
            return
        pod = pods[number % len(pods)]
        pod.doomed = True
        if pod.task is not None:
            pod.task.cancel()
        if pod.pod.name in self.api.pods:
            self.api.put(replace(self.api.pods[pod.pod.name], deleting=True))
        pod.task = asyncio.create_task(self._delete(pod, how))

    async def _delete(self, pod: NodePod, how: str) -> None:
        def remove() -> None:
            self.api.remove(pod.pod.name)

        def kill() -> None:
            for container in pod.containers:
                container.created = container.lives = False

        def forget() -> None:
            if pod in self.pods:
                self.pods.remove(pod)
                self.leaving.append(pod)

        orders: dict[str, tuple[Callable[[], None], ...]] = {
            "calm": (kill, forget, remove), "forced": (remove, kill, forget), "early": (remove, forget, kill),
        }  # fmt: skip
        for step in orders[how]:
            await asyncio.sleep(self.random.choice((0.01, 2, 30, 100)))
            if step is forget:
                await self._ready()
            step()
        self.leaving.remove(pod)

    async def wait(self, for_s: float) -> None:
        await asyncio.sleep(for_s)

    async def put_up(self, name: str, up: bool) -> None:
        """Let the API server or the agent answer, or stop answering."""
        side = self.api if name == "api" else self.agent
        side.up = up

    async def fill(self, full: bool) -> None:
        """Let the agent say that its devices have no room, or that they have room again."""
        self.agent.full = full

    async def restart_plugin(self) -> None:
        await self.stop_plugin()
        await asyncio.sleep(0.5)
        await self.start_plugin()

    async def restart_kubelet(self, blind_s: float) -> None:
        """Restart kubelet; it hears of the API server's pods only after a while."""
        self.listing.up = self.listing.synced = False
        await asyncio.sleep(self.random.choice((1, 4)))
        self.listing.up = True
        await asyncio.sleep(blind_s)
        self.listing.synced = True

    async def reboot(self, blind_s: float) -> None:
        """Reboot: all processes and memory are lost; kubelet starts the pods of its checkpoint and the API server."""
        restarting = asyncio.create_task(self.restart_kubelet(blind_s))
        await self.stop_plugin()
        self.agent.held.clear()
        self.agent.terms.clear()
        for pod in self._everybody():
            again = [item for item in pod.containers if not item.init and (item.created or item.lives)]
            for container in pod.containers:
                container.created = container.lives = False
            if again and not pod.doomed:
                if pod.task is not None:
                    pod.task.cancel()
                pod.task = asyncio.create_task(self._start(pod, again[0]))
        await asyncio.sleep(self.random.choice((0.1, 5, 40)))
        await self.start_plugin()
        await restarting

    async def settle(self) -> None:
        """Make every side work, and wait until nothing more happens."""
        self.api.up = self.agent.up = self.listing.up = self.listing.synced = True
        self.agent.full = False
        await self.start_plugin()
        await asyncio.sleep(900)

    async def end(self) -> None:
        await self.stop_plugin()
        tasks = [pod.task for pod in self._everybody() if pod.task is not None]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
