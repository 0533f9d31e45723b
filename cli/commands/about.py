"""Tells what this installation is: its version, its region ABI, and the parts that were built."""

from __future__ import annotations

import importlib

from sharepod import __version__
from sharepod.hook import LIBRARY
from sharepod.simgpu import LIBRARY_DIR


def features() -> list[str]:
    """Return the parts of this installation that were built."""
    parts = {"hook": LIBRARY, "simulated-gpu": LIBRARY_DIR / "libcuda.so.1"}
    return [name for name, path in parts.items() if path.is_file()]


def region_abi() -> str:
    """Return the region ABI that this installation's agent creates, from its C code."""
    try:
        native = importlib.import_module("sharepod.agent._native")
    except ImportError:
        return "unknown (not built)"
    return str(native.lib.SP_ABI)


def version_text() -> str:
    """Return the line of `sharepod --version`."""
    built = ", ".join(features()) or "none built"
    return f"sharepod {__version__}, region ABI {region_abi()}, features: {built}"
