"""The hook: C code that runs inside the user's process, as ``libsharepod.so`` beside this file.

The library is preloaded, never imported. This package only says where it is; it may not load it.
"""

from pathlib import Path

LIBRARY = Path(__file__).resolve().parent / "libsharepod.so"
"""The library to put into ``LD_PRELOAD``."""

__all__ = ["LIBRARY"]
