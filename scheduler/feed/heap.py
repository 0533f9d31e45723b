"""What the garbage collector and malloc are told before ten thousand agents connect."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

COLLECTION: Final = (50_000, 50, 1000)
"""What agents tell is a million objects without cycles, of which tens of thousands are replaced every second. At its
usual pace the collector goes through all of them every few seconds, and nothing else runs for half a second."""


_ARENA_MAX: Final = -8
"""M_ARENA_MAX of glibc's malloc.h."""


def tune() -> None:
    """Have the collector look at young objects only, and keep memory in one heap.

    Call it before the first thread: each thread would get a heap of its own, whose free memory no other thread takes.
    """
    gc.set_threshold(*COLLECTION)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
