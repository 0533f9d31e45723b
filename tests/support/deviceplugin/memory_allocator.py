"""An allocator in memory, for tests of the interface to kubelet: it keeps its requests and gives prepared answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from sharepod.deviceplugin.cdi.injection import ContainerEdits, DeviceNode, Mount
from sharepod.deviceplugin.core.unit import UnitId, Units
from sharepod.deviceplugin.v1beta1.registration import Registration
from sharepod.deviceplugin.v1beta1.service import PluginService

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"


class MemoryAllocator:
    """An allocator that gives a container a variable with the number of its units, or raises `refusal` if set."""

    def __init__(self) -> None:
        self.allocated: list[frozenset[UnitId]] = []
        self.started: list[frozenset[UnitId]] = []
        self.held: dict[str, frozenset[UnitId]] = {}
        self.refusal: Exception | None = None
        self.delay_s = 0.0

    async def allocate(self, units: frozenset[UnitId]) -> ContainerEdits:
        await asyncio.sleep(self.delay_s)
        if self.refusal:
            raise self.refusal
        self.allocated.append(units)
        number = len(self.allocated)
        return ContainerEdits(
            variables={"SIZE": str(len(units)), "NUMBER": str(number)},
            mounts=(Mount(f"/host/{number}", "/share"), Mount("/host/slots", "/share/slots", read_only=False)),
            devices=(DeviceNode("/dev/zero", "/dev/gpu0", "rw"),),
            cdi=(f"sharepod.io/share={number}",),
        )

    async def pre_start(self, units: frozenset[UnitId]) -> None:
        await asyncio.sleep(self.delay_s)
        if self.refusal:
            raise self.refusal
        self.started.append(units)

    def taken(self) -> Mapping[str, frozenset[UnitId]]:
        return self.held


@contextlib.asynccontextmanager
async def plugin(
    directory: Path, allocator: MemoryAllocator | None = None, units: Units | None = None, **options: object
) -> AsyncIterator[tuple[PluginService, Registration]]:
    """Run a plugin in kubelet's directory, by default with one device."""
    service = PluginService(allocator or MemoryAllocator(), units or Units([(A, True)]), **options)  # type: ignore[arg-type]
    async with Registration(service, directory) as registration:
        yield service, registration
