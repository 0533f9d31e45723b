"""Reads what really happened on the simulated devices, without going through the hook, the agent or the driver API.

It owns nothing: every call advances the model to now and copies from the state file. A pid is the one in the reader's
pid namespace. A process that has none there, or has ended, has its pid in its own namespace.
"""

import ctypes
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

_LIBRARY = Path(__file__).parent / "lib" / "libcuda.so.1"
_NO_PARENT = 0xFFFFFFFF
_RECORD = struct.Struct("<IIIiIIQQQQQ")  # struct sg_log_record
_DEVICES, _CONTEXTS, _PROCESSES = 16, 16384, 1024  # the most that a state can have, or more: see model/state.h


class _Device(ctypes.Structure):
    """`struct truth_device` of model/truth.c."""

    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_uint8 * 16),
        ("busy_ns", ctypes.c_uint64),
        ("switches", ctypes.c_uint64),
        ("memory_used_bytes", ctypes.c_uint64),
        ("memory_total_bytes", ctypes.c_uint64),
        ("parent", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Context(ctypes.Structure):
    """`struct truth_context` of model/truth.c."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("pid", ctypes.c_int32),
        ("busy_ns", ctypes.c_uint64),
        ("memory_bytes", ctypes.c_uint64),
        ("alive", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
    )


class _Process(ctypes.Structure):
    """`struct truth_process` of model/truth.c."""

    _fields_ = (
        ("pid", ctypes.c_int32),
        ("owner", ctypes.c_uint32),
        ("contexts_bytes", ctypes.c_uint64),
        ("pools_bytes", ctypes.c_uint64),
        ("physical_bytes", ctypes.c_uint64),
        ("external_bytes", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class DeviceTruth:
    """One device, a GPU or a MIG instance. ``busy_ns`` is the execution time of all contexts, without switches.

    ``index`` counts GPUs and instances. Without MIG it is NVML's index.
    """

    index: int
    uuid: str
    name: str
    busy_ns: int
    switches: int
    memory_used_bytes: int
    memory_total_bytes: int


@dataclass(frozen=True, slots=True)
class ContextTruth:
    """One context, live or ended. ``busy_ns`` is the union of execution over its streams."""

    context: int
    pid: int
    busy_ns: int
    memory_bytes: int
    alive: bool


@dataclass(frozen=True, slots=True)
class ProcessTruth:
    """Device memory of one process, in bytes: each byte of a device counts for one process.

    ``contexts_bytes`` belongs to the contexts: linear, managed, arrays, modules, the contexts' own overhead.
    ``pools_bytes`` is what its pools have reserved. ``physical_bytes`` is what it holds of physical memory; shared
    memory counts for the exporter while the exporter holds it. ``external_bytes`` is imported from other APIs.
    """

    pid: int
    contexts_bytes: int
    pools_bytes: int
    physical_bytes: int
    external_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Return the sum of all kinds."""
        return self.contexts_bytes + self.pools_bytes + self.physical_bytes + self.external_bytes


@dataclass(frozen=True, slots=True)
class KernelTruth:
    """Ended work: a kernel, graph launch ("graph"), memset or device-to-device copy ("memset", "memcpy")."""

    context: int
    pid: int
    stream: int
    name: str
    submitted_ns: int
    started_ns: int
    ended_ns: int
    busy_ns: int


def _load() -> ctypes.CDLL:
    """Load the driver's library, and declare the functions of model/truth.c."""
    library = ctypes.CDLL(str(_LIBRARY), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    handle = ctypes.c_void_p
    library.simgpu_truth_open.restype = handle
    library.simgpu_truth_open.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
    library.simgpu_truth_close.restype = None
    library.simgpu_truth_close.argtypes = (handle,)
    library.simgpu_truth_devices.restype = ctypes.c_uint32
    library.simgpu_truth_devices.argtypes = (handle, ctypes.POINTER(_Device), ctypes.c_uint32)
    library.simgpu_truth_contexts.restype = ctypes.c_uint32
    library.simgpu_truth_contexts.argtypes = (handle, ctypes.c_uint32, ctypes.POINTER(_Context), ctypes.c_uint32)
    library.simgpu_truth_processes.restype = ctypes.c_uint32
    library.simgpu_truth_processes.argtypes = (handle, ctypes.c_uint32, ctypes.POINTER(_Process), ctypes.c_uint32)
    library.simgpu_truth_kernels.restype = ctypes.c_uint64
    library.simgpu_truth_kernels.argtypes = (handle, ctypes.c_void_p, ctypes.c_uint64)
    library.simgpu_truth_name.restype = ctypes.c_char_p
    library.simgpu_truth_name.argtypes = (handle, ctypes.c_uint32)
    for name in ("inject_xid", "serve_by_mps", "draw", "hang", "mute", "set_compute_mode"):
        function = getattr(library, f"simgpu_truth_{name}")
        function.restype, function.argtypes = None, (handle, ctypes.c_uint32, ctypes.c_uint32)
    for function in (library.simgpu_truth_recover, library.simgpu_truth_refuse_nvml):
        function.restype, function.argtypes = None, (handle, ctypes.c_uint32)
    library.simgpu_truth_reload_driver.restype = None
    library.simgpu_truth_reload_driver.argtypes = (handle,)
    return library


class Truth:
    """An observer of one state file. The file must exist: its first client makes it."""

    def __init__(self, state_path: str | os.PathLike[str]) -> None:
        """Map ``state_path``. Raises OSError (FileNotFoundError: no client has made it yet)."""
        self._library = _load()
        error = ctypes.c_int()
        path = os.fspath(state_path)
        self._state: int | None = self._library.simgpu_truth_open(path.encode(), ctypes.byref(error))
        if not self._state:
            raise OSError(error.value, os.strerror(error.value), path)

    def close(self) -> None:
        """Unmap the state file."""
        if self._state:
            self._library.simgpu_truth_close(self._state)
            self._state = None

    def __enter__(self) -> Self:
        """Return the observer; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    @staticmethod
    def now_ns() -> int:
        """Return the simulator's clock, CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def devices(self) -> list[DeviceTruth]:
        """Return all devices, in the order of their indices."""
        room = (_Device * _DEVICES)()
        count = self._library.simgpu_truth_devices(self._state, room, len(room))
        return [
            DeviceTruth(
                index,
                f"{'GPU' if device.parent == _NO_PARENT else 'MIG'}-{UUID(bytes=bytes(device.uuid))}",
                device.name.decode(),
                device.busy_ns,
                device.switches,
                device.memory_used_bytes,
                device.memory_total_bytes,
            )
            for index, device in enumerate(room[:count])
        ]

    def contexts(self, device: int = 0) -> list[ContextTruth]:
        """Return the contexts of a device, live ones first; dead ones keep their busy time."""
        room = (_Context * _CONTEXTS)()
        count = self._library.simgpu_truth_contexts(self._state, device, room, len(room))
        return [ContextTruth(c.id, c.pid, c.busy_ns, c.memory_bytes, bool(c.alive)) for c in room[:count]]

    def processes(self, device: int = 0) -> list[ProcessTruth]:
        """Return the processes that have memory on a device."""
        room = (_Process * _PROCESSES)()
        count = self._library.simgpu_truth_processes(self._state, device, room, len(room))
        return [
            ProcessTruth(p.pid, p.contexts_bytes, p.pools_bytes, p.physical_bytes, p.external_bytes)
            for p in room[:count]
        ]

    def _records(self) -> Iterator[tuple[int, ...]]:
        """Return the kernel log's records of all devices, oldest first, each with the fields of ``sg_log_record``."""
        count = self._library.simgpu_truth_kernels(self._state, None, 0)
        room = ctypes.create_string_buffer(max(count, 1) * _RECORD.size)
        # The log may have grown meanwhile, but no more than `count` records were written.
        count = min(count, self._library.simgpu_truth_kernels(self._state, room, count))
        return _RECORD.iter_unpack(memoryview(room)[: count * _RECORD.size])

    def kernels(self, device: int = 0) -> list[KernelTruth]:
        """Return the log's entries of a device, in order of their end; empty without SIMGPU_LOG_KERNELS."""
        names: dict[int, str] = {}
        kernels = []
        for context, where, _, pid, _, name, stream, submitted_ns, started_ns, ended_ns, busy_ns in self._records():
            if where != device:
                continue
            if name not in names:
                names[name] = self._library.simgpu_truth_name(self._state, name).decode()
            kernels.append(KernelTruth(context, pid, stream, names[name], submitted_ns, started_ns, ended_ns, busy_ns))
        return kernels

    def inject_xid(self, device: int, xid: int) -> None:
        """Report an XID on a device; 48, 74, 79, 94, 95, 119, 120 and 140 also lose the device for all contexts."""
        self._library.simgpu_truth_inject_xid(self._state, device, xid)

    def recover(self, device: int) -> None:
        """Make a lost device work again for new contexts."""
        self._library.simgpu_truth_recover(self._state, device)

    def serve_by_mps(self, device: int, server_pid: int) -> None:
        """Let NVML say that an MPS server with this pid serves the device; 0: none does."""
        self._library.simgpu_truth_serve_by_mps(self._state, device, server_pid)

    def set_compute_mode(self, device: int, mode: int) -> None:
        """Let NVML say that the device has this compute mode (0: default, 2: prohibited, 3: exclusive process)."""
        self._library.simgpu_truth_set_compute_mode(self._state, device, mode)

    def draw(self, device: int, pid: int) -> None:
        """Let NVML list a process among those that draw on the device; 0: none does."""
        self._library.simgpu_truth_draw(self._state, device, pid)

    def hang(self, device: int, *, hangs: bool = True) -> None:
        """Let NVML's calls that talk to the device hang, or let them return again."""
        self._library.simgpu_truth_hang(self._state, device, hangs)

    def mute(self, device: int, *, mute: bool = True) -> None:
        """Let NVML say that it may not tell the device's memory, or let it tell it again."""
        self._library.simgpu_truth_mute(self._state, device, mute)

    def reload_driver(self) -> None:
        """Reload the driver under programs that have opened NVML: all their calls fail until they open it again."""
        self._library.simgpu_truth_reload_driver(self._state)

    def refuse_nvml(self, *, refuses: bool = True) -> None:
        """Let every call of NVML fail, also opening it; or let all of them work again."""
        self._library.simgpu_truth_refuse_nvml(self._state, refuses)
