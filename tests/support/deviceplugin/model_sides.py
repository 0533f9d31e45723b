"""The partners of the plugin on a modelled node: API server, kubelet's list, processes, agent.

Each answer takes a random time. The partners hold the truth of the model. On every release they check that no container
lives on what is released.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from random import Random

from sharepod.deviceplugin.core.agent import NodeView, NoRoom, StaysPaused
from sharepod.deviceplugin.core.terms import PodTerms
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.v1beta1.kubelet_checkpoint import Recorded
from sharepod.deviceplugin.v1beta1.podresources import Holder, KubeletUnavailable, Listing
from sharepod.kube.client import ApiUnavailable
from sharepod.kube.pod import Pod
from sharepod.proto import v1_pb2 as pb

DEVICES = ("GPU-0", "GPU-1")


class Lag:
    """How long an answer takes: mostly no time, but now and then long enough for much else to happen meanwhile."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.always_s: float | None = None
        """How long every answer takes, if a test sets it."""

    async def __call__(self) -> None:
        if self.always_s is None:
            await asyncio.sleep(self.random.choice((0, 0, 0, 0.01, 0.2, 1.5, 6)))
        else:
            await asyncio.sleep(self.always_s)


class ModelApi:
    """The API server: the pods that ought to be there, and a watch that lags behind."""

    def __init__(self, lag: Lag) -> None:
        self.up = True
        self.pods: dict[str, Pod] = {}
        self.listed = False
        self.events: list[tuple[str, str, str]] = []
        self._lag = lag
        self._changes: asyncio.Queue[tuple[str, Pod]] = asyncio.Queue()

    def put(self, pod: Pod) -> None:
        self.pods[pod.name] = pod
        self._changes.put_nowait(("set", pod))

    def remove(self, name: str) -> None:
        if (pod := self.pods.pop(name, None)) is not None:
            self._changes.put_nowait(("gone", pod))

    def lose(self, name: str) -> None:
        """Let the watch say that a pod is gone, although the API server still has it."""
        self._changes.put_nowait(("gone", self.pods[name]))

    async def get(self, namespace: str, name: str, within_s: float = 10) -> Pod | None:
        await self._lag()
        if not self.up:
            await asyncio.sleep(within_s)
            raise ApiUnavailable("the API server is away")
        pod = self.pods.get(name)
        await self._lag()
        return pod

    async def uids(self) -> frozenset[str]:
        await self._lag()
        if not self.up:
            await asyncio.sleep(10)
            raise ApiUnavailable("the API server is away")
        return frozenset(pod.cgroup_uid for pod in self.pods.values() if pod.phase not in ("Succeeded", "Failed"))

    async def watch(self) -> AsyncIterator[tuple[str, Pod]]:
        """Begin a new watch, as a plugin that starts does."""
        self.listed = False
        await self._wait()
        self._changes = asyncio.Queue()
        for pod in list(self.pods.values()):
            yield "set", pod
            await self._wait()
        self.listed = True
        while True:
            change = await self._changes.get()
            await self._wait()
            yield change

    async def _wait(self) -> None:
        await self._lag()
        while not self.up:
            await asyncio.sleep(0.7)

    async def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((pod.name, reason, message))

    def node_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append(("", reason, message))


class ModelList:
    """What kubelet reports: its list of pods, and its checkpoint."""

    def __init__(self, lag: Lag, listing: Callable[[], Listing], recorded: Callable[[], tuple[Recorded, ...]]) -> None:
        self.up = True
        self.recorded = recorded
        """Returns what kubelet's checkpoint has; the checkpoint can be read also while kubelet is down."""
        self.synced = True
        """False while kubelet has not yet heard of the API server's pods since it started."""
        self._lag = lag
        self._listing = listing

    async def look(self) -> Listing:
        await self._lag()
        if not self.up:
            raise KubeletUnavailable("kubelet is away")
        listing = self._listing() if self.synced else Listing((), frozenset())
        await self._lag()
        return listing


class ModelProcesses:
    def __init__(self, lag: Lag, live: Callable[[], frozenset[str]]) -> None:
        self._lag = lag
        self._live = live

    async def live_pods(self) -> frozenset[str]:
        await self._lag()
        live = self._live()
        await self._lag()
        return live


class ModelAgent:
    """The agent: shares by id."""

    def __init__(self, lag: Lag, lives: Callable[[str], bool]) -> None:
        self.up = True
        self.full = False
        self.held: dict[str, pb.Share] = {}
        self.terms: dict[str, PodTerms] = {}
        self._lag = lag
        self._lives = lives

    async def _answer(self) -> None:
        await self._lag()
        if not self.up:
            raise PluginError("the agent is away")

    async def node(self) -> NodeView:
        await self._answer()
        promised = 100_000 if self.full else 0
        devices = [
            pb.Device(uuid=uuid, index=index, memory_total_bytes=1 << 37, healthy=True, requested_millipercent=promised)
            for index, uuid in enumerate(DEVICES)
        ]
        return NodeView(tuple(devices), "/hook", "/run/shares", closed=False, environment={})

    async def shares(self) -> dict[str, pb.Share]:
        await self._answer()
        held = dict(self.held)
        await self._lag()
        return held

    async def share(self, share_id: str) -> pb.Share | None:
        return (await self.shares()).get(share_id)

    async def register(
        self, share_id: str, terms: PodTerms, devices: Sequence[str], labels: Mapping[str, str]
    ) -> pb.Share:
        await self._answer()
        if self.full and share_id not in self.held:
            raise NoRoom("no room")
        device = pb.DeviceShare(device_uuid=DEVICES[0])
        share = self.held.setdefault(share_id, pb.Share(id=share_id, devices=[device], labels=labels))
        self.terms.setdefault(share_id, terms)
        await self._lag()
        return share

    async def update(
        self, share: pb.Share, terms: PodTerms, node: NodeView, labels: Mapping[str, str] | None = None
    ) -> None:
        await self._answer()
        assert share.id in self.held, "a share that is gone is changed"
        self.terms[share.id] = terms
        was, changed = self.held[share.id], pb.Share()
        changed.CopyFrom(was)  # an earlier answer must not change with the share
        self.held[share.id] = changed
        if labels is not None:
            changed.labels.clear()
            changed.labels.update(labels)
        yielding = terms.yields == "pause"
        if self.full and was.yielding and not yielding:
            raise StaysPaused("no room to go on")
        changed.paused, changed.yielding = terms.paused or yielding, yielding
        await self._lag()

    async def release(self, share_id: str) -> None:
        await self._answer()
        assert not self._lives(share_id), f"the share {share_id} of a live container is released"
        self.held.pop(share_id, None)
        self.terms.pop(share_id, None)
        await self._lag()


def holder(pod: Pod, container: str, units: frozenset[str]) -> Holder:
    return Holder(pod.namespace, pod.name, container, units)  # type: ignore[arg-type]
