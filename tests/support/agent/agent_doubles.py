"""An arbiter in memory that does as much as a registry needs; the end-to-end tests run the real arbiter."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from sharepod.agent.devices.device import DeviceInfo
from sharepod.agent.node import Identity
from sharepod.agent.shares.share import (
    NOTHING_YET,
    DeviceAsk,
    DeviceUuid,
    Handle,
    Histogram,
    Process,
    ShareAsk,
    ShareClass,
    Terms,
    Turn,
    Usage,
)

GIB = 2**30
H200 = DeviceInfo(DeviceUuid("GPU-aaaa"), 0, "H200", 141 * GIB)
H200_B = DeviceInfo(DeviceUuid("GPU-bbbb"), 1, "H200", 141 * GIB)
A10 = DeviceInfo(DeviceUuid("GPU-cccc"), 2, "A10", 24 * GIB)


def ask(request: int = 30, limit: int = 100, memory: int = 0, device: str = "", name: str = "") -> ShareAsk:
    """Return a request for a share on one device, in whole per cents."""
    return ShareAsk((DeviceAsk(device, Terms(request * 1000, limit * 1000, memory)),), name=name)


def identity(runtime_directory: Path) -> Identity:
    """Return the identity of a node in tests that ask no more of it than its name."""
    return Identity(
        node_name="n", version="0", region_abi_version=1, agent_pid=1, driver_version="",
        runtime_directory=str(runtime_directory), policy="open", metrics_address="", hook_path="", features=(),
        settings={}, environment={},
    )  # fmt: skip


class MemoryArbiter:
    """An arbiter that remembers what it was told and answers from `usages[handle]`."""

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.terms: dict[Handle, list[tuple[Handle, Terms]]] = {}
        self.paused: dict[Handle, bool] = {}
        self.gangs: dict[Handle, int] = {}
        self.usages: dict[Handle, list[Usage]] = {}
        self.turn_times: dict[tuple[Handle, int], tuple[Histogram, Histogram]] = {}
        self.processes: dict[Handle, tuple[Process, ...]] = {}
        self.region_errors: dict[str, int] = {}
        self.finished: list[Turn] = []
        self.tenants: dict[str, int] = {}
        self.told: dict[str, Usage] = {}
        """By a share's directory: the usage of its first device that processes already in the share report."""
        self.refuse = 0
        self._next = 0

    def add_device(self, uuid: str) -> Handle:
        self.devices.append(uuid)
        return Handle(len(self.devices) - 1)

    def add_share(
        self, directory: str, terms: Sequence[tuple[Handle, Terms]], share_class: ShareClass, used_ns: Sequence[int]
    ) -> Handle:
        if self.refuse:
            raise OSError(self.refuse, "refused")
        if not Path(directory).is_dir():
            raise OSError(errno.ENOENT, "no directory")
        (Path(directory) / "terms").touch()
        (Path(directory) / "slots").touch()
        self._next += 1
        handle = Handle(self._next)
        self.terms[handle] = list(terms)
        told = [self.told.get(directory, Usage()), *[Usage()] * (len(terms) - 1)]
        earlier = used_ns or [0] * len(terms)
        self.usages[handle] = [replace(usage, used_ns=used) for usage, used in zip(told, earlier, strict=True)]
        return handle

    def region_error(self, directory: str) -> int:
        return self.region_errors.get(directory, 0) if Path(directory).is_dir() else errno.ENOENT

    def region_terms(self, _: str) -> NoReturn:
        raise OSError(errno.ENOENT, "no region")

    def region_tenants(self, directory: str) -> int:
        return self.tenants.get(directory, 0)

    def update_share(self, share: Handle, terms: Sequence[tuple[Handle, Terms]], share_class: ShareClass) -> None:
        self.terms[share] = list(terms)

    def pause_share(self, share: Handle, paused: bool) -> None:
        self.paused[share] = paused

    def join_gang(self, share: Handle, key: int) -> None:
        self.gangs[share] = key

    def remove_share(self, share: Handle) -> None:
        del self.terms[share]

    def read_usage(self, share: Handle, term: int) -> Usage:
        return self.usages[share][term]

    def read_turn_times(self, share: Handle, term: int) -> tuple[Histogram, Histogram]:
        return self.turn_times.get((share, term), (NOTHING_YET, NOTHING_YET))

    def read_processes(self, share: Handle) -> tuple[Process, ...]:
        return self.processes.get(share, ())

    def read_diagnostics(self, _: Handle) -> tuple[()]:
        return ()

    def read_turns(self, after: int, capacity: int) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.finished if turn.sequence > after)[:capacity]

    def reuse_handles(self) -> None:
        """Give handles out from 0 again."""
        self._next = 0

    def use(self, share: Handle, used_ns: int) -> None:
        """Charge a share on its first device."""
        self.usages[share][0] = replace(self.usages[share][0], used_ns=self.usages[share][0].used_ns + used_ns)
