"""Computes a node's row of the snapshot: what is left of the node, and which pods are where. Pure.

A share counts on the devices on which the agent reports it. Until the agent does so, it counts on the devices that were
chosen for it: in the annotation of its pod, or by what is assumed. If none were chosen, it counts where the agent would
put it: on the fullest device that has room. The annotation of the pod says whether a share yields its time. It does not
matter whether the agent has paused or resumed it yet: the row says what is promised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import MIB, WHOLE_MILLIPERCENT
from sharepod.scheduler.placement.request import DEVICE_MILLI, NODE_DEVICES_MAX, NodeSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sharepod.scheduler.placement.request import ShareRequest
    from sharepod.scheduler.state.node import Node
    from sharepod.scheduler.state.pod import Pod
    from sharepod.scheduler.state.usage import DeviceFacts, DeviceUse, NodeUse, ShareUse

MILLIPERCENT_PER_MILLI: Final = WHOLE_MILLIPERCENT // DEVICE_MILLI
GONE: Final = "gone"
"""The value of Pod.yields while preemption tries on the view what evicting the pod would free (room.py)."""

Devices = tuple[tuple[int, ...], ...]
"""Of each share of a pod, the indices of its devices."""
Names = tuple[tuple[str, ...], ...]
"""Of each share of a pod, the UUIDs of its devices."""


@dataclass(frozen=True, slots=True)
class Strain:
    """How much a device is used, in milli of it."""

    busy_milli: int
    """What all shares there used: the highest of the averages over the last second, minute and quarter of an hour."""
    waited_milli: int
    """Time that shares waited there in the last minute, all of them together."""
    latency_milli: int
    """What shares of class latency are promised."""
    limits_milli: int
    """What all shares together may use at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is left of a node. A number is below 0 where more is promised than there is."""

    cpu_milli: int
    memory_mib: int
    uuids: tuple[str, ...]
    device_mib: int
    """Memory of each device."""
    free_milli: tuple[int, ...]
    free_mib: tuple[int, ...]
    usable: int
    """A bit for each device that takes shares: it is healthy and offered."""
    strains: tuple[Strain, ...]
    places: Mapping[str, Devices]
    """By the pod's uid."""
    presumed: frozenset[str]
    """Uids of pods without known devices: they count where the agent would put them."""
    homeless: frozenset[str]
    """Uids of the presumed pods that fit on no device: they count with processors and memory only."""
    units: int = 0
    """Percents of devices that kubelet has left to count: a paused pod holds its percents like any other."""

    def bits_of(self, uid: str) -> int:
        """Return a bit for each device that a pod has on the node; 0: it has none, or its devices are not known."""
        return sum(1 << device for device in {device for share in self.places.get(uid, ()) for device in share})

    def named(self, devices: Devices) -> Names:
        """Return the UUIDs of devices that are given by their indices, of each share."""
        return tuple(tuple(self.uuids[index] for index in share) for share in devices)

    def measured(self, use: NodeUse) -> Row:
        """Return the row with the busy and waited time that the agent has newly measured on its devices.

        What is promised there does not change. If no strain has changed, this row itself is returned.
        """
        strains = tuple(
            _strain(device, strain.latency_milli, strain.limits_milli)
            for strain, device in zip(self.strains, use.devices, strict=False)
        )
        return self if strains == self.strains else replace(self, strains=strains)


class _Tally:
    """What is left of each device of a node, and what is promised there, while `row_of` takes one share after another.

    Lists have an entry for each device. What is left may fall below 0.
    """

    def __init__(self, device_mib: int, devices: int) -> None:
        self._device_mib = device_mib
        self.free_milli, self.free_mib = [DEVICE_MILLI] * devices, [device_mib] * devices
        self.latency_milli, self.limits_milli = [0] * devices, [0] * devices

    def take(self, share: ShareRequest, devices: Iterable[int], yields: str) -> None:
        """Take a share that the agent does not report yet from the devices (indices) where it is expected.

        `yields`: how its pod makes room (Pod.yields): limit, pause or empty.
        """
        mib = share.mib_of(self._device_mib)
        limit = share.milli if share.limit_milli is None else share.limit_milli
        for device in devices:
            self._subtract(device, share.milli, mib, limit, share.share_class, yields)

    def take_reported(self, share: ShareUse, device: int, yields: str) -> None:
        """Take a share from the device (an index) on which the agent reports it; `yields`: as in `take`."""
        terms = share.terms
        mib = -(-terms.memory_limit_bytes // MIB)  # rounded up
        milli = terms.request_millipercent // MILLIPERCENT_PER_MILLI
        limit = terms.limit_millipercent // MILLIPERCENT_PER_MILLI
        self._subtract(device, milli, mib, limit, terms.share_class.name.lower(), yields)

    def put(self, pod: Pod, found: list[tuple[int, ...]], missing: Sequence[int], usable: int) -> bool:
        """Take a pod's missing shares where the agent would put them: on the fullest devices that have room.

        `missing`: their indices. `found`: the devices of each share; those of the missing ones are filled in. `usable`:
        a bit for each device that may be used. Return False if there is no room: then nothing is taken, and `found` is
        of no use.
        """
        shares = pod.request.shares
        lists = self.free_milli, self.free_mib, self.latency_milli, self.limits_milli
        before = [list(one) for one in lists]
        for index in missing:
            share = shares[index]
            # A paused pod needs only memory.
            milli, mib = 0 if pod.yields == "pause" else share.milli, share.mib_of(self._device_mib)
            fitting = [
                device
                for device, free in enumerate(self.free_milli)
                if usable >> device & 1 and free >= milli and self.free_mib[device] >= mib
            ]
            if share.beside is not None:
                fitting = [device for device in fitting if device in found[share.beside]]
            fitting.sort(key=lambda device: (self.free_milli[device], device))
            if len(fitting) < share.devices:
                self.free_milli, self.free_mib, self.latency_milli, self.limits_milli = before
                return False
            found[index] = tuple(sorted(fitting[: share.devices]))
            self.take(share, found[index], pod.yields)
        return True

    def _subtract(self, device: int, milli: int, mib: int, limit_milli: int, share_class: str, yields: str) -> None:
        """Subtract one share from what is left of one device. A paused share takes only memory."""
        self.free_mib[device] -= mib
        if yields == "pause":  # its time is promised to others
            return
        self.free_milli[device] -= milli
        self.limits_milli[device] += milli if yields else limit_milli  # if it yields by "limit", to its request
        if share_class == "latency":
            self.latency_milli[device] += milli


def spec_of(node: Node, use: NodeUse) -> NodeSpec:
    """Return a node as the snapshot has it: each device has the first one's model and the least memory of all."""
    devices = use.devices[:NODE_DEVICES_MAX]
    model = devices[0].facts.model if devices else ""
    mib = min((device.facts.memory_total_bytes for device in devices), default=0) // MIB
    return NodeSpec(node.name, node.cpu_milli, node.memory_mib, len(devices), model, mib)


def links_of(devices: Sequence[DeviceFacts]) -> list[int]:
    """Return for each device a bit for each device that it has a fast link to, by their positions in `devices`.

    A link counts if both of its ends report it.
    """
    positions = {device.index: position for position, device in enumerate(devices)}
    peers = [{positions[peer] for peer in device.nvlink_peers if peer in positions} for device in devices]
    return [
        sum(1 << other for other in own_peers if other != position and position in peers[other])
        for position, own_peers in enumerate(peers)
    ]


def row_of(
    spec: NodeSpec,
    use: NodeUse,
    pods: Collection[Pod],
    assumed: Mapping[str, tuple[Pod, Names]],
    gone: Collection[str] = (),
    units: int = 0,
) -> Row:
    """Return a node's row. `use`: what its agent reports. `pods`: those that are bound or released to the node.

    `assumed`: by uid, pods that were sent there, with their devices; the API server does not show all of that yet. Pods
    that are `gone` (uids) count no more, even if the agent still reports their shares: a pod that comes in their place
    waits on the node until the agent has released them. `units`: percents of devices that kubelet counts, taken or not.
    """
    devices = use.devices[: spec.devices]
    uuids = tuple(device.facts.uuid for device in devices)
    positions = {uuid: index for index, uuid in enumerate(uuids)}
    tally = _Tally(spec.device_mib, len(devices))
    reported: dict[tuple[str, str], list[int]] = {}  # by pod and container: the devices of its share
    yields = {pod.uid: pod.yields for pod in pods}
    gone = {*gone, *(uid for uid, how in yields.items() if how == GONE)}
    pods = [pod for pod in pods if pod.uid not in gone]
    # First the shares that the agent reports.
    for index, device in enumerate(devices):
        for share in device.shares:
            if share.terms.pod_uid in gone:
                continue
            # Of a pod that the API server does not show only the agent knows whether it yields.
            tally.take_reported(share, index, yields.get(share.terms.pod_uid, "pause" if share.terms.yielding else ""))
            if share.terms.pod_uid:
                reported.setdefault((share.terms.pod_uid, share.terms.container), []).append(index)
    shown = {pod.uid for pod in pods}
    all_pods = [*pods, *(pod for uid, (pod, _) in assumed.items() if uid not in shown)]
    usable = sum(1 << index for index, device in enumerate(devices) if device.facts.healthy and device.facts.offered)
    places: dict[str, Devices] = {}
    unplaced: list[tuple[Pod, list[tuple[int, ...]], list[int]]] = []
    # Then those that it does not report yet, on the devices that were chosen for them.
    for pod in sorted(all_pods, key=lambda item: (item.created, item.uid)):
        if not pod.request.shares:
            continue
        expected = assumed[pod.uid][1] if pod.uid in assumed else ()
        chosen = _positions(pod.chosen, positions) or _positions(expected, positions)
        found, missing = _known_devices(pod, reported, chosen)
        if missing and not chosen:
            unplaced.append((pod, found, missing))
            continue
        for index in missing:
            tally.take(pod.request.shares[index], found[index], pod.yields)
        places[pod.uid] = tuple(found)
    homeless = set()
    # At last those for which no devices were chosen.
    for pod, found, missing in unplaced:
        if not tally.put(pod, found, missing, usable & ~_closed_to(pod, all_pods, places)):
            homeless.add(pod.uid)
        else:
            places[pod.uid] = tuple(found)
    return Row(
        cpu_milli=spec.cpu_milli - sum(pod.request.cpu_milli for pod in all_pods),
        memory_mib=spec.memory_mib - sum(pod.request.memory_mib for pod in all_pods),
        uuids=uuids,
        device_mib=spec.device_mib,
        free_milli=tuple(tally.free_milli),
        free_mib=tuple(tally.free_mib),
        usable=usable,
        strains=tuple(map(_strain, devices, tally.latency_milli, tally.limits_milli)),
        places=places,
        presumed=frozenset(pod.uid for pod, _, _ in unplaced),
        homeless=frozenset(homeless),
        units=units - sum(pod.units for pod in all_pods),
    )


def _strain(device: DeviceUse, latency_milli: int, limits_milli: int) -> Strain:
    """Return the strain on a device: what the agent measured there, and the promises as in Strain."""
    numbers = device.numbers
    busy = max(numbers.used_1s_millipercent, numbers.used_1m_millipercent, numbers.used_15m_millipercent)
    waited = numbers.waited_1m_millipercent
    return Strain(busy // MILLIPERCENT_PER_MILLI, waited // MILLIPERCENT_PER_MILLI, latency_milli, limits_milli)


def _positions(names: Names, positions: Mapping[str, int]) -> Devices:
    """Return the indices of devices (`positions`) that are given by their UUIDs; empty: one is not on this node."""
    if not all(name in positions for share in names for name in share):
        return ()
    return tuple(tuple(sorted(positions[name] for name in share)) for share in names)


def _closed_to(pod: Pod, others: Iterable[Pod], places: Mapping[str, Devices]) -> int:
    """Return a bit for each device of this node that a pod's anti-affinity closes to it: a pod with its word is there.

    `others`: the pods of the node. `places`: the known devices of these, by uid.
    """
    bits = 0
    for other in others if pod.anti_affinity else ():
        if (other.namespace, other.anti_affinity) == (pod.namespace, pod.anti_affinity) and other.uid != pod.uid:
            for share in places.get(other.uid, ()):
                bits |= sum(1 << device for device in share)
    return bits


def _known_devices(
    pod: Pod, reported: Mapping[tuple[str, str], list[int]], chosen: Devices
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the devices of each share of a pod, and the indices of the shares that the agent does not report yet.

    `reported`: the devices that the agent reports, by pod and container. `chosen`: of each share, its devices while it
    is not reported; empty: they are not known, and a share that is not reported gets none here. An init container has
    the share of the container that gets its units (Pod.early).
    """
    containers: list[list[str]] = [[name] for name in pod.containers]
    for name, index in pod.early:
        containers[index].append(name)
    found: list[tuple[int, ...]] = []
    missing: list[int] = []
    for index, names in enumerate(containers):
        devices = next((reported[pod.uid, name] for name in names if (pod.uid, name) in reported), None)
        if devices is None:
            missing.append(index)
        found.append(tuple(devices) if devices is not None else chosen[index] if chosen else ())
    return found, missing
