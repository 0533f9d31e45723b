"""A cluster to check the scheduler's view against: API server, gate controller, agents and plugins as plain values."""

import copy
import random
from dataclasses import dataclass, field
from typing import Any

from sharepod.agent.shares.share import ShareClass
from sharepod.scheduler.controller.gang_placement import Placer
from sharepod.scheduler.state.cluster import Assumed, Cluster
from sharepod.scheduler.state.node import read_node
from sharepod.scheduler.state.node_info import Row
from sharepod.scheduler.state.pod import NODE, Pod, device_annotations, read_pod
from sharepod.scheduler.state.usage import DeviceFacts, DeviceUse, NodeFacts, NodeUse, ShareTerms, ShareUse

DEVICE_BYTES = 80 * 2**30
Body = dict[str, Any]


def node_body(name: str, devices: int) -> Body:
    allocatable = {"cpu": "64", "memory": "512Gi", "sharepod.io/gpu": str(100 * devices)}
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def pod_body(name: str, units: int, annotations: dict[str, str] | None = None, cpu: str = "1") -> Body:
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"sharepod.io/gpu": str(units)}}
    return {
        "metadata": {
            "name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": dict(annotations or {}),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Pending"},
    }  # fmt: skip


def read(body: Body) -> Pod:
    pod = read_pod(body)
    assert pod is not None
    return pod


@dataclass
class Agent:
    """A node's agent: it knows its shares, and refuses a share that does not fit."""

    name: str
    devices: int
    shares: dict[str, tuple[Pod, tuple[str, ...]]] = field(default_factory=dict)
    """By the pod's uid, the pod and its devices."""
    reports: bool = True
    unhealthy: frozenset[int] = frozenset()
    yielding: frozenset[str] = frozenset()
    """Uids of the pods that had their shares paused by it to make room."""
    used: dict[str, int] = field(default_factory=dict)
    """By a pod's name, the device time that it used in the last minute, in 1/1000 %."""

    def uuid(self, index: int) -> str:
        return f"GPU-{self.name}-{index}"

    def used_milli(self, uuid: str) -> int:
        return sum(pod.request.shares[0].milli for pod, devices in self.shares.values() if uuid in devices)

    def used_mib(self, uuid: str) -> int:
        return sum(_mib(pod) for pod, devices in self.shares.values() if uuid in devices)

    def has_room(self, pod: Pod, devices: tuple[str, ...]) -> bool:
        own = self.shares.get(pod.uid)
        there = own is not None and own[1] == devices
        milli, mib = pod.request.shares[0].milli, _mib(pod)
        return there or all(
            self.used_milli(uuid) + milli <= 1000 and self.used_mib(uuid) + mib <= DEVICE_BYTES // 2**20
            for uuid in devices
        )

    def pick(self, pod: Pod) -> tuple[str, ...]:
        """Return the device that the agent would pick itself: the fullest that fits, or none if none fits."""
        fitting = [uuid for uuid in map(self.uuid, range(self.devices)) if self.has_room(pod, (uuid,))]
        fitting.sort(key=lambda uuid: -self.used_milli(uuid))
        wanted = pod.request.shares[0].devices
        return tuple(sorted(fitting[:wanted])) if len(fitting) >= wanted else ()

    def use(self) -> NodeUse | None:
        if not self.reports:
            return None
        devices = []
        for index in range(self.devices):
            facts = DeviceFacts(
                index, self.uuid(index), "H200", DEVICE_BYTES, index not in self.unhealthy, "", True, -1, ()
            )
            shares = tuple(
                ShareUse(_terms(pod, pod.uid in self.yielding), self.used.get(pod.name, 0))
                for pod, held in self.shares.values()
                if self.uuid(index) in held
            )
            devices.append(DeviceUse(facts, shares=shares))
        return NodeUse(NodeFacts(self.name, "0"), tuple(devices))


def _mib(pod: Pod) -> int:
    share = pod.request.shares[0]
    return share.mib_of(DEVICE_BYTES // 2**20)


def _terms(pod: Pod, yielding: bool) -> ShareTerms:
    share = pod.request.shares[0]
    return ShareTerms(
        f"share-{pod.uid}", pod.uid, pod.namespace, pod.name, pod.containers[0], ShareClass[share.share_class.upper()],
        share.milli * 100, (share.limit_milli or 1000) * 100, _mib(pod) * 2**20, paused=yielding, yielding=yielding,
    )  # fmt: skip


class World:
    """The true state of the cluster. A replica hears of it by `tell`, when the test says so."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.nodes = {name: node_body(name, devices) for name, devices in sizes.items()}
        self.agents = {name: Agent(name, devices) for name, devices in sizes.items()}
        self.pods: dict[str, Body] = {}
        self.now_s = 1000.0

    def replica(self, action: random.Random | None = None) -> Cluster:
        """Return a replica that has been told everything, in a random order."""
        cluster = Cluster()
        facts: list[Any] = [("node", name) for name in self.nodes]
        facts += [("use", name) for name in self.agents] + [("pod", uid) for uid in self.pods]
        (action or random.Random(0)).shuffle(facts)
        for kind, name in facts:
            self.tell(cluster, kind, name)
        cluster.advance(self.now_s)
        return cluster

    def tell(self, cluster: Cluster, kind: str, name: str) -> None:
        """Tell a replica the present state of one node, agent or pod."""
        if kind == "node":
            if name in self.nodes:
                node = read_node(self.nodes[name])
                assert node is not None
                cluster.set_node(node)
            else:
                cluster.remove_node(name)
        elif kind == "use":
            cluster.set_use(name, self.agents[name].use() if name in self.agents else None)
        elif name in self.pods:
            cluster.set_pod(read(self.pods[name]))
        else:
            cluster.remove_pod(name)

    def pod(self, uid: str) -> Pod:
        return read(self.pods[uid])

    def create(self, body: Body) -> str:
        uid = str(body["metadata"]["uid"])
        self.pods[uid] = copy.deepcopy(body)
        return uid

    def place(self, cluster: Cluster, uid: str) -> Assumed | None:
        """Find a place for a pod as a cycle of the gate controller does; None: the pod fits on no node."""
        places = Placer(cluster, self.now_s).place([self.pod(uid)])
        return places[0] if places else None

    def release(self, assumed: Assumed) -> bool:
        """Write the chosen place into the pod, as the API server would. Return whether there is such a pod."""
        body = self.pods.get(assumed.pod.uid)
        if body is None:
            return False
        annotations = body["metadata"]["annotations"]
        for key, text in {**device_annotations(assumed.pod, assumed.devices), NODE: assumed.node}.items():
            annotations.pop(key, None)
            if text is not None:
                annotations[key] = text
        return True

    def bind(self, uid: str) -> None:
        """Bind a released pod as kube-scheduler does: its node selector leaves one node."""
        self.pods[uid]["spec"]["nodeName"] = self.pods[uid]["metadata"]["annotations"][NODE]

    def start(self, uid: str) -> bool:
        """Start a bound pod as its device plugin does. Return False if the node's agent has no room for it."""
        pod = self.pod(uid)
        agent = self.agents[pod.node]
        chosen = tuple(sorted(pod.chosen[0])) if pod.chosen else ()
        known = {agent.uuid(index) for index in range(agent.devices)}
        devices = chosen if chosen and set(chosen) <= known else agent.pick(pod)
        if not devices or not agent.has_room(pod, devices):
            return False
        agent.shares.setdefault(uid, (pod, devices))
        self.pods[uid]["status"]["phase"] = "Running"
        return True

    def end(self, uid: str) -> None:
        """End a pod: release its share, then remove the pod."""
        body = self.pods.pop(uid)
        if (node := body["spec"].get("nodeName")) in self.agents:
            self.agents[node].shares.pop(uid, None)


def row_of(cluster: Cluster, name: str) -> Row:
    """Return what is left of a node in a replica's view."""
    row = cluster.row(name)
    assert row is not None
    return row
