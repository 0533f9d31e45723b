"""Tunes the garbage collector and malloc for ten thousand connected agents."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

COLLECTION: Final = (50_000, 50, 1000)
"""The thresholds of gc.set_threshold. The agents' reports are a million objects without cycles, of which tens of
thousands are replaced every second. At its usual pace the collector would go through all of them every few seconds, and
each time nothing else would run for half a second."""


_ARENA_MAX: Final = -8
"""M_ARENA_MAX of glibc's malloc.h: the option that bounds the number of heaps."""


def tune() -> None:
    """Have the collector nearly always look at young objects only (COLLECTION), and malloc keep memory in one heap.

    Call it before the first thread starts. Otherwise each thread gets a heap of its own, and no other thread uses the
    free memory of that heap.
    """
    gc.set_threshold(*COLLECTION)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
