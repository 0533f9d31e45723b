"""Runs the arbiter with its shares in this process: a node without an agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rig.closing import Closing
from rig.gpu import uuid
from sharepod.agent.native import NativeArbiter
from sharepod.agent.shares.share import Handle, ShareClass, Terms, Usage
from sharepod.hook import LIBRARY


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the arbiter."""

    handle: Handle
    devices: tuple[int, ...]
    region: Path
    arbiter: NativeArbiter

    @property
    def env(self) -> dict[str, str]:
        """The variables that a program needs, besides the GPU's, to run in the share."""
        return {"LD_PRELOAD": str(LIBRARY), "SHAREPOD_REGION": str(self.region)}

    def usage(self, device: int | None = None) -> Usage:
        """Return the account on a device; by default on the first device of the share's terms."""
        return self.arbiter.read_usage(self.handle, 0 if device is None else self.devices.index(device))


class Arbiter(Closing):
    """An arbiter; a context manager."""

    def __init__(self) -> None:
        self.native = NativeArbiter()
        self._devices: dict[int, Handle] = {}

    def close(self) -> None:
        """End the arbiter with its shares and devices."""
        self.native.close()

    def device(self, number: int) -> Handle:
        """Return the simulated device with this number. It is added at its first use."""
        if number not in self._devices:
            self._devices[number] = self.native.add_device(uuid(number))
        return self._devices[number]

    def share(
        self,
        region: Path,
        devices: Sequence[int] = (0,),
        *,
        request: float = 50.0,
        limit: float = 100.0,
        memory_bytes: int | Mapping[int, int] = 0,
    ) -> Share:
        """Add a share of `request` percent, at most `limit`, of each device; its files are made in `region`.

        `memory_bytes`: its memory limit on each device, or one by device; 0: none.
        """
        region.mkdir(parents=True, exist_ok=True)
        caps = memory_bytes if isinstance(memory_bytes, Mapping) else dict.fromkeys(devices, memory_bytes)
        millipercent = round(request * 1000), round(limit * 1000)
        asked = [(self.device(number), Terms(*millipercent, caps[number])) for number in devices]
        handle = self.native.add_share(str(region), asked, ShareClass.STANDARD, [])
        return Share(handle, tuple(devices), region, self.native)
