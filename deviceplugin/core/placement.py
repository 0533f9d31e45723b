"""Decides which devices a share must have, by its annotations, its pod's other containers and the operator's offer.

Where none of them decides, the agent picks the devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod.deviceplugin.core.agent import NoRoom, free_millipercent
from sharepod.deviceplugin.core.unit import MILLIPERCENT_PER_UNIT
from sharepod.deviceplugin.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.deviceplugin.core.agent import NodeView
    from sharepod.deviceplugin.core.allocation import Allocation
    from sharepod.deviceplugin.core.allocation_table import Record
    from sharepod.deviceplugin.core.device_filter import DeviceFilter
    from sharepod.deviceplugin.core.terms import PodTerms
    from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
    from sharepod.kube.pod import Pod


class Placement:
    """Chooses the devices of shares. It registers nothing."""

    def __init__(self, record: Record, reconciler: AnnotationReconciler, device_filter: DeviceFilter) -> None:
        """`record` tells the devices of a pod's other containers, and `reconciler` their terms."""
        self.device_filter = device_filter
        self._record = record
        self._reconciler = reconciler

    def choices(self, allocation: Allocation, terms: PodTerms, pod: Pod, node: NodeView) -> Sequence[Sequence[str]]:
        """Return the choices for the allocation's share, best first. A choice is the UUIDs of all its devices.

        An empty choice leaves the devices to the agent. `node` is the node as `DeviceFilter.seen` returns it. Raises
        PluginError if a device that the scheduler chose is not offered, and NoRoom if no choice has enough free time.
        """
        if terms.chosen:
            for uuid in terms.chosen:
                # If all devices are offered, the agent itself checks the choice.
                if not node.all_offered and ((device := node.device(uuid)) is None or not device.healthy):
                    raise PluginError(f"device {uuid}, which the scheduler chose, is not offered on this node")
            return [terms.chosen]
        if terms.same_device:
            return [self._one_device(allocation, terms, pod, node)]
        return [()] if node.all_offered else self._offered_choices(terms, node)

    def _offered_choices(self, terms: PodTerms, node: NodeView) -> Sequence[Sequence[str]]:
        """Return choices among the offered devices. The devices with the least free time that suffices come first.

        A choice takes devices that are neighbours in this order. Raises NoRoom.
        """
        request = terms.request_millipercent
        fitting = [device for device in node.devices if device.healthy and free_millipercent(device) >= request]
        fitting.sort(key=lambda device: (free_millipercent(device), device.index))
        if len(fitting) < terms.devices:
            raise NoRoom(
                f"request {request // MILLIPERCENT_PER_UNIT} % of {terms.devices} devices fits on {len(fitting)} of "
                f"the {len(node.devices)} that pods may have on this node: ask for less, or wait until others end"
            )
        uuids = [device.uuid for device in fitting]
        # A device with enough time may lack the memory: then the caller tries the next choice.
        return [uuids[first : first + terms.devices] for first in range(len(uuids) - terms.devices + 1)]

    def _one_device(self, allocation: Allocation, terms: PodTerms, pod: Pod, node: NodeView) -> Sequence[str]:
        """Return the device for the containers of a pod that set same-device, as a choice of one. Raises NoRoom.

        If one of these containers has a device already, that is it. Else it is the device with the least free time
        that has room for all of them.
        """

        def joins(container: str, units: int) -> bool:
            """Tell whether a container of this pod, with that many units, sets same-device. Raises PluginError."""
            return self._reconciler.read_terms(pod, container, units).same_device

        for item in self._record.all():
            other = item.binding
            if item.id == allocation.id or other is None or other.pod_uid != pod.uid:
                continue
            if item.devices and joins(other.container, len(item.units)):
                return item.devices[:1]
        together = [name for name, units in pod.units if joins(name, units)]
        # `terms` may be an init container's, which is not in `pod.units`: it may ask for more than `together`.
        units = sum(units for name, units in pod.units if name in together)
        needed = max(units * MILLIPERCENT_PER_UNIT, terms.request_millipercent)
        fitting = [device for device in node.devices if device.healthy and free_millipercent(device) >= needed]
        if not fitting:
            raise NoRoom(
                f"{needed // MILLIPERCENT_PER_UNIT} % for containers {', '.join(together)} of one pod fit on no device "
                "of this node: ask for less, or without same-device"
            )
        return (min(fitting, key=lambda device: (free_millipercent(device), device.index)).uuid,)
