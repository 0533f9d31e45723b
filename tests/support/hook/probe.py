"""What the scripts of these tests see: the recording driver by handle, and the counters of the test's gate.

Runs inside a process that has the test hook preloaded; a script begins with ``from probe import *``.
"""

import ctypes
from ctypes import byref, c_int, c_uint, c_uint64

U64 = c_uint64
main = ctypes.CDLL(None, use_errno=True)
cuda = ctypes.CDLL("libcuda.so.1", use_errno=True)
log_fields = [
    "enters",
    "leaves",
    "synced",
    "captures_begun",
    "captures_ended",
    "streams_forgotten",
    "contexts_forgotten",
    "attaches",
    "context_changes",
    "units_changed",
    "to_device_bytes",
    "to_host_bytes",
    "to_device",
    "to_host",
    "key",
    "stream",
    "per_thread",
    "left_with",
    "forgotten",
    "passed",
]


class GateLog(ctypes.Structure):
    """The counters of test_gate.c."""

    _fields_ = [(name, c_uint64) for name in log_fields]


class Seen(ctypes.Structure):
    """What the driver saw of one function."""

    _fields_ = [("name", ctypes.c_char_p), ("calls", c_int), ("result", c_int), ("arguments", c_uint64 * 11)]


log = GateLog.in_dll(main, "test_log")
limit = c_uint64.in_dll(main, "test_memory_limit_bytes")
used = (c_uint64 * 8).in_dll(main, "test_memory_used_bytes")
attach_fails = c_int.in_dll(main, "test_attach_fails")
current_device = c_int.in_dll(cuda, "fake_current_device")
capture_status = c_int.in_dll(cuda, "fake_capture_status")
primary_active = c_int.in_dll(cuda, "fake_primary_active")
current_context = c_uint64.in_dll(cuda, "fake_current_context")
next_address = c_uint64.in_dll(cuda, "fake_next_address")
_fake_seen = cuda.fake_seen
_fake_seen.restype = ctypes.POINTER(Seen)


def seen(name: str) -> Seen:
    """Return the driver's record of a function; set ``result`` to make its next calls fail."""
    record: Seen = _fake_seen(name.encode()).contents
    return record


def alloc(size: int, name: str = "cuMemAlloc_v2", *more: c_uint64) -> tuple[int, int]:
    """Allocate; return the result and the address."""
    address = U64(0)
    result = cuda[name](byref(address), U64(size), *more)
    return result, address.value


def free(address: int, name: str = "cuMemFree_v2", *more: c_uint64) -> int:
    """Free; return the result."""
    return int(cuda[name](U64(address), *more))


__all__ = [
    "U64",
    "alloc",
    "attach_fails",
    "byref",
    "c_int",
    "c_uint",
    "capture_status",
    "ctypes",
    "cuda",
    "current_context",
    "current_device",
    "free",
    "limit",
    "log",
    "main",
    "next_address",
    "primary_active",
    "seen",
    "used",
]
