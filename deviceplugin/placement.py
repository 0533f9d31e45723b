"""Which devices a share must have: its annotations, its pod's other containers, kubelet's pick, the operator's offer.

Where none of them says, the agent picks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sharepod.agent.share import DeviceAsk, Terms, bytes_text, percent_text
from sharepod.deviceplugin.agent import NoRoom
from sharepod.deviceplugin.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sharepod.deviceplugin.agent import Agent, NodeView
    from sharepod.deviceplugin.allocation import Allocation
    from sharepod.deviceplugin.follow import Follower
    from sharepod.deviceplugin.offer import Offer
    from sharepod.deviceplugin.pod import Pod
    from sharepod.deviceplugin.record import Record
    from sharepod.deviceplugin.terms import PodTerms
    from sharepod.deviceplugin.unit import UnitId, Units

log = logging.getLogger("sharepod.deviceplugin")


class Placement:
    """Knows who is where; registers nothing."""

    def __init__(
        self,
        record: Record,
        follower: Follower,
        agent: Agent,
        units: Callable[[], Units],
        offer: Offer,
        *,
        late: bool,
    ) -> None:
        self.offer = offer
        self._record = record
        self._follower = follower
        self._agent = agent
        self._units = units
        self._late = late

    async def choices(
        self, allocation: Allocation, terms: PodTerms, pod: Pod, node: NodeView
    ) -> Sequence[Sequence[str]]:
        """Return the devices that the share may have, the best first; empty ones: any, the agent picks.

        Raises PluginError, NoRoom among them.
        """
        if not self._late:
            return [await self._picked_early(allocation, terms, pod)]
        if terms.chosen:
            for uuid in terms.chosen:
                if not node.all_offered and ((device := node.device(uuid)) is None or not device.healthy):
                    raise PluginError(f"device {uuid}, which the scheduler chose, is not offered on this node")
            return [terms.chosen]
        if terms.same_device:
            return [self._one_device(allocation, terms, pod, node)]
        return [()] if node.all_offered else self._offered(terms, node)

    def _offered(self, terms: PodTerms, node: NodeView) -> Sequence[Sequence[str]]:
        """Return what the agent would pick if it knew only the devices that are offered: the fullest that fits."""
        request = terms.request_millipercent
        fitting = [device for device in node.devices if device.healthy and device.free_millipercent >= request]
        fitting.sort(key=lambda device: (device.free_millipercent, device.index))
        if len(fitting) < terms.devices:
            raise NoRoom(
                f"request {request // 1000} % of {terms.devices} devices fits on {len(fitting)} of the "
                f"{len(node.devices)} that pods may have on this node: ask for less, or wait until others end"
            )
        uuids = [device.uuid for device in fitting]
        # Memory may not fit where time does: the next one may do.
        return [uuids[first : first + terms.devices] for first in range(len(uuids) - terms.devices + 1)]

    def _one_device(self, allocation: Allocation, terms: PodTerms, pod: Pod, node: NodeView) -> Sequence[str]:
        """Return the device that the containers of a pod are on together. Raises NoRoom."""
        for item in self._record.all():
            other = item.binding
            if item.id != allocation.id and other and other.pod_uid == pod.uid and item.devices:
                return item.devices[:1]
        together = [name for name, units in pod.units if self._follower.read_terms(pod, name, units).same_device]
        needed = max(sum(units for name, units in pod.units if name in together) * 1000, terms.request_millipercent)
        fitting = [device for device in node.devices if device.healthy and device.free_millipercent >= needed]
        if not fitting:
            raise NoRoom(
                f"{needed // 1000} % for containers {', '.join(together)} of one pod fit on no device of this node: "
                "ask for less, or without same-device"
            )
        return (min(fitting, key=lambda device: (device.free_millipercent, device.index)).uuid,)

    async def _picked_early(self, allocation: Allocation, terms: PodTerms, pod: Pod) -> Sequence[str]:
        """Return the devices of the units, which kubelet picked without knowing the annotations: do they agree?"""
        devices = self.devices_of(allocation.units)
        if len(devices) != terms.devices:
            place = "one device" if len(devices) == 1 else f"{len(devices)} devices"
            raise PluginError(
                f"kubelet picked {len(allocation.units)} units of {place}, and sharepod.io/devices asks for "
                f"{terms.devices} devices: this node's runtime has no CDI, so it gives a part of one device, or whole "
                "devices for multiples of 100",
                retriable=False,
            )
        if terms.chosen and set(terms.chosen) != set(devices):
            chosen, picked = ",".join(terms.chosen), ",".join(devices)
            log.warning("kubelet picked other devices", extra={"pod": pod.name, "chosen": chosen, "picked": picked})
        if terms.same_device:
            await self._check_together(allocation, devices[0], pod)
        return devices

    def check_memory(self, allocation: Allocation, terms: PodTerms, node: NodeView) -> None:
        """Raise PluginError for memory that nobody has looked for, where kubelet picks the device.

        Kubelet counts units alone. A cap in proportion to them fits wherever they do; one above that would take what
        goes with the units of others, whose pods then do not start. The scheduler counts memory as well.
        """
        if self._late or terms.memory_limit_bytes is None:
            return
        if terms.chosen and set(terms.chosen) == set(self.devices_of(allocation.units)):
            return
        whole = Terms(terms.request_millipercent, terms.limit_millipercent, 0)
        for uuid in self.devices_of(allocation.units):
            device = node.device(uuid)
            total_bytes = device.memory_total_bytes if device else 0
            fair_bytes = DeviceAsk(uuid, whole, memory_in_proportion=True).terms_on(total_bytes).memory_limit_bytes
            if device and 0 < fair_bytes < terms.memory_limit_bytes:
                raise PluginError(
                    f"sharepod.io/memory is {bytes_text(terms.memory_limit_bytes)} on device {device.index}, above "
                    f"{bytes_text(fair_bytes)}, which goes with {percent_text(terms.request_millipercent)} of it: this "
                    "node's runtime has no CDI, so kubelet picks the device, and knows nothing of memory: ask for more "
                    "units or for less memory, or have SharePod's scheduler choose the device",
                    retriable=False,
                )

    async def _check_together(self, allocation: Allocation, device: str, pod: Pod) -> None:
        """Raise PluginError when another container that is to be on the same device is on another one."""
        for item in self._record.all():
            other = item.binding
            if other is None or other.pod_uid != pod.uid or item.id == allocation.id or device in item.devices:
                continue
            if item.devices and self._follower.read_terms(pod, other.container, len(item.units)).same_device:
                node = await self._agent.node()
                indices = [
                    found.index for uuid in (item.devices[0], device) if (found := node.device(uuid)) is not None
                ]
                raise PluginError(
                    f"sharepod.io/same-device cannot be kept: container {other.container} is on another device than "
                    f"the one that kubelet picked ({' and '.join(map(str, indices))}), as this node has no CDI: "
                    "delete the pod, or leave same-device out",
                    retriable=False,
                )

    def devices_of(self, units: frozenset[UnitId]) -> tuple[str, ...]:
        """Return the devices of units that are bound to them. Raises PluginError when they cannot be one share's."""
        known = self._units()
        found: dict[str, int] = {}
        for unit in units:
            device = known.device_of(unit)
            if device is None:
                raise PluginError(f"unit {unit} belongs to no device of this node: its device is gone")
            found[device] = found.get(device, 0) + 1
        if len(found) > 1 and any(count != 100 for count in found.values()):
            raise PluginError(
                f"{len(units)} % would lie on {len(found)} devices of this node, none has so much left: ask for less, "
                "or for whole devices (multiples of 100)",
                retriable=False,
            )
        return tuple(sorted(found))
