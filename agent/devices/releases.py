"""Devices that an operator has released: for a reset, a change of MIG, an upgrade of the driver.

The driver refuses all of these while a process has NVML open, for whatever device. So NVML is closed while any device
is released. Closing waits for the looks that are under way, so it does not run on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from sharepod.agent.devices.on_thread import on_thread
from sharepod.agent.errors import AgentUnavailable, WrongState

if TYPE_CHECKING:
    from sharepod.agent.devices.device import DeviceStatus
    from sharepod.agent.devices.monitor import Devices
    from sharepod.agent.devices.session import Session


class Releases:
    """Releases devices and takes them back, one call at a time. A call is completed even if its caller gives up.

    Invariant between calls: NVML is closed if and only if a device is released.
    """

    def __init__(self, devices: Devices, session: Session) -> None:
        """Take what is known of the devices, and the NVML session that is closed while one is released."""
        self._devices = devices
        self._session = session
        self._one_at_a_time = asyncio.Lock()

    async def release(self, reference: str) -> DeviceStatus:
        """Release a device, by UUID or index, and return its status. A released device stays released.

        Raises UnknownDevice, and AgentUnavailable when NVML cannot be closed.
        """
        return await asyncio.shield(self._release(reference))

    async def resume(self, reference: str) -> DeviceStatus:
        """Take a released device back, by UUID or index, and return its status.

        Raises UnknownDevice, WrongState if it is not released, and AgentUnavailable if NVML cannot be opened: then the
        device stays released.
        """
        return await asyncio.shield(self._resume(reference))

    async def _release(self, reference: str) -> DeviceStatus:
        """Do the work of `release`, to the end even if the caller gives up."""
        async with self._one_at_a_time:
            info = self._devices.find(reference)
            if not self._devices.released and (cause := await on_thread("nvml", self._session.close)):
                raise AgentUnavailable(f"device {info.index} cannot be released: {cause}: stop the agent instead")
            self._devices.release(info.uuid)
            return self._devices.status(info.uuid)

    async def _resume(self, reference: str) -> DeviceStatus:
        """Do the work of `resume`, to the end even if the caller gives up."""
        async with self._one_at_a_time:
            info = self._devices.find(reference)
            if info.uuid not in self._devices.released:
                raise WrongState(f"device {info.index} is not released: `sharepod doctor` says how it is")
            if len(self._devices.released) == 1 and (cause := await on_thread("nvml", self._session.reopen)):
                raise AgentUnavailable(
                    f"device {info.index} stays released: {cause}; after an upgrade of the driver restart the agent"
                )
            self._devices.resume(info.uuid, time.monotonic_ns())
            return self._devices.status(info.uuid)
