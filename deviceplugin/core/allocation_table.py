"""The allocations of the node, in memory and on disk. No container starts before its allocation is on disk.

Every method runs on the event loop without an await, so no other method changes what it has read. A full disk must not
end pods: if units are refused, kubelet fails the pod for good, and its ReplicaSet makes the next one, for ever. While
the disk is full, units are therefore given out from memory. Only the container's start fails: kubelet tries it again.

During an upgrade two plugins live at once, and the old one gives units out until kubelet has left it. So the file is
checked before units are given out, bound or saved, and what another plugin wrote is taken over. The plugin that stands
by writes nothing.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sharepod.deviceplugin.core.allocation import Allocation, AllocationId, Allocations, Binding
from sharepod.deviceplugin.core.unit import NOT_BOUND
from sharepod.deviceplugin.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sharepod.deviceplugin.core.checkpoint import Store
    from sharepod.deviceplugin.core.unit import UnitId

log = logging.getLogger("sharepod.deviceplugin")


class Claim(NamedTuple):
    """The allocation that a starting container holds."""

    allocation: Allocation
    superseded: tuple[Allocation, ...]
    """The pod's allocations that this one replaces: the caller releases their shares."""
    is_first: bool
    """True: no start had the allocation before, so it has no share yet."""


class Record:
    """The allocations that were given out."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._allocations = Allocations(store.load())
        self._saved = self._allocations.all()
        """The allocations on disk."""
        self._failing = False
        """True: the last write to disk failed, and the log says so."""
        self._move_count = 0
        """How many moves there were: one when an allocation is given out, one when its container begins to start."""
        self._last_moves: dict[AllocationId, int] = {}
        """By allocation: the number of its last move. None of those that were read from the file has moved."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the set of taken units may have changed."""
        self.active: Callable[[], bool] = lambda: True
        """False while another plugin serves the node: then the file belongs to that plugin."""

    def all(self) -> tuple[Allocation, ...]:
        """Return all allocations, oldest first."""
        return self._allocations.all()

    def get(self, allocation_id: str) -> Allocation | None:
        """Return an allocation as it is now; None: there is none with this id."""
        return self._allocations.get(allocation_id)

    def taken(self) -> Mapping[str, frozenset[UnitId]]:
        """Return the units in use, grouped by the UUID of their device; NOT_BOUND: their allocation has no device yet.

        The units of an allocation on several devices are dealt out evenly over these devices.
        """
        taken: dict[str, frozenset[UnitId]] = {}
        in_shares = {unit for item in self._allocations.all() if item.devices for unit in item.units}
        for item in self._allocations.all():
            devices = item.devices or (NOT_BOUND,)
            # An allocation without devices may have units that also belong to one with devices, that of the pod's
            # running container. These units count only for the one with devices.
            ordered = sorted(item.units if item.devices else item.units - in_shares)
            for index, device in enumerate(devices):
                taken[device] = taken.get(device, frozenset()) | frozenset(ordered[index :: len(devices)])
        return taken

    @property
    def moves(self) -> int:
        """How many moves there were: a caller keeps this while it looks at other sources, and then asks `has_moved`."""
        return self._move_count

    def has_moved(self, allocation_id: AllocationId, since: int) -> bool:
        """Tell whether the allocation has moved since `moves` was `since`: what the caller found may be old then."""
        return self._last_moves.get(allocation_id, 0) > since

    def issue(self, units: frozenset[UnitId], fresh_id: AllocationId) -> Allocation:
        """Return the allocation of a container that is being admitted; a new allocation gets `fresh_id`.

        It is written to disk now. If that fails, a later `save` writes it: the admission must not fail for a full disk.
        """
        self._learn()
        allocation = self._allocations.issue(units, fresh_id, time.time_ns())
        self._note_move(allocation.id)
        self._try_to_save()
        return allocation

    def claim(self, units: frozenset[UnitId], binding: Binding) -> Claim:
        """Bind the units' allocation to the container that starts, and save it.

        Raises PluginError when the units have no allocation, another plugin serves, or the disk does not take it.
        """
        self._check_active()
        self._learn()
        unbound = {item.id for item in self.all() if item.binding is None}
        allocation = self._allocations.claim(units, binding)
        if allocation is None:
            raise PluginError(
                f"units of {binding.title} were never given out by this node (its allocations were lost): "
                "delete the pod, so that it is admitted anew"
            )
        self._note_move(allocation.id)
        superseded = self._allocations.superseded(allocation)
        self.save()
        return Claim(allocation, superseded, is_first=allocation.id in unbound)

    def set_devices(self, allocation_id: AllocationId, devices: tuple[str, ...]) -> None:
        """Note the devices that an allocation has got. Raises PluginError if that is not on disk, or it was dropped."""
        current = self.get(allocation_id)
        if current is None:
            raise PluginError(f"share {allocation_id} was released while its container started: it is tried again")
        self._allocations.put(replace(current, devices=devices))
        self.save()

    def drop(self, allocation_id: AllocationId) -> None:
        """Forget an allocation. If the disk is full, a restart may bring it back, and a collection ends it again."""
        self._allocations.drop(allocation_id)
        self._last_moves.pop(allocation_id, None)
        self._try_to_save()

    def save(self) -> None:
        """Write the changes that are not on disk, and call `changed`. Raises PluginError if they cannot be written."""
        self._check_active()
        self._learn()
        current = self._allocations.all()
        self.changed()
        if current == self._saved:
            return
        try:
            self._store.save(current)
        except PluginError as error:
            if not self._failing:
                remedy = "running pods go on; containers that are new to the node wait until it can"
                log.error(  # noqa: TRY400 - the cause is in it
                    "allocations not written", extra={"cause": str(error), "remedy": remedy}
                )
            self._failing = True
            raise
        if self._failing:
            log.info("allocations written again")
        self._failing = False
        self._saved = current

    def reload(self) -> None:
        """If another plugin wrote the file, replace all allocations by those in it. Called when this one takes over."""
        found = self._store.reread() if self._store.changed() else None
        if found is None:
            return
        before = len(self.all())
        self._allocations = Allocations(found)
        self._saved = self._allocations.all()
        self._last_moves.clear()
        log.info("allocations of the plugin before taken over", extra={"had": before, "has": len(self._saved)})
        self.changed()

    def rebind(self, allocation_id: AllocationId, binding: Binding) -> None:
        """Note that another container of the pod has the allocation, and save that. Raises PluginError if it cannot."""
        current = self.get(allocation_id)
        if current is not None:
            self._allocations.put(replace(current, binding=binding))
            self.save()

    def _check_active(self) -> None:
        """Raise PluginError while another plugin serves the node: then the file belongs to that plugin."""
        if not self.active():
            raise PluginError("another device plugin serves this node now: it is tried again there")

    def _learn(self) -> None:
        """Take over the allocations that another plugin has written since this one last read or wrote the file.

        Allocations that moved in this process stay: they are newer than those in the file. A plugin that stands by
        learns nothing here; `reload` reads the file when it takes over.
        """
        if not self.active() or not self._store.changed():
            return
        for item in self._store.reread() or ():
            if item.id not in self._last_moves:
                self._allocations.put(item)

    def _try_to_save(self) -> None:
        """Save if that is possible: the caller does not depend on it."""
        try:
            self.save()
        except PluginError:
            return  # `save` has logged it; the next change and the garbage collector save again

    def _note_move(self, allocation_id: AllocationId) -> None:
        """Note that an allocation moves now: see `has_moved`."""
        self._move_count += 1
        self._last_moves[allocation_id] = self._move_count
