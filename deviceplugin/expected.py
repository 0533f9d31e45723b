"""Which devices the scheduler chose for a container that kubelet is admitting, where kubelet picks the units.

Kubelet does not say which container it asks for, only how many units that one gets. So it is the oldest pod of this
node that has a container of as many units, a chosen device and no allocation yet. Two alike that come at once may be
taken for each other: each then has the other's place, and that is as good.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Collection

    from sharepod.deviceplugin.follow import Follower
    from sharepod.deviceplugin.pod import Pod

WAIT_S: Final = 0.5
"""For the watch to show the pod: kubelet has it from one of its own."""
LOOK_S: Final = 0.01
FORGET_S: Final = 60.0
"""A container that was told, and asks again after that, has been refused meanwhile."""
_WAITING: Final = "Pending"


class Expected:
    """Whom the scheduler sent."""

    def __init__(self, follower: Follower, scheduler_name: str) -> None:
        self._follower = follower
        self._scheduler_name = scheduler_name
        self._told_s: dict[tuple[str, str], float] = {}
        """When a container was told, by pod uid and name."""

    async def devices(self, units: int) -> Collection[str]:
        """Return the devices of the next container with so many units, none when nobody chose any."""
        until_s = time.monotonic() + WAIT_S
        while True:
            now_s = time.monotonic()
            self._told_s = {key: told_s for key, told_s in self._told_s.items() if now_s - told_s < FORGET_S}
            found = self._coming(units)
            for pod, container in found:
                if chosen := self._chosen(pod, container, units):
                    self._told_s[pod.uid, container] = now_s
                    return chosen
            if any(pod.scheduler != self._scheduler_name for pod, _ in found) or now_s >= until_s:
                return ()  # another scheduler's, or one whose scheduler is away
            await asyncio.sleep(LOOK_S)

    def _coming(self, units: int) -> list[tuple[Pod, str]]:
        """Return the containers of so many units that may be the one, the oldest first."""
        pods = [pod for pod in self._follower.pods() if pod.phase == _WAITING and not pod.deleting]
        pods.sort(key=lambda pod: (pod.created, pod.uid))
        return [
            (pod, name)
            for pod in pods
            for name, count in (*pod.init_units, *pod.units)
            if count == units and (pod.uid, name) not in self._told_s and not self._follower.holds(pod, name)
        ]

    def _chosen(self, pod: Pod, container: str, units: int) -> Collection[str]:
        try:
            return self._follower.read_terms(pod, container, units).chosen
        except PluginError:
            return ()  # said when it starts
