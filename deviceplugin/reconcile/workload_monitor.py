"""Looks every LOOK_S at the programs of the node, and writes the new findings of `workload_findings.py` as Events."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.reconcile.workload_findings import Note, Program, Seat, WorkloadFindings

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.deviceplugin.core.agent import Agent, NodeView
    from sharepod.deviceplugin.core.allocation_table import Record
    from sharepod.deviceplugin.core.shares import Shares
    from sharepod.deviceplugin.interfaces import ApiServer
    from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
    from sharepod.deviceplugin.reconcile.processes import HostProcesses

log = logging.getLogger("sharepod.deviceplugin")

LOOK_S: Final = 10.0
AWAY_S: Final = 30.0
"""The operator is told that the agent is away after this time. An agent that restarts is back sooner."""


class WorkloadMonitor:
    """Takes the looks, and writes the Events."""

    def __init__(
        self,
        record: Record,
        shares: Shares,
        reconciler: AnnotationReconciler,
        agent: Agent,
        api: ApiServer,
        processes: HostProcesses,
        tell_node: Callable[[Note], None],
    ) -> None:
        """Take the sources. `tell_node` writes an Event about the node."""
        self._record = record
        self._shares = shares
        self._reconciler = reconciler
        self._agent = agent
        self._api = api
        self._processes = processes
        self._tell_node = tell_node
        self.active: Callable[[], bool] = lambda: True
        """False while another plugin serves the node: that one reports."""
        self._findings = WorkloadFindings()
        self._before: set[str] = set()
        """Ids of the allocations that were bound before this plugin served."""
        self._serves = False
        """Whether this plugin served the node at the last look."""
        self._away_since_s: float | None = None
        """When the agent was first found away; None: it answered at the last look."""
        self._away_told = False
        """Whether the operator was told that the agent is away."""

    async def look_for_ever(self) -> None:
        """Look every LOOK_S, for ever. When this plugin begins to serve, it forgets what it found before."""
        while True:
            is_active = self.active()
            if is_active and not self._serves:
                # The plugin that served until now has told what it found.
                self._findings = WorkloadFindings()
                self._before = {item.id for item in self._record.all() if item.binding is not None}
            self._serves = is_active
            if is_active and self._reconciler.listed:
                await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once, and write what is new. While the agent is away, only its absence is reported."""
        now_s = asyncio.get_running_loop().time()
        try:
            node = await self._agent.node()
            held = await self._agent.shares()
        except PluginError as error:
            self._note_away(now_s, error)
            return
        self._note_back()
        seats = []
        for item in self._record.all():
            pod = self._reconciler.pod(item.binding) if item.binding is not None else None
            if item.binding and pod and item.devices:
                was_there, is_busy = item.id in self._before, self._shares.alone(item.id).locked()
                seats.append(Seat(item.id, item.binding.container, pod, held.get(item.id), was_there, is_busy))
        for note in self._findings.step(seats, self._programs(node), now_s):
            if note.pod is None:
                self._tell_node(note)
            else:
                await self._api.event(note.pod, note.reason, note.message, warning=note.warning)

    def _programs(self, node: NodeView) -> list[Program]:
        """Return the programs that use a device without a share, each with the pod that its cgroups name."""
        return [
            Program(
                device.index, one.pid, one.name, one.memory_used_bytes, self._processes.pod_of_process(one.pid) or ""
            )
            for device in node.devices
            for one in device.foreign_processes
        ]

    def _note_away(self, now_s: float, error: PluginError) -> None:
        """Note that the agent does not answer. After AWAY_S, tell the node's operator once."""
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s >= AWAY_S and not self._away_told:
            self._away_told = True
            text = f"{error}: pods run on, unmetered; containers do not start: see the log of container agent"
            self._tell_node(Note(None, "SharePodAgentUnreachable", text))

    def _note_back(self) -> None:
        """Note that the agent answers, and tell the operator if its absence was told."""
        if self._away_told:
            text = "the node's agent answers again: pods are metered, containers start"
            self._tell_node(Note(None, "SharePodAgentReachable", text, warning=False))
        self._away_since_s, self._away_told = None, False
