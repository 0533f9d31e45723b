"""The devices of the node as NVML sees them. The only file that imports pynvml.

NVML can hang on a sick device, so every look happens on one daemon thread of its own; the result is handed to a
callback. Nothing is decided here: `health.py` and `foreign.py` do.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml

from sharepod.agent.device import DeviceInfo, DeviceLook, DeviceProcess
from sharepod.agent.environ import environment_of, names_mps, region_in
from sharepod.agent.errors import NOT_SIMULATED, AgentUnavailable
from sharepod.agent.share import DeviceUuid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIBRARY_NAME: Final = "libnvidia-ml.so.1"
SYSFS: Final = Path("/sys/bus/pci/devices")
LOOK_INTERVAL_S: Final = 2.4
"""A process without a share is told at the second look that sees it: within 5 s."""
_MPS_SERVER: Final = "nvidia-cuda-mps"
"""The name of nvidia-cuda-mps-server, as long as the kernel keeps names."""
_RECOVERY_NONE: Final = 0
_RECOVERY_FIELD: Final = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)


@dataclass(frozen=True, slots=True)
class _Handle:
    """A device with its NVML handle; `parent` differs for MIG instances, whose events come from the whole GPU."""

    info: DeviceInfo
    handle: Any
    parent: Any
    parent_uuid: str


def load_library(path: str) -> None:
    """Load NVML from `path`; pynvml, which asks for it by name, then gets this one. Raises AgentUnavailable."""
    try:
        ctypes.CDLL(path)
    except OSError as error:
        raise AgentUnavailable(f"simulated NVML: {error}: build it with `make build`") from None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _memory(handle: Any) -> tuple[int, int]:
    """Return (total, used) bytes; zeros where the device does not say (unified memory)."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:
        return 0, 0
    return int(memory.total or 0), int(memory.used or 0)


def _name(handle: Any, parent: Any) -> str:
    """Return a device's product name; older drivers have none for MIG instances but the GPU's."""
    try:
        return _text(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError_NotSupported:
        return _text(pynvml.nvmlDeviceGetName(parent))


def _mps_clients(handle: Any) -> set[int]:
    """Return the pids of the processes that use the device through MPS; none where the driver does not tell."""
    try:
        return {process.pid for process in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)}
    except pynvml.NVMLError:
        return set()


def _nvlink_peers(one: _Handle, others: Sequence[_Handle]) -> tuple[int, ...]:
    """Return the indices of the GPUs that NVLink joins it with, through a switch too; a GPU that is cut has none."""
    return tuple(other.info.index for other in others if other.parent_uuid != one.parent_uuid and _linked(one, other))


def _linked(one: _Handle, other: _Handle) -> bool:
    if one.handle is not one.parent or other.handle is not other.parent:
        return False
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:  # one that cannot say has none
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def numa_node_at(bus_id: str, sysfs: Path = SYSFS) -> int:
    """Return the memory node of a place on the bus; -1: the kernel does not say, or has one for all."""
    domain, _, place = bus_id.lower().partition(":")
    try:
        # NVML writes eight digits of the domain, the kernel four or more.
        return int((sysfs / f"{int(domain, 16):04x}:{place}" / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def _process_name(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"
    # A process names itself: nothing in it may reach the operator's terminal as a command.
    return "".join(letter if letter.isprintable() else "?" for letter in name)


class Inventory:
    """NVML, from construction to `close`. `devices` never changes: a device that fails stays and becomes unhealthy."""

    def __init__(self, simulate: str = "") -> None:
        """Open NVML and list the devices; `simulate` names simulated ones.

        Raises AgentUnavailable when there is no driver or no device.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if simulate:
                raise AgentUnavailable(
                    f"devices {simulate} {NOT_SIMULATED}: NVML says {error}: "
                    "give known ones like 2xH200, room for their state, and a known $SIMGPU_PROFILE and a writable "
                    "$SIMGPU_STATE if they are set"
                ) from None
            raise AgentUnavailable(
                f"no GPU on this machine: NVML says {error}: install the NVIDIA driver, or use --simulate 1xH200"
            ) from None
        self._simulate = simulate
        self._events: Any = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._known: dict[int, DeviceProcess] = {}
        try:
            self._handles = self._list()
            self.driver_version = _text(pynvml.nvmlSystemGetDriverVersion())
            self._watch_events()
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise AgentUnavailable(f"NVML cannot list the devices: {error}: check `nvidia-smi`") from None
        if not self._handles:
            pynvml.nvmlShutdown()
            raise AgentUnavailable("no GPU on this machine: NVML lists none: use --simulate 1xH200")

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """All devices, MIG instances in place of the GPUs that are cut into them."""
        return tuple(item.info for item in self._handles)

    def _list(self) -> tuple[_Handle, ...]:
        found: list[_Handle] = []
        for position in range(pynvml.nvmlDeviceGetCount()):
            parent = pynvml.nvmlDeviceGetHandleByIndex(position)
            parent_uuid = _text(pynvml.nvmlDeviceGetUUID(parent))
            instances = self._instances(parent)
            for handle in [parent] if instances is None else instances:
                uuid = DeviceUuid(_text(pynvml.nvmlDeviceGetUUID(handle)))
                node = self._numa_node(parent)
                info = DeviceInfo(uuid, len(found), _name(handle, parent), _memory(handle)[0], node)
                found.append(_Handle(info, handle, parent, parent_uuid))
        return tuple(replace(one, info=replace(one.info, nvlink_peers=_nvlink_peers(one, found))) for one in found)

    def _numa_node(self, parent: Any) -> int:
        """Return the memory node of a device: what the kernel says of its bus; -1: not known."""
        if self._simulate:  # their places on the bus are nobody's, or another device's
            return -1
        try:
            return numa_node_at(_text(pynvml.nvmlDeviceGetPciInfo(parent).busId))
        except pynvml.NVMLError:
            return -1

    @staticmethod
    def _instances(parent: Any) -> list[Any] | None:
        """Return the MIG instances of a GPU, None when it is whole: in MIG mode nothing runs but in an instance."""
        instances: list[Any] = []
        try:
            if pynvml.nvmlDeviceGetMigMode(parent)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
                return None
            for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
                with contextlib.suppress(pynvml.NVMLError_NotFound):
                    instances.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, slot))
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
            return None
        return instances

    def _watch_events(self) -> None:
        """Subscribe to Xid events; a driver without them is still watched by polling."""
        with contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
            self._events = pynvml.nvmlEventSetCreate()
            for uuid in {item.parent_uuid for item in self._handles}:
                parent = next(item.parent for item in self._handles if item.parent_uuid == uuid)
                pynvml.nvmlDeviceRegisterEvents(parent, pynvml.nvmlEventTypeXidCriticalError, self._events)

    def start(self, deliver: Callable[[tuple[DeviceLook, ...]], None]) -> None:
        """Look every LOOK_INTERVAL_S, and at every Xid, on a thread of its own; `deliver` is called there."""
        self._thread = threading.Thread(target=self._run, args=(deliver,), name="nvml", daemon=True)
        self._thread.start()

    def _run(self, deliver: Callable[[tuple[DeviceLook, ...]], None]) -> None:
        while not self._stopping.is_set():
            xids = self._wait_for_xids(LOOK_INTERVAL_S)
            if not self._stopping.is_set():
                deliver(self.look(xids))
        self._shut_down()

    def _wait_for_xids(self, timeout_s: float) -> dict[str, list[int]]:
        """Return the Xid events, by UUID of the whole GPU, after at most about `timeout_s`."""
        found: dict[str, list[int]] = {}
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and not self._stopping.is_set() and not found:
            if self._events is None:
                self._stopping.wait(left)
                continue
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, max(1, round(left * 1000)))
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError:
                # A lost device can fail the wait at once, again and again: the look itself finds out which.
                self._stopping.wait(min(left, 0.1))
                continue
            with contextlib.suppress(pynvml.NVMLError):
                uuid = _text(pynvml.nvmlDeviceGetUUID(event.device))
                found.setdefault(uuid, []).append(int(event.eventData))
        return found

    def look(self, xids: dict[str, list[int]] | None = None) -> tuple[DeviceLook, ...]:
        """Look at every device now; `xids` are the events since the last look."""
        looks = tuple(self._look_at(item, tuple((xids or {}).get(item.parent_uuid, ()))) for item in self._handles)
        self._known = {process.pid: process for look in looks for process in look.processes}
        return looks

    def _look_at(self, item: _Handle, xids: tuple[int, ...]) -> DeviceLook:
        try:
            _, used = _memory(item.handle)
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(item.handle)
        except pynvml.NVMLError as error:
            return DeviceLook(item.info.uuid, error=f"NVML: {error}", xids=xids)
        clients = _mps_clients(item.handle)
        listed = [self._process(process.pid, int(process.usedGpuMemory or 0), clients) for process in running]
        processes = tuple(process for process in listed if process.name != _MPS_SERVER)
        mps = bool(clients) or len(processes) < len(listed)
        return DeviceLook(item.info.uuid, "", used, processes, xids, _needs_reset(item.parent), mps)

    def _process(self, pid: int, memory_used_bytes: int, clients: set[int]) -> DeviceProcess:
        """Return a process; for one that was there at the last look its name and region are not asked for again."""
        known = self._known.get(pid)
        if known is None:
            environment = environment_of(pid)
            region, mps = region_in(environment), names_mps(environment) or pid in clients
            return DeviceProcess(pid, _process_name(pid), memory_used_bytes, region, mps)
        mps = known.mps_client or pid in clients
        same = (known.memory_used_bytes, known.mps_client) == (memory_used_bytes, mps)
        return known if same else replace(known, memory_used_bytes=memory_used_bytes, mps_client=mps)

    def close(self) -> None:
        """Stop looking and close NVML.

        Nobody waits for the thread that looks: inside NVML it may wait for seconds, or hang. It closes NVML when it
        comes out, if the process is still there.
        """
        self._stopping.set()
        if self._thread is None:
            self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
            pynvml.nvmlShutdown()


def _needs_reset(parent: Any) -> bool:
    """Tell whether the driver asks for a recovery action; False where it does not know."""
    if _RECOVERY_FIELD is None:
        return False
    try:
        value = pynvml.nvmlDeviceGetFieldValues(parent, [_RECOVERY_FIELD])[0]
    except pynvml.NVMLError:
        return False
    return value.nvmlReturn == pynvml.NVML_SUCCESS and int(value.value.uiVal) != _RECOVERY_NONE
