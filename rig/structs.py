"""The structures of the driver's calls for memory and copies, as in cuda.h, for programs under test.

This is no test module. It calls nothing.
"""

import ctypes
from ctypes import c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any


def fields(**members: object) -> list[Any]:
    """Return the members in the form that ctypes takes."""
    return list(members.items())


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = fields(type=c_int, id=c_int)


class Prop(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = fields(type=c_int, handle_types=c_int, location=Location, metadata=c_void_p, flags=c_ubyte * 8)


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = fields(location=Location, flags=c_int)


class PoolProps(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = fields(
        type=c_int, handle_types=c_int, location=Location, attributes=c_void_p, max_bytes=c_size_t, usage=c_ushort,
        reserved=c_ubyte * 54,
    )  # fmt: skip


class Array(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = fields(width=c_size_t, height=c_size_t, format=c_int, channels=c_uint)


class Array3D(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = fields(width=c_size_t, height=c_size_t, depth=c_size_t, format=c_int, channels=c_uint, flags=c_uint)


class End2D(ctypes.Structure):
    """One half of a CUDA_MEMCPY2D."""

    _fields_ = fields(
        x=c_size_t, y=c_size_t, kind=c_uint, host=c_void_p, device=c_uint64, array=c_void_p, pitch=c_size_t
    )


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = fields(source=End2D, target=End2D, width=c_size_t, height=c_size_t)


class End3D(ctypes.Structure):
    """One half of a CUDA_MEMCPY3D."""

    _fields_ = fields(
        at=c_size_t * 4, kind=c_uint, host=c_void_p, device=c_uint64, array=c_void_p, reserved=c_void_p,
        pitch=c_size_t, height=c_size_t,
    )  # fmt: skip


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER."""

    _fields_ = fields(source=End3D, target=End3D, width=c_size_t, height=c_size_t, depth=c_size_t)


class BatchAttributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = fields(order=c_int, hints=c_int * 4, flags=c_uint)


class BatchEnd(ctypes.Structure):
    """CUmemcpy3DOperand."""

    _fields_ = fields(type=c_uint, where=c_uint64, rest=c_uint64 * 3)


class BatchBox(ctypes.Structure):
    """CUDA_MEMCPY3D_BATCH_OP."""

    _fields_ = fields(source=BatchEnd, target=BatchEnd, size=c_uint64 * 3, order=c_int, flags=c_uint)


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = fields(bytes=ctypes.c_char * 64)


class External(ctypes.Structure):
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC."""

    _fields_ = fields(type=c_int, fd=c_uint64, padding=c_void_p, bytes=c_uint64, flags=c_uint, reserved=c_uint * 16)
