"""Changes and ends the shares of allocations, one operation at a time on each. It does not read what pods ask for."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod.deviceplugin.cdi.files import CdiDirectory
    from sharepod.deviceplugin.core.agent import Agent, HeldShare, NodeView
    from sharepod.deviceplugin.core.allocation import Allocation, AllocationId
    from sharepod.deviceplugin.core.allocation_table import Record
    from sharepod.deviceplugin.core.terms import PodTerms

log = logging.getLogger("sharepod.deviceplugin")


class Shares:
    """The shares of this node's pods, at the agent."""

    def __init__(self, record: Record, agent: Agent, cdi: CdiDirectory) -> None:
        self._record = record
        self._agent = agent
        self._cdi = cdi
        self._locks: WeakValueDictionary[AllocationId, asyncio.Lock] = WeakValueDictionary()
        """A lock is kept while a task has or awaits it: a second one of the same allocation would let two tasks in."""
        self._terms: dict[AllocationId, PodTerms] = {}
        """The terms of each share that the agent was last given."""

    def alone(self, allocation_id: AllocationId) -> asyncio.Lock:
        """Return the lock under which the allocation's share is made, changed or ended. The caller acquires it."""
        return self._locks.setdefault(allocation_id, asyncio.Lock())

    def terms(self, allocation_id: AllocationId) -> PodTerms | None:
        """Return the terms of the share that the agent was last given; None: not known."""
        return self._terms.get(allocation_id)

    def note_terms(self, allocation_id: AllocationId, terms: PodTerms) -> None:
        """Note the terms of the share that the agent was given."""
        self._terms[allocation_id] = terms

    async def change(
        self,
        share: HeldShare,
        item: Allocation,
        terms: PodTerms,
        node: NodeView,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Give a live share other terms or labels, as `Agent.update` does, and note the terms.

        `item` is the share's allocation; the caller holds its lock. Raises PluginError.
        """
        await self._agent.update(share, terms, node, labels)
        self.note_terms(item.id, terms)

    def started_unix_s(self, allocation_id: AllocationId) -> float | None:
        """Return when a container last began to start with the share, by the wall clock; None: no share is ready."""
        return self._cdi.written_unix_s(allocation_id)

    async def release(self, item: Allocation, *, since: int | None = None) -> None:
        """Release the share of a container that is done. The pod keeps the allocation. Raises PluginError.

        `since`: the value of `Record.moves` when the caller began to look. If the allocation has moved after that, a
        container may start with the share, and nothing is done. None: no such check.
        """
        async with self.alone(item.id):
            if since is not None and self._record.has_moved(item.id, since):
                return
            await self._release_locked(item)
            if self._record.get(item.id) is not None:
                self._record.set_devices(item.id, ())

    async def end(self, item: Allocation, *, since: int | None = None) -> bool:
        """Release an allocation's share and forget the allocation. Raises PluginError when the agent is away.

        `since` is that of `release`. Returns whether the share was released.
        """
        async with self.alone(item.id):
            if since is not None and self._record.has_moved(item.id, since):
                return False
            await self._release_locked(item)
            self._record.drop(item.id)
        return True

    async def _release_locked(self, item: Allocation) -> None:
        """End the share at the agent, and remove its CDI file. The caller holds its lock. Raises PluginError."""
        await self._agent.release(item.id)
        self._cdi.remove(item.id)
        self._terms.pop(item.id, None)
        title = item.binding.title if item.binding else ""
        log.info("share released", extra={"share": item.id, "container": title})
