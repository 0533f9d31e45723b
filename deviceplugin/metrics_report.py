"""Sends the plugin's counters to the agent, which shows them in its metrics: the plugin opens no port of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod.agent.shares.share import DeviceUuid
    from sharepod.deviceplugin.core.agent import Agent
    from sharepod.deviceplugin.core.allocation_table import Record
    from sharepod.deviceplugin.core.device_filter import DeviceFilter
    from sharepod.deviceplugin.metrics import Counters

REPORT_S: Final = 5.0
"""The interval of the reports. The agent shows a report for 30 s (its STALE_NS), so a few reports may be lost."""


class Reporter:
    """Sends the counters every REPORT_S."""

    def __init__(self, counters: Counters, record: Record, device_filter: DeviceFilter, agent: Agent) -> None:
        self._counters = counters
        self._record = record
        self._device_filter = device_filter
        self._agent = agent
        self.active: Callable[[], bool] = lambda: True
        """False while another plugin serves the node: that one reports."""
        self.serving: Callable[[], bool] = lambda: True
        """Whether this plugin is registered with kubelet."""
        self.offered: Callable[[], frozenset[DeviceUuid] | None] = lambda: None
        """The devices that this plugin gives out now; None: it does not tell."""

    async def report_for_ever(self) -> None:
        """Send the counters to the agent every REPORT_S, for ever. A report that the agent does not get is dropped."""
        while True:
            if self.active():
                with contextlib.suppress(PluginError):  # counted; other parts report the agent's absence
                    await self._report()
            await asyncio.sleep(REPORT_S)

    async def _report(self) -> None:
        """Send one report. Raises PluginError when the agent does not take it."""
        held = self._record.all()
        report = self._counters.report(
            serving=self.serving(),
            allocations=len(held),
            unbound=sum(item.binding is None for item in held),
            rival_devices=len(self._device_filter.rivals),
            offer=self.offered(),
        )
        await self._agent.report(report)
