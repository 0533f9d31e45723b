"""Maps nodes to rows of the snapshot, and holds what the snapshot does not: usable devices, kubelet's units. Pure.

A snapshot has room for some more nodes than it was made for. A node beyond that, or a model that the snapshot does not
know, needs a new snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np

from sharepod.scheduler.placement.models import MODELS_MAX
from sharepod.scheduler.placement.native import Snapshot
from sharepod.scheduler.state.node_info import links_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from sharepod.scheduler.placement.request import NodeSpec
    from sharepod.scheduler.state.node_info import Row
    from sharepod.scheduler.state.usage import DeviceFacts

_SPARE: Final = 64
"""Nodes that may come before the snapshot is made anew."""


class NodeIndex:
    """A snapshot and the nodes on it."""

    def __init__(self, specs: Mapping[str, NodeSpec]) -> None:
        """Make a snapshot with room for these nodes; none of them is on it yet."""
        models = sorted({spec.model for spec in specs.values() if spec.devices})
        capacity = len(specs) + len(specs) // 8 + _SPARE if specs else 0
        self.snapshot = Snapshot((), capacity=capacity, models=models[:MODELS_MAX])
        self._names = [""] * capacity
        """By index; empty: the row is free."""
        self._free = list(range(capacity))[::-1]
        self._by_name: dict[str, int] = {}
        self._placed: dict[str, tuple[NodeSpec, tuple[DeviceFacts, ...]]] = {}
        """By name: the nodes as they are in the snapshot, with the facts of their devices."""
        self.generation = 0
        """Grows whenever a node comes, goes or has other devices."""
        self._usable = np.zeros(capacity, dtype=np.uint16)
        """By index: Row.usable of the node there, a bit for each device that takes shares."""
        self._units = np.zeros(capacity, dtype=np.int64)
        """By index: Row.units, the percents of devices that kubelet has left to count; below 0 if over-promised."""

    def have_place(self, specs: Mapping[str, NodeSpec]) -> bool:
        """Tell whether this snapshot has a place for these nodes, known or new; False: a new snapshot is needed.

        If the snapshot has MODELS_MAX models, a new one would not help with one more model: `put` refuses such a node.
        """
        known = self.snapshot.models.names
        if any(spec.devices and spec.model not in known for spec in specs.values()) and len(known) < MODELS_MAX:
            return False
        return sum(name not in self._by_name for name in specs) <= len(self._free)

    def put(self, name: str, spec: NodeSpec, devices: Sequence[DeviceFacts], row: Row) -> bool:
        """Put a node in the snapshot, new or changed, with what `row` says is left of it and of its `devices`.

        `have_place` must have said that there is a place. Return False, and remove the node, if the snapshot does not
        have its model: then it takes no shares.
        """
        if spec.devices and spec.model not in self.snapshot.models.names:
            self.remove(name)
            return False
        index = self._by_name.get(name, -1)
        if index < 0:
            index = self._by_name[name] = self._free.pop()
            self._names[index] = name
        facts = tuple(devices)
        if self._placed.get(name) != (spec, facts):
            self.snapshot.set_node(index, spec)
            self.snapshot.set_links(index, links_of(facts), [device.numa_node for device in facts])
            self._placed[name] = spec, facts
            self.generation += 1
        self.snapshot.set_left(index, row.cpu_milli, row.memory_mib, row.free_milli, row.free_mib)
        self._usable[index], self._units[index] = row.usable, row.units
        self.put_strains(name, row)
        return True

    def put_strains(self, name: str, row: Row) -> None:
        """Put the strains of a node's devices (Row.strains) into the snapshot, which must have the node."""
        uses = [(use.busy_milli, use.waited_milli, use.latency_milli, use.limits_milli) for use in row.strains]
        self.snapshot.set_uses(self._by_name[name], uses)

    def remove(self, name: str) -> None:
        """Take a node out of the snapshot, if it is there."""
        index = self._by_name.pop(name, -1)
        if index >= 0:
            del self._placed[name]
            self.generation += 1
            self.snapshot.remove_node(index)
            self._usable[index] = self._units[index] = 0
            self._names[index] = ""
            self._free.append(index)

    def __contains__(self, name: object) -> bool:
        """Tell whether a node is in the snapshot."""
        return name in self._by_name

    def names(self) -> list[str]:
        """Return the names of the nodes in the snapshot, sorted."""
        return sorted(self._by_name)

    def name(self, index: int) -> str:
        """Return the name of the node at an index of the snapshot; empty: there is none."""
        return self._names[index]

    def index(self, name: str) -> int:
        """Return the index of a node in the snapshot. Raises KeyError if it is not there."""
        return self._by_name[name]

    def spec(self, name: str) -> NodeSpec | None:
        """Return a node without its pods; None: it is not in the snapshot."""
        placed = self._placed.get(name)
        return placed[0] if placed else None

    def specs(self) -> dict[str, NodeSpec]:
        """Return the nodes in the snapshot without their pods, by name, sorted."""
        return {name: self._placed[name][0] for name in sorted(self._placed)}

    def find(self, names: Sequence[str]) -> tuple[list[str], list[int]]:
        """Return the names and the indices of those of these nodes that are in the snapshot, in the same order."""
        found = list(map(self._by_name.get, names))
        if None not in found:
            return list(names), cast("list[int]", found)
        pairs = [(name, index) for name, index in zip(names, found, strict=True) if index is not None]
        return [name for name, _ in pairs], [index for _, index in pairs]

    def indices(self, names: Collection[str] | None = None) -> NDArray[np.int32]:
        """Return the sorted indices of those of these nodes that are in the snapshot. `names` None: of all in it."""
        found: Iterable[int] = self._by_name.values() if names is None else self.find(list(names))[1]
        return np.sort(np.fromiter(found, np.int32))

    def usable(self, indices: NDArray[np.int32]) -> NDArray[np.uint16]:
        """Return for each of the nodes at these indices a bit for each device that takes shares. It is a copy."""
        found: NDArray[np.uint16] = self._usable[indices]
        return found

    def units(self, indices: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return how many percents of devices kubelet has left to count on the nodes at these indices."""
        found: NDArray[np.int64] = self._units[indices]
        return found
