"""Which devices a share must have: its annotations, its pod's other containers, the operator's offer.

Where none of them says, the agent picks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod.deviceplugin.core.agent import NoRoom, free_millipercent
from sharepod.deviceplugin.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.deviceplugin.core.agent import NodeView
    from sharepod.deviceplugin.core.allocation import Allocation
    from sharepod.deviceplugin.core.allocation_table import Record
    from sharepod.deviceplugin.core.device_filter import Offer
    from sharepod.deviceplugin.core.terms import PodTerms
    from sharepod.deviceplugin.reconcile.annotation_reconciler import Follower
    from sharepod.kube.pod import Pod


class Placement:
    """Knows who is where; registers nothing."""

    def __init__(self, record: Record, follower: Follower, offer: Offer) -> None:
        self.offer = offer
        self._record = record
        self._follower = follower

    def choices(self, allocation: Allocation, terms: PodTerms, pod: Pod, node: NodeView) -> Sequence[Sequence[str]]:
        """Return the devices that the share may have, the best first; empty ones: any, the agent picks.

        Raises PluginError, NoRoom among them.
        """
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
        fitting = [device for device in node.devices if device.healthy and free_millipercent(device) >= request]
        fitting.sort(key=lambda device: (free_millipercent(device), device.index))
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
        fitting = [device for device in node.devices if device.healthy and free_millipercent(device) >= needed]
        if not fitting:
            raise NoRoom(
                f"{needed // 1000} % for containers {', '.join(together)} of one pod fit on no device of this node: "
                "ask for less, or without same-device"
            )
        return (min(fitting, key=lambda device: (free_millipercent(device), device.index)).uuid,)
