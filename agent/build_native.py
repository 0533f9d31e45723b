"""Builds `sharepod.agent._native`: arbiter, policy and region code for Python (cffi, API mode, abi3).

Prototypes and structs are taken from the marked block of `arbiter.h`, so Python and C cannot drift.
Paths are relative to the root of the repository, where setuptools runs.
"""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

_BLOCK = re.compile(r"^/\* cdef begin.*?\n(.*?)^/\* cdef end \*/", re.DOTALL | re.MULTILINE)


def cdef_block(header: str) -> str:
    """Return the text between the cdef markers of a header, without comments."""
    found = _BLOCK.search(header)
    if found is None:
        raise ValueError("agent/arbiter.h has no cdef block: keep its markers")
    return re.sub(r"/\*.*?\*/", "", found.group(1), flags=re.DOTALL)


_ROOT = Path(__file__).resolve().parent.parent


def _found(pattern: str) -> list[str]:
    """Return the C files that match, sorted, without those that cffi generates."""
    paths = (path.relative_to(_ROOT) for path in _ROOT.glob(pattern))
    return sorted(str(path) for path in paths if not path.name.startswith("_native"))


ffi = FFI()
ffi.cdef(cdef_block((_ROOT / "agent" / "arbiter.h").read_text(encoding="utf-8")))
ffi.cdef("#define SP_ABI ...\n#define SP_DEVICES_MAX ...\n#define SP_SLOTS_MAX ...\nint sp_region_error(const char *);")
ffi.set_source(
    "sharepod.agent._native",
    '#include "arbiter.h"\n#include "region.h"',
    sources=[*_found("agent/*.c"), "hook/guard.c", "hook/region.c"],
    depends=[*_found("agent/*.h"), "hook/region.h"],
    include_dirs=["agent", "hook"],
    extra_compile_args=["-std=gnu11", "-O2", "-g", "-fvisibility=hidden", "-Wall", "-Wextra"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
