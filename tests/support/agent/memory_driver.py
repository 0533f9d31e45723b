"""The driver, its errors and the stream, for memory_program.py and the kinds of memory that it takes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import c_void_p
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))
from rig.structs import Location

cuda = ctypes.CDLL("libcuda.so.1")
OUT_OF_MEMORY = 2
FILE = 1  # a handle type: a file descriptor

Give = Callable[[], None]


class Refused(Exception):
    """The driver's result, where it is not success."""


def call(name: str, *arguments: object) -> None:
    """Call a function of the driver."""
    result = getattr(cuda, name)(*arguments)
    if result:
        raise Refused(result)


ON_DEVICE = Location(1, 0)
stream = c_void_p()
OWN_STREAM = c_void_p()  # of the thread, in functions for it
shown: list[Callable[[], str]] = []


def bring_to_an_end() -> None:
    """Wait for the stream: what was freed in it is free then."""
    call("cuStreamSynchronize", stream)
