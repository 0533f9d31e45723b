"""What a process has to be told before ten thousand agents connect to it: of open files, garbage and memory."""

from __future__ import annotations

import ctypes
import gc
import resource
from typing import Final

COLLECTION: Final = (50_000, 50, 1000)
"""What agents tell is a million objects without cycles, of which tens of thousands are replaced every second. At its
usual pace the collector goes through all of them every few seconds, and nothing else runs for half a second."""


_ARENA_MAX: Final = -8
"""M_ARENA_MAX of glibc's malloc.h."""


def prepare() -> None:
    """Take as many open files as we may, have the collector look at what is young, and keep memory in one heap.

    To be called before the first thread: each would get a heap of its own, and no other takes what is free in it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(*COLLECTION)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
