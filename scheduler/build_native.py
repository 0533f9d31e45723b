"""Builds `sharepod.scheduler._native`: placement in C for Python (cffi, API mode, abi3).

Prototypes and structs are taken from the marked block of `placement.h`, so Python and C cannot drift.
Paths are relative to the root of the repository, where setuptools runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))  # setuptools runs this file without the root on the path

from sharepod.agent.build_native import cdef_block  # noqa: E402

ffi = FFI()
ffi.cdef(cdef_block((_ROOT / "scheduler" / "placement" / "csrc" / "placement.h").read_text(encoding="utf-8")))
ffi.set_source(
    "sharepod.scheduler._native",
    '#include "scheduler/placement/csrc/placement.h"',
    sources=sorted(str(path.relative_to(_ROOT)) for path in (_ROOT / "scheduler" / "placement" / "csrc").glob("*.c")),
    depends=["scheduler/placement/csrc/placement.h"],
    include_dirs=["."],
    extra_compile_args=[
        "-std=gnu11",
        "-O3",
        "-fno-signed-zeros",
        "-fno-trapping-math",
        "-g",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
    ],
    libraries=["m"],
    py_limited_api=True,
)
