"""The devices that pods may have shares of: those that the operator names, less those that NVIDIA's plugin gives out.

NVIDIA's device plugin may serve other GPUs of the node. Its GPUs are known by the ids that it has given kubelet. A GPU
that both plugins offer could go to metered pods and at once to a pod that expects the whole GPU: so this plugin stops
giving it out. Pure values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection

    from sharepod.deviceplugin.core.agent import NodeView

RIVAL_DOMAIN: Final = "nvidia.com/"
"""How names of NVIDIA's resources begin: nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb."""
RIVAL_REASON: Final = "NVIDIA's device plugin gives it out as well: name the devices of each with `offer`"
CLEAR_S: Final = 60.0
"""How long a device stays excluded after it was last seen in NVIDIA's plugin: a plugin that restarts, for example with
kubelet, lists nothing for a moment."""


class DeviceFilter:
    """Which devices of the node are offered."""

    def __init__(self, listed: Collection[str] = ()) -> None:
        """Take the UUIDs that the operator lists; none: all devices are offered."""
        self._listed: Final = frozenset(listed)
        self._rival_seen_s: dict[str, float] = {}
        """When each rival was last seen in NVIDIA's plugin, by UUID."""

    @property
    def rivals(self) -> frozenset[str]:
        """UUIDs of the devices that NVIDIA's plugin gives out as well."""
        return frozenset(self._rival_seen_s)

    def observe(self, node: NodeView, ids: Collection[str], now_s: float) -> frozenset[str]:
        """Take the ids that kubelet has from NVIDIA's plugin; return the offered devices that are newly among them.

        A device that has not been among them for CLEAR_S is no rival any more. `now_s` never goes back.
        """
        offered = [device for device in node.devices if not self._listed or device.uuid in self._listed]
        given = {_uuid_or_index(text) for text in ids}
        both = frozenset(device.uuid for device in offered if {device.uuid, str(device.index)} & given)
        fresh = both - self._rival_seen_s.keys()
        for uuid in both:
            self._rival_seen_s[uuid] = now_s
        self._rival_seen_s = {uuid: at for uuid, at in self._rival_seen_s.items() if now_s - at < CLEAR_S}
        return fresh

    def seen(self, node: NodeView) -> NodeView:
        """Return the node as pods may use it: only the offered devices, and the `rivals` among them as unhealthy."""
        devices = tuple(
            _unhealthy(device) if device.uuid in self._rival_seen_s else device
            for device in node.devices
            if not self._listed or device.uuid in self._listed
        )
        return replace(node, devices=devices, all_offered=devices == node.devices)


def _unhealthy(device: pb.Device) -> pb.Device:
    """Return a copy of a rival, marked as unhealthy."""
    copy = pb.Device()
    copy.CopyFrom(device)
    copy.healthy, copy.health_reason = False, RIVAL_REASON
    return copy


def _uuid_or_index(text: str) -> str:
    """Return the UUID or index in an id of NVIDIA's plugin. With time-slicing the id ends in `::` and a number."""
    return text.partition("::")[0]
