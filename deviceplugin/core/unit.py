"""The units of a node: how many ids it has, which of them are healthy, which a container should get. Pure values.

Kubelet counts ids and knows nothing of devices. An id belongs to the node, not to a device: the device of a container
is picked when the container starts. So any ids will do for it.

Spare units are units beyond 100 per device. Kubelet and kube-scheduler count a pod's units for as long as the pod is
there, also while it yields: without spare units they would let no other pod in. The agent knows what is really left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

UnitId = NewType("UnitId", str)
"""Kubelet's name for one device of a device plugin: at most 63 characters."""

RESOURCE: Final = "sharepod.io/gpu"
UNITS_PER_DEVICE: Final = 100
MILLIPERCENT_PER_UNIT: Final = 1000
SPARE_PERCENT_MAX: Final = 400
UNITS_MAX: Final = 40_000
"""The limit for one node. Kubelet reads messages of at most 4 MiB: this many units stay far below that."""
NOT_BOUND: Final = ""
"""Where units are listed by device: the key of units without a device yet."""


class Units:
    """The units of a node's devices."""

    def __init__(self, devices: Iterable[tuple[str, bool]], *, spare_percent: int = 0) -> None:
        """Take (UUID, healthy) of each device, and how many spare units each device should have."""
        self.devices: Final = tuple(devices)
        """(UUID, healthy) of each, in the node's order."""
        spare_max = UNITS_MAX // max(1, len(self.devices)) - UNITS_PER_DEVICE
        self.spare: Final = max(0, min(spare_percent, spare_max))
        """Spare units of each device: fewer than asked for if the node would have more than UNITS_MAX units."""
        self._per_device = UNITS_PER_DEVICE + self.spare

    def all(self, taken: Mapping[str, Collection[UnitId]]) -> tuple[tuple[UnitId, bool], ...]:
        """Return (id, healthy) of every unit: 100 per device, and the spare ones.

        `taken`: the units that shares hold, by the UUID of their device or NOT_BOUND. The units of a share on several
        devices are spread over those devices.
        """
        listed = self._ids(taken)
        unhealthy = self._unhealthy(listed, taken)
        return tuple((unit, unit not in unhealthy) for unit in listed)

    def _ids(self, taken: Mapping[str, Collection[UnitId]]) -> list[UnitId]:
        """Return the ids of the node: those that shares on its devices hold, and the lowest ones that no share holds.

        Units of shares on a device that is no longer offered are left out. Kubelet would count them as used, and too
        few would be left for others.
        """
        known = {uuid for uuid, _ in self.devices} | {NOT_BOUND}
        total = self._per_device * len(self.devices)
        kept = {unit for uuid, units in taken.items() if uuid in known for unit in units}
        listed = sorted(kept, key=_order)[:total]
        all_taken = {unit for units in taken.values() for unit in units}
        number = 0
        while len(listed) < total:
            unit = UnitId(f"u{number:04d}")
            if unit not in all_taken:
                listed.append(unit)
            number += 1
        return sorted(listed, key=_order)

    def _unhealthy(self, listed: list[UnitId], taken: Mapping[str, Collection[UnitId]]) -> set[UnitId]:
        """Return the units to report as unhealthy, as many as the unhealthy devices have.

        They are those that shares on these devices hold, then free ones, then any.
        """
        unhealthy = [uuid for uuid, healthy in self.devices if not healthy]
        if not unhealthy:
            return set()
        count = self._per_device * len(unhealthy)
        sick = {unit for uuid in unhealthy for unit in taken.get(uuid, ())}
        well = {unit for uuid, units in taken.items() if uuid not in unhealthy for unit in units}
        # 0: held on unhealthy devices alone; 1: on healthy ones, too; 2: free; 3: held on healthy ones alone.
        ranks = {unit: 0 if unit in sick - well else 1 if unit in sick else 3 if unit in well else 2 for unit in listed}
        # Within a rank the highest come first: `pack` gives out the lowest ones, so the highest are rarely in use.
        listed = listed[::-1]
        return set(sorted(listed, key=lambda unit: ranks[unit])[:count])


def pack(available: Collection[UnitId], must: Collection[UnitId], size: int) -> list[UnitId]:
    """Choose `size` of the available units: all of `must`, then the lowest. Return fewer if there are fewer."""
    chosen = sorted(set(must), key=_order)
    free = sorted(set(available) - set(chosen), key=_order)
    return chosen + free[: max(0, size - len(chosen))]


def _order(unit: UnitId) -> tuple[int, str]:
    """Return the key by which ids are sorted by their number: u9999 comes before u10000."""
    return len(unit), unit
