"""Calls of NVML: the only file that imports pynvml. It decides nothing and keeps no state.

Each call may hang on a sick device, for ever. So no call may be made on a thread that has anything else to do;
`inventory.py` has threads for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml

from sharepod.agent.devices import bus
from sharepod.agent.devices.device import (
    MODE_REASONS,
    MPS_REASON,
    NOT_LISTED,
    DeviceInfo,
    DeviceLook,
    DeviceProcess,
    Unlisted,
)
from sharepod.agent.errors import NOT_SIMULATED, AgentUnavailable
from sharepod.agent.shares.environ import environment_of, names_mps, region_in, without_hook
from sharepod.agent.shares.share import DeviceUuid

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

LIBRARY_NAME: Final = "libnvidia-ml.so.1"
Failure: Final = pynvml.NVMLError
"""The error that every function here raises, unless its docstring names another."""
_UNSUPPORTED: Final = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)
_GONE: Final = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound)
"""The errors that say that the device is missing."""
_NO_INSTANCE: Final = (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument)
"""What drivers answer for a place on a GPU that has no MIG instance."""
_NO_DRIVER: Final = "no GPU on this machine", "install the NVIDIA driver, or use --simulate 1xH200"
_WHY_CLOSED: Final = {
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver's library and its kernel module are of different versions, as after an upgrade",
        "reboot, or load the module anew",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the driver's kernel module is not loaded, or there is no GPU",
        "look at dmesg, `modprobe nvidia`, or use --simulate 1xH200",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "the devices' files may not be opened",
        "run as a user who may open /dev/nvidia*, or give the container its devices",
    ),
}
"""By NVML's error: why NVML cannot be opened, and the remedy."""
_MPS_SERVER: Final = "nvidia-cuda-mps"
"""The name of nvidia-cuda-mps-server, cut to the length that the kernel keeps."""
_RECOVERY_NONE: Final = 0
"""The recovery action of a GPU that needs none (nvml.h)."""
_RECOVERY_FIELD: Final = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
"""None: this version of pynvml cannot ask for it."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A device with its NVML handle."""

    info: DeviceInfo
    handle: Any
    gpu: Any
    """The handle of the whole GPU: `handle` itself, unless that is a MIG instance."""
    gpu_uuid: str


def load_library(path: str) -> None:
    """Load the simulated NVML from `path`: pynvml loads NVML by its name, and then gets this library.

    Raises AgentUnavailable.
    """
    try:
        ctypes.CDLL(path)
    except OSError as error:
        raise AgentUnavailable(f"simulated NVML: {error}: build it with `make build`") from None


def open_nvml(simulate: str) -> None:
    """Open NVML; `simulate` names simulated devices. Raises AgentUnavailable when there is no driver or no device."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if simulate:
            raise AgentUnavailable(
                f"devices {simulate} {NOT_SIMULATED}: NVML says {error}: "
                "give known ones like 2xH200, room for their state, and a known $SIMGPU_PROFILE and a writable "
                "$SIMGPU_STATE if they are set"
            ) from None
        cause, remedy = _WHY_CLOSED.get(error.value, _NO_DRIVER)
        raise AgentUnavailable(f"{cause}: NVML says {error}: {remedy}") from None


def close_nvml() -> None:
    """Close NVML. No other thread may be inside it."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def driver_version() -> str:
    """Return the driver's version."""
    return _text(pynvml.nvmlSystemGetDriverVersion())


def gpu_count() -> int:
    """Return how many GPUs NVML counts, lost ones among them."""
    return int(pynvml.nvmlDeviceGetCount())


def list_gpu(position: int, *, simulated: bool) -> tuple[Handle | Unlisted, ...]:
    """Return the GPU at a position of NVML's list, or in MIG mode its instances. Their index is -1: not known yet.

    An instance, or a GPU, that cannot be described is returned as Unlisted. `simulated`: it has no place on the bus.
    """
    gpu = pynvml.nvmlDeviceGetHandleByIndex(position)
    instances = _instances(gpu)
    found: list[Handle | Unlisted] = []
    for handle in [gpu] if instances is None else instances:
        try:
            found.append(_describe(handle, gpu, simulated=simulated))
        except pynvml.NVMLError as error:
            found.append(Unlisted(position, -1, fault_of(error), _uuid(handle), _address(gpu)))
    return tuple(found)


def find(uuid: str, *, simulated: bool) -> Handle:
    """Return the device with this UUID; its index is -1: not known. `simulated` as in `list_gpu`."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    gpu = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG") else handle
    return _describe(handle, gpu, simulated=simulated)


def with_peers(handles: Sequence[Handle]) -> tuple[Handle, ...]:
    """Return the devices, each with the indices of its NVLink peers."""
    return tuple(replace(one, info=replace(one.info, nvlink_peers=nvlink_peers(one, handles))) for one in handles)


def fault_of(error: Exception) -> str:
    """Return what an error of NVML means for a device, in words."""
    return NOT_LISTED if isinstance(error, pynvml.NVMLError_NotFound) else f"NVML: {error}"


def is_gone(error: Exception) -> bool:
    """Tell whether the error says that the device is missing."""
    return isinstance(error, _GONE)


def _describe(handle: Any, gpu: Any, *, simulated: bool) -> Handle:
    """Return a device, without its index. `gpu`: its GPU, which is `handle` itself unless that is a MIG instance."""
    uuid = DeviceUuid(_text(pynvml.nvmlDeviceGetUUID(handle)))
    address = _address(gpu)
    node = -1 if simulated else bus.numa_node_of(address)  # a simulated device has no place on this host's bus
    info = DeviceInfo(uuid, -1, _name(handle, gpu), _memory(handle)[0], node, address=address)
    return Handle(info, handle, gpu, _text(pynvml.nvmlDeviceGetUUID(gpu)))


def _uuid(handle: Any) -> DeviceUuid | None:
    """Return a device's UUID; None: it cannot tell."""
    try:
        return DeviceUuid(_text(pynvml.nvmlDeviceGetUUID(handle)))
    except pynvml.NVMLError:
        return None


def _address(gpu: Any) -> str:
    """Return a GPU's address on the PCI bus as the kernel writes it; empty: not known."""
    try:
        return bus.address_of(_text(pynvml.nvmlDeviceGetPciInfo(gpu).busId))
    except pynvml.NVMLError:
        return ""


def _instances(gpu: Any) -> list[Any] | None:
    """Return the MIG instances of a GPU; None if it is not in MIG mode. In that mode programs run in instances only."""
    instances: list[Any] = []
    try:
        if pynvml.nvmlDeviceGetMigMode(gpu)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return None
        for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with contextlib.suppress(*_NO_INSTANCE):
                instances.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))
    except _UNSUPPORTED:
        return None
    return instances


def _text(value: str | bytes) -> str:
    """Return a text of NVML, which some versions of pynvml return as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _memory(handle: Any) -> tuple[int, int]:
    """Return (total, used) bytes; zeros if the device does not tell (unified memory)."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:
        return 0, 0
    return int(memory.total or 0), int(memory.used or 0)


def _name(handle: Any, gpu: Any) -> str:
    """Return a device's product name. Older drivers know none for a MIG instance: then it is that of the GPU."""
    try:
        return _text(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError_NotSupported:
        return _text(pynvml.nvmlDeviceGetName(gpu))


def _mps_clients(handle: Any) -> set[int]:
    """Return the pids of the processes that use the device through MPS; none if the driver does not tell."""
    try:
        return {process.pid for process in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)}
    except pynvml.NVMLError:
        return set()


def nvlink_peers(one: Handle, others: Sequence[Handle]) -> tuple[int, ...]:
    """Return the indices of the GPUs among `others` that NVLink connects `one` to, also through a switch.

    In MIG mode there are none.
    """
    return tuple(other.info.index for other in others if other.gpu_uuid != one.gpu_uuid and _linked(one, other))


def _linked(one: Handle, other: Handle) -> bool:
    """Tell whether NVLink connects two GPUs; False if one is a MIG instance, or the driver does not tell."""
    if one.handle is not one.gpu or other.handle is not other.gpu:
        return False
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:  # a GPU that cannot tell has none
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _process_name(pid: int) -> str:
    """Return the name of a process in printable letters; "?" if it is gone."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"
    # A process chooses its name: no control character in it may reach the operator's terminal.
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _running(handle: Any) -> dict[int, int]:
    """Return the processes that compute or draw on the device, each with the memory that it takes there.

    A process that does both is in both of NVML's lists, and each list has all of its memory.
    """
    running = list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    with contextlib.suppress(pynvml.NVMLError):  # some devices do not tell, which is no fault
        running += pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    found: dict[int, int] = {}
    for process in running:
        found[process.pid] = max(found.get(process.pid, 0), int(process.usedGpuMemory or 0))
    return found


def look_at(item: Handle, xids: tuple[int, ...], known: dict[int, DeviceProcess]) -> DeviceLook:
    """Look at a device now; raises nothing. `xids`: events since the last look; `known`: the processes of that look."""
    try:
        _, used = _memory(item.handle)
        running = _running(item.handle)
    except pynvml.NVMLError as error:
        return DeviceLook(item.info.uuid, error=fault_of(error), gone=is_gone(error), xids=xids)
    clients = _mps_clients(item.handle)
    listed = [_process(pid, memory, known.get(pid), clients) for pid, memory in running.items()]
    processes = tuple(process for process in listed if process.name != _MPS_SERVER)
    mps = bool(clients) or len(processes) < len(listed)
    unfit = MPS_REASON if mps else _mode_reason(item.gpu)
    return DeviceLook(
        item.info.uuid,
        memory_used_bytes=used,
        processes=processes,
        xids=xids,
        needs_reset=_needs_reset(item.gpu),
        unfit=unfit,
    )


def _process(pid: int, memory_used_bytes: int, known: DeviceProcess | None, clients: set[int]) -> DeviceProcess:
    """Return a process on a device. `clients`: the pids that use the device through MPS.

    `known`: the process as of the last look; then its name and its environment are not read again. None: it is new.
    """
    if known is None:
        environment = environment_of(pid)
        region, mps = region_in(environment), names_mps(environment) or pid in clients
        obstacle = without_hook(pid, region) if region else ""
        return DeviceProcess(pid, _process_name(pid), memory_used_bytes, region, mps, obstacle)
    mps = known.mps_client or pid in clients
    same = (known.memory_used_bytes, known.mps_client) == (memory_used_bytes, mps)
    return known if same else replace(known, memory_used_bytes=memory_used_bytes, mps_client=mps)


def _mode_reason(gpu: Any) -> str:
    """Return why the compute mode of a GPU refuses programs; empty if it does not, or is not known."""
    try:
        return MODE_REASONS.get(int(pynvml.nvmlDeviceGetComputeMode(gpu)), "")
    except pynvml.NVMLError:
        return ""


def _needs_reset(gpu: Any) -> bool:
    """Tell whether the driver recommends a recovery action for a GPU. False, too, if driver or pynvml cannot tell."""
    if _RECOVERY_FIELD is None:
        return False
    try:
        value = pynvml.nvmlDeviceGetFieldValues(gpu, [_RECOVERY_FIELD])[0]
    except pynvml.NVMLError:
        return False
    return value.nvmlReturn == pynvml.NVML_SUCCESS and int(value.value.uiVal) != _RECOVERY_NONE


class XidEvents:
    """The Xid events of one GPU. One thread uses it."""

    def __init__(self, gpu: Any) -> None:
        """Take NVML's handle of the GPU. NVML is not called yet."""
        self._gpu = gpu
        self._set: Any = None
        self._unsupported = False

    def subscribe(self) -> None:
        """Subscribe, if that has not been done. If the driver has no events, only the looks find faults."""
        if self._set is not None or self._unsupported:
            return
        events: Any = None
        try:
            events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(self._gpu, pynvml.nvmlEventTypeXidCriticalError, events)
            self._set = events
        except pynvml.NVMLError as error:  # if the device is lost, this is tried again before the next look
            self._unsupported = isinstance(error, _UNSUPPORTED)
            if events is not None:
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlEventSetFree(events)

    def wait(self, timeout_s: float, stopping: threading.Event) -> tuple[int, ...]:
        """Wait for an event of the GPU, and return its Xid; nothing if none comes within about `timeout_s`.

        Nothing, too, soon after `stopping` is set. Raises nothing.
        """
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and not stopping.is_set():
            if self._set is None:
                stopping.wait(left)
                continue
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, max(1, round(left * 1000)))
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError:
                # On a lost device the wait may fail at once, each time. The look that follows finds the loss.
                stopping.wait(min(left, 0.1))
                continue
            return (int(event.eventData),)
        return ()
