"""Holds the view: what is known of the cluster, and the snapshot that follows from it. Pure: the observer tells it.

A row of the snapshot is a function of what is known of that node: the node and its pods as the API server has them, the
devices and shares that its agent reports, and what is assumed, which are decisions of this replica that the API server
does not show yet. So the order of the news does not matter, and a replica that starts anew comes to the same snapshot.
News count in the snapshot from the next `advance` on. `now_s` is always of one monotonic clock.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from sharepod.scheduler.placement.device_affinity import APART, WITH, DeviceAffinity
from sharepod.scheduler.placement.mix import Census
from sharepod.scheduler.placement.policy import DEFAULT, Policy
from sharepod.scheduler.placement.request import NODE_DEVICES_MAX
from sharepod.scheduler.preemption.victims import Rest, Running
from sharepod.scheduler.state.assumed import AssumedYields
from sharepod.scheduler.state.node_index import NodeIndex
from sharepod.scheduler.state.node_info import Devices, Names, Row, row_of, spec_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from sharepod.scheduler.placement.mix import Mix
    from sharepod.scheduler.placement.native import Snapshot
    from sharepod.scheduler.placement.request import NodeSpec
    from sharepod.scheduler.state.node import Node
    from sharepod.scheduler.state.pod import Pod
    from sharepod.scheduler.state.usage import NodeUse

ASSUMED_S: Final = 30.0
"""How long a choice counts while the pod is not seen bound."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """A choice that the API server does not show yet."""

    pod: Pod
    node: str
    devices: Names
    until_s: float
    """After this time the pod counts there no more, unless it is seen there."""


@dataclass(slots=True)
class _Facts:
    """What is known of one node."""

    node: Node | None = None
    use: NodeUse | None = None
    """None: its agent does not report."""
    pods: dict[str, Pod] = field(default_factory=dict)
    """By uid, the pods that are bound or released to it and have not ended."""
    assumed: dict[str, Assumed] = field(default_factory=dict)
    """By the pod's uid."""
    gone: set[str] = field(default_factory=set)
    """Uids of pods that have ended, while the agent still reports shares of them."""
    row: Row | None = None
    """None: the node is not in the snapshot, because it cannot take shares."""


class Cluster:
    """The view of the cluster. Not for several threads."""

    def __init__(self, policy: str = DEFAULT) -> None:
        """Begin with nothing known. Raises PlacementError for an unknown policy."""
        self._policy_name = policy
        self._facts: defaultdict[str, _Facts] = defaultdict(_Facts)
        self._pods: dict[str, Pod] = {}
        """By uid, all pods that have not ended."""
        self._assumed: dict[str, Assumed] = {}
        """By the pod's uid, in the order in which they were assumed: all last for the same time."""
        self._assumed_yields = AssumedYields()
        self._device_affinity = DeviceAffinity()
        self._census = Census()
        self._stranded: set[str] = set()
        """Uids of pods that were sent to a node and do not count there, because kube-scheduler does not bind them."""
        self._changed: set[str] | None = None
        """Uids of pods that have changed since the last call of `take_changed`; None: it was never called."""
        self._gone: list[Pod] = []
        """Members of gangs that have gone since the last call of `take_gone`, as they were last seen."""
        self._contended: set[str] = set()
        """Names of the nodes on which a share has waited for a device in the last minute."""
        self._dirty: set[str] = set()
        """Names of the nodes of which `advance` has to compute the row anew."""
        self.node_index = NodeIndex({})
        self.version = 0
        """Grows whenever an answer may have changed."""
        self.nodes_version = 0
        """Grows whenever a node of the API server has changed."""
        self.mix = self.expected()
        self.policy = Policy(policy, self.snapshot, self.mix)

    @property
    def snapshot(self) -> Snapshot:
        """Return the present snapshot; `advance` may replace it."""
        return self.node_index.snapshot

    # What the observer tells.

    def set_node(self, node: Node) -> None:
        """Take a node as the API server has it, new or changed."""
        self.nodes_version += self._facts[node.name].node != node
        self._facts[node.name].node = node
        self._dirty.add(node.name)

    def remove_node(self, name: str) -> None:
        """Note that the API server has a node no more."""
        self._facts[name].node = None
        self.nodes_version += 1
        self._dirty.add(name)

    def set_use(self, name: str, use: NodeUse | None) -> None:
        """Take what the agent of node `name` reports; None: it is silent, and its node gets no pods."""
        facts = self._facts[name]
        facts.use = use
        self._note_waits(name, use)
        facts.gone &= use.pod_uids() if use else set()  # of the others the agent has released the shares
        self._dirty.add(name)

    def measure(self, name: str, use: NodeUse) -> None:
        """Take a report of a node's agent in which only the numbers have changed. It counts at once."""
        facts = self._facts[name]
        facts.use = use
        self._note_waits(name, use)
        if name not in self._dirty and facts.row is not None:  # else `advance` computes the row, or there is none
            row = facts.row.measured(use)
            if row is not facts.row:
                facts.row = row
                self.version += 1
                self.node_index.put_strains(name, row)

    def _note_waits(self, name: str, use: NodeUse | None) -> None:
        """Note for `contended` whether a share has waited for a device of the node in the last minute."""
        if use and any(device.numbers.waited_1m_millipercent for device in use.devices):
            self._contended.add(name)
        else:
            self._contended.discard(name)

    def set_pod(self, pod: Pod) -> None:
        """Take a pod as the API server has it, new or changed. What it shows now is not assumed any more."""
        if pod.ended:
            self.remove_pod(pod.uid)
            return
        self._drop(self._pods.get(pod.uid))
        self._census.put(pod.request)
        self._device_affinity.put(pod)
        pod = self._assumed_yields.applied(pod)
        self._pods[pod.uid] = pod
        self._note_change(pod.uid)
        if pod.node:
            self._stranded.discard(pod.uid)
        if pod.place:
            self._facts[pod.place].pods[pod.uid] = pod
            self._dirty.add(pod.place)
            self.forget(pod.uid, but_on=pod.place)  # it is not where it was expected
            if pod.chosen:
                self.forget(pod.uid)  # its annotation names its devices

    def remove_pod(self, uid: str) -> None:
        """Note that the API server has a pod no more, or that the pod has ended. An unknown uid is no error."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._drop(pod)
            self._assumed_yields.drop(uid)
            self._stranded.discard(uid)
            self._note_change(uid)
            if pod.gang is not None and self._changed is not None:  # else no cycle has looked yet
                self._gone.append(pod)
            # The agent reports the pod's shares until it has released them. Until then the row leaves them out.
            facts = self._facts.get(pod.place)
            if facts is not None and facts.use is not None and uid in facts.use.pod_uids():
                facts.gone.add(uid)
        self.forget(uid)  # the pod may be assumed somewhere, even if it was not known

    def _drop(self, pod: Pod | None) -> None:
        """Take a pod, as it was known, out of all counts: it changes or has gone. None: it was not known."""
        if pod is None:
            return
        self._census.drop(pod.request)
        self._device_affinity.drop(pod)
        if pod.place:
            self._facts[pod.place].pods.pop(pod.uid, None)
            self._dirty.add(pod.place)

    def assume(self, pod: Pod, node: str, devices: Names, now_s: float) -> Assumed:
        """Count a pod on the node that was chosen for it, until it is seen there or elsewhere, or for ASSUMED_S.

        `devices`: of each share, the UUIDs of its devices. An earlier choice for the pod is forgotten.
        """
        self.forget(pod.uid)
        assumed = Assumed(pod, node, devices, now_s + ASSUMED_S)
        self._assumed[pod.uid] = assumed
        self._facts[node].assumed[pod.uid] = assumed
        self._dirty.add(node)
        self._note_change(pod.uid)
        return assumed

    def forget(self, uid: str, *, but_on: str = "") -> None:
        """Stop counting a pod on the node that was chosen for it, unless that is the node `but_on`."""
        assumed = self._assumed.get(uid)
        if assumed is not None and assumed.node != but_on:
            del self._assumed[uid]
            self._facts[assumed.node].assumed.pop(uid, None)
            self._dirty.add(assumed.node)
            self._note_change(uid)

    def is_stranded(self, uid: str) -> bool:
        """Tell whether `strand` was called for a pod that is not bound yet."""
        return uid in self._stranded

    def strand(self, pod: Pod) -> None:
        """Count a pod no more on the node to which it was sent, until it is bound there after all.

        The controller calls it for a pod that kube-scheduler does not bind.
        """
        self.forget(pod.uid)
        self._stranded.add(pod.uid)
        self._dirty.add(pod.place)
        self._note_change(pod.uid)

    def presume(self, uid: str, yields: str, now_s: float) -> None:
        """Count a known pod as yielding this way (Pod.yields), until it is seen to do so or ASSUMED_S have passed."""
        pod = self._pods[uid]
        if pod.yields != yields:
            self.set_pod(self._assumed_yields.put(pod, yields, now_s + ASSUMED_S))  # set_pod applies what is assumed

    # What follows from it.

    def advance(self, now_s: float) -> None:
        """Bring the snapshot up to what is known at this time; what was assumed for too long is dropped.

        To be called before a decision. If the snapshot has no place for a new node, or does not know its model, a new
        snapshot is made, with a new policy.
        """
        while self._assumed:  # in the order in which they were assumed
            first = next(iter(self._assumed.values()))
            if first.until_s > now_s:
                break
            self.forget(first.pod.uid)
        for uid, yields in self._assumed_yields.expire(now_s):
            self.set_pod(replace(self._pods[uid], yields=yields))
        if not self._dirty:
            return
        self.version += 1
        names, self._dirty = sorted(self._dirty), set()
        specs = {name: spec for name in names if (spec := self._spec(name)) is not None}
        has_place = self.node_index.have_place(specs)
        if not has_place:
            names = sorted(self._facts)
            self.node_index = NodeIndex({name: spec for name in names if (spec := self._spec(name)) is not None})
        for name in names:
            self._update_row(name)
        if has_place:
            self.policy.refresh()
        else:
            self.policy = Policy(self._policy_name, self.snapshot, self.mix)

    def renew(self, policy: Policy, mix: Mix) -> None:
        """Judge by another mix from now on. `policy`: made of that mix, for this snapshot."""
        self.policy, self.mix = policy, mix
        self.version += 1

    def expected(self) -> Mix:
        """Return the mix of all pods that are there, bound or waiting."""
        return self._census.expected()

    def node(self, name: str) -> Node | None:
        """Return a node as the API server has it; None: it has none of that name."""
        facts = self._facts.get(name)
        return facts.node if facts else None

    def names(self) -> list[str]:
        """Return the names of the API server's nodes that offer devices to pods, or that have an agent that reports."""
        return [
            name for name, facts in self._facts.items() if facts.node and (facts.use is not None or facts.node.units)
        ]

    def contended(self) -> list[str]:
        """Return the names of the nodes on which a share has waited for its device in the last minute."""
        return [name for name in sorted(self._contended) if name in self._facts and self._facts[name].node]

    def row(self, name: str) -> Row | None:
        """Return what is left of a node; None: it takes no shares."""
        facts = self._facts.get(name)
        return facts.row if facts else None

    def named(self, name: str, devices: Devices) -> Names:
        """Return, of each share, the UUIDs of devices given by their indices on a node; empty: it takes no shares."""
        row = self._facts[name].row
        return row.named(devices) if row else ()

    def use(self, name: str) -> NodeUse | None:
        """Return what a node's agent reports; None: it does not report."""
        facts = self._facts.get(name)
        return facts.use if facts else None

    def pod(self, uid: str) -> Pod | None:
        """Return a pod that has not ended; None: there is none with that uid."""
        return self._pods.get(uid)

    def yields(self, pod: Pod) -> str:
        """Return how a pod yields now (Pod.yields), with what is assumed; of an unknown pod, what `pod` itself says."""
        return self._pods.get(pod.uid, pod).yields

    def pods(self) -> Iterable[Pod]:
        """Return all pods that have not ended."""
        return self._pods.values()

    def take_changed(self) -> set[str]:
        """Return the uids of pods that have changed, come or gone since the last call; the first call returns all."""
        changed = set(self._pods) if self._changed is None else self._changed
        self._changed = set()
        return changed

    def take_gone(self) -> list[Pod]:
        """Return the members of gangs that have gone since the last call, as they were last seen."""
        gone, self._gone = self._gone, []
        return gone

    def changed(self) -> frozenset[str]:
        """Return the uids that `take_changed` would return."""
        return frozenset(self._pods if self._changed is None else self._changed)

    def _note_change(self, uid: str) -> None:
        """Note for `take_changed` that a pod has changed; before its first call that is not needed."""
        if self._changed is not None:
            self._changed.add(uid)

    def pods_on(self, name: str) -> Sequence[Pod]:
        """Return the pods that are bound or released to a node and have not ended."""
        facts = self._facts.get(name)
        return tuple(facts.pods.values()) if facts else ()

    def assumed(self, uid: str) -> Assumed | None:
        """Return where a pod is assumed to be; None: nothing is assumed of it."""
        return self._assumed.get(uid)

    def rest(self, pod: Pod, name: str) -> tuple[Rest, list[Running]] | None:
        """Return what is left of a node for a pod, and the pods that are there; None: the node takes no shares.

        The pods are those that are bound or released to it and have known devices. With these values the victim search
        (preemption/) tries which of them have to yield.
        """
        facts = self._facts.get(name)
        spec = self.node_index.spec(name)
        if facts is None or facts.row is None or spec is None:
            return None
        row, allowed = facts.row, self.allowed(pod, self.node_index.indices([name]))
        rest = Rest(spec, row.cpu_milli, row.memory_mib, row.free_milli, row.free_mib, int(allowed[0]))
        running = [
            Running(other.uid, other.request, row.places[other.uid], other.yields == "pause")
            for other in facts.pods.values()
            if other.uid in row.places
        ]
        return rest, running

    def allowed(self, pod: Pod, indices: NDArray[np.int32]) -> NDArray[np.uint16]:
        """Return for each of these nodes of the snapshot (`indices`) a bit for each device that the pod may have.

        These are the devices that take shares and that its device affinity and anti-affinity leave open.
        """
        masks = self.node_index.usable(indices)
        if pod.affinity:
            there = self._devices_of(self._device_affinity.uids(pod.namespace, WITH, pod.affinity), pod)
            if there:  # else the pod is the first of them: any device will do
                masks &= np.array([there.get(int(index), 0) for index in indices], dtype=np.uint16)
        if pod.anti_affinity:
            there = self._devices_of(self._device_affinity.uids(pod.namespace, APART, pod.anti_affinity), pod)
            masks &= np.array([~there.get(int(index), 0) & 0xFFFF for index in indices], dtype=np.uint16)
        return masks

    def _devices_of(self, uids: Iterable[str], but: Pod) -> dict[int, int]:
        """Return, by the index of a node, a bit for each device on which one of these pods counts, except `but`."""
        found: defaultdict[int, int] = defaultdict(int)
        for uid in uids:
            pod, assumed = self._pods[uid], self._assumed.get(uid)
            node = pod.place or (assumed.node if assumed else "")
            row = self.row(node) if node and uid != but.uid else None
            if row is not None:
                found[self.node_index.index(node)] |= row.bits_of(uid)
        return found

    # The snapshot.

    def _spec(self, name: str) -> NodeSpec | None:
        """Return a node as the snapshot has it, without its pods; None: it takes no shares, or is not known."""
        facts = self._facts[name]
        return spec_of(facts.node, facts.use) if facts.node and facts.use else None

    def _update_row(self, name: str) -> None:
        """Compute a node's row anew and put it in the snapshot; remove the node if it takes no shares."""
        facts, spec = self._facts[name], self._spec(name)
        facts.row = None
        if facts.node is not None and facts.use is not None and spec is not None:
            assumed = {uid: (item.pod, item.devices) for uid, item in facts.assumed.items()}
            gone = facts.gone | (self._stranded & facts.pods.keys())
            row = row_of(spec, facts.use, facts.pods.values(), assumed, gone, facts.node.units)
            devices = [device.facts for device in facts.use.devices[:NODE_DEVICES_MAX]]
            if self.node_index.put(name, spec, devices, row):
                facts.row = row
            return
        self.node_index.remove(name)
        if facts.node is None and facts.use is None and not facts.pods and not facts.assumed:
            del self._facts[name]
