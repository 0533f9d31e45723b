"""The ids of units: which device they are of, which of them are healthy, which a container should get. Pure values.

Kubelet counts ids and knows nothing of devices. Bound early, an id names its device for good, so that a device that is
lost or added changes no other device's ids. Bound late, the node has 100 ids per device, and any of them will do.

Spare units are more than a device has time for. Kubelet and kube-scheduler count a pod's units for as long as it is
there: without spare ones they let no other pod in when it yields. How much of a device is left, the agent knows.
"""

from __future__ import annotations

import hashlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

UnitId = NewType("UnitId", str)
"""What kubelet calls a device: at most 63 characters."""

RESOURCE: Final = "sharepod.io/gpu"
UNITS_PER_DEVICE: Final = 100
SPARE_PERCENT_MAX: Final = 400
UNITS_MAX: Final = 40_000
"""Of a node. With ids of 63 characters and memory nodes kubelet's 4 MiB hold 49,000: more are not spared."""
NOT_BOUND: Final = ""
"""The key of units whose device is not chosen yet, where units are told by device."""

_DIGITS: Final = (8, 32, 60)
"""How many digits name a device: the fewest that tell it apart, of some; with 60 an id has kubelet's 63 characters."""
_DIGITS_OF_SPARE: Final = 59
"""At most, of units above 99: they have three digits of their own."""


class Units:
    """The units of a node's devices."""

    def __init__(self, devices: Iterable[tuple[str, bool]], *, late: bool, spare_percent: int = 0) -> None:
        self.devices: Final = tuple(devices)
        """(UUID, healthy) of each, in the node's order."""
        self.late: Final = late
        """A unit's device is chosen when its container starts."""
        most = UNITS_MAX // max(1, len(self.devices)) - UNITS_PER_DEVICE
        self.spare: Final = max(0, min(spare_percent, most))
        """Units of each device beyond 100."""
        self._per_device = UNITS_PER_DEVICE + self.spare
        self._prefixes = _prefixes([uuid for uuid, _ in self.devices])
        self._device_of = {prefix: uuid for uuid, prefix in self._prefixes.items()}
        self._device_of_spare = {prefix[:_DIGITS_OF_SPARE]: uuid for uuid, prefix in self._prefixes.items()}

    def all(self, taken: Mapping[str, Collection[UnitId]]) -> tuple[tuple[UnitId, bool], ...]:
        """Return (id, healthy) of every unit: 100 per device, and the spare ones.

        Args:
            taken: Bound late, the units that shares hold, by the UUID of their device or NOT_BOUND; those of a share on
                several devices spread over them. Bound early it is not looked at.
        """
        if not self.late:
            return tuple((unit, healthy) for uuid, healthy in self.devices for unit in self._of(uuid))
        listed = self._listed(taken)
        out = self._out(listed, taken)
        return tuple((unit, unit not in out) for unit in listed)

    def device_of(self, unit: UnitId) -> str | None:
        """Return the UUID of a unit's device, of one that was bound early on a node that binds late now, too.

        None: bound late, or no device of this node. A spare unit is known although there are none any more.
        """
        prefix, dash, number = unit.rpartition("-")
        if not dash or not number.isascii() or not number.isdigit():
            return None
        if len(number) == 3 and number[0] != "0":
            return self._device_of_spare.get(prefix)
        return self._device_of.get(prefix) if len(number) == 2 else None

    def pack(
        self,
        available: Collection[UnitId],
        must: Collection[UnitId],
        size: int,
        wanted: Collection[str] = (),
        yielded: Mapping[str, int] = MappingProxyType({}),
    ) -> list[UnitId]:
        """Choose `size` of the available units, with all of `must` among them; fewer where there are not so many.

        They are of the `wanted` devices when these have so many.

        Bound early: all on one device up to 100, the fullest that they fit on; above, whole devices, and what is left
        over as if it were asked for alone. Where they do not fit so, on few devices: Allocate says what is wrong. Of
        spare units a device has as many as shares on it yield (`yielded`, in per cent by UUID): where no other device
        has room, they are all on the roomiest one that has so many, and the start waits for room there.
        """
        chosen = sorted(set(must), key=_order)
        free = sorted(set(available) - set(chosen), key=_order)
        if self.late:
            return chosen + free[: max(0, size - len(chosen))]
        by_device: dict[str, list[UnitId]] = {uuid: [] for uuid, _ in self.devices}
        for unit in free:
            if (device := self.device_of(unit)) is not None:
                by_device[device].append(unit)
        if sum(len(by_device.get(uuid, ())) for uuid in wanted) >= size - len(chosen):
            by_device = {uuid: units for uuid, units in by_device.items() if uuid in wanted}
        held = {uuid: sum(self.device_of(unit) == uuid for unit in chosen) for uuid in by_device}
        rooms = {uuid: max(0, len(of) - self.spare + yielded.get(uuid, 0)) for uuid, of in by_device.items()}
        over: list[UnitId] = []
        while (needed := size - len(chosen)) > 0 and any(by_device.values()):
            uuid = _next_device(by_device, rooms, held, needed)
            units, most = by_device.pop(uuid), min(needed, max(0, UNITS_PER_DEVICE - held[uuid]))
            chosen, over = chosen + units[:most], over + units[most:]
        return chosen + over[: size - len(chosen)]

    def _of(self, uuid: str) -> list[UnitId]:
        prefix = self._prefixes[uuid]
        spare = prefix[:_DIGITS_OF_SPARE]
        return [
            UnitId(f"{prefix if number < UNITS_PER_DEVICE else spare}-{number:02d}")
            for number in range(self._per_device)
        ]

    def _listed(self, taken: Mapping[str, Collection[UnitId]]) -> list[UnitId]:
        """Return the ids of the node: those that its shares hold, whatever devices there were then, and the lowest.

        What shares of a lost device hold is not listed: kubelet counts it as used, and others would do without.
        """
        known = {uuid for uuid, _ in self.devices} | {NOT_BOUND}
        total = self._per_device * len(self.devices)
        kept = {unit for uuid, units in taken.items() if uuid in known for unit in units if is_late(unit)}
        listed = sorted(sorted(kept), key=len)[:total]  # u9999 comes before u10000
        held = {unit for units in taken.values() for unit in units}
        number = 0
        while len(listed) < total:
            unit = UnitId(f"u{number:04d}")
            if unit not in held:
                listed.append(unit)
            number += 1
        return sorted(listed, key=_order)

    def _out(self, listed: list[UnitId], taken: Mapping[str, Collection[UnitId]]) -> set[UnitId]:
        """Return what the unhealthy devices take out: the units of their shares, then free ones, at last any."""
        unhealthy = [uuid for uuid, healthy in self.devices if not healthy]
        if not unhealthy:
            return set()
        size = self._per_device * len(unhealthy)
        lost = {unit for uuid in unhealthy for unit in taken.get(uuid, ())}
        held = {unit for uuid, units in taken.items() if uuid not in unhealthy for unit in units}
        ranks = {unit: 0 if unit in lost - held else 1 if unit in lost else 3 if unit in held else 2 for unit in listed}
        # The highest first: `pack` gives out the lowest, so that what is out rarely changes.
        listed = listed[::-1]
        return set(sorted(listed, key=lambda unit: ranks[unit])[:size])


def is_late(unit: UnitId) -> bool:
    """Return whether a unit is of the node, not of a device."""
    return len(unit) >= 5 and unit[0] == "u" and unit[1:].isascii() and unit[1:].isdigit()


def _order(unit: UnitId) -> tuple[int, str]:
    """Order ids by their numbers: u9999 comes before u10000."""
    return len(unit), unit


def _next_device(
    by_device: Mapping[str, list[UnitId]], rooms: Mapping[str, int], held: Mapping[str, int], needed: int
) -> str:
    """Return the device to take units of next.

    First those of which units are held already; then the one that is left with the least; if all of it is not enough,
    the one that has most room of those with enough units, or most units.
    """

    def rank(uuid: str) -> tuple[bool, int, int]:
        room, free, most = rooms[uuid], len(by_device[uuid]), min(needed, UNITS_PER_DEVICE - held[uuid])
        kind = 0 if room >= most else 1 if free >= most else 2
        return not (kind == 0 and held[uuid]), kind, (room, -room, -free)[kind]

    return min((uuid for uuid in by_device if by_device[uuid]), key=rank)


def _prefixes(uuids: list[str]) -> dict[str, str]:
    """Return what the ids of each device begin with: eight hexadecimal digits of its UUID.

    Devices whose first eight are equal get all of their digits, so that a third of them changes nothing. A UUID that is
    too short or not told apart by its digits goes on with a digest of itself.
    """
    prefixes: dict[str, str] = {}
    for count in _DIGITS:
        names = [_digits(uuid)[:count] for uuid in uuids]
        for uuid, name in zip(uuids, names, strict=True):
            if names.count(name) == 1:
                prefixes.setdefault(uuid, name)
    return prefixes


def _digits(uuid: str) -> str:
    digits = "".join(letter for letter in uuid.lower() if letter in "0123456789abcdef")
    return digits + hashlib.sha256(uuid.encode()).hexdigest()
