"""Builds `sharepod.agent._native`: arbiter, policy and region code for Python (cffi, API mode, abi3).

Prototypes and structs are taken from the marked block of `arbiter.h`, so Python and C cannot drift. The rows of
`usage.def`, a share's account, become fields of a struct in that block and a Python module, `_native_usage.py`. Paths
are relative to the root of the repository, where setuptools runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from cffi import FFI

_BLOCK = re.compile(r"^/\* cdef begin.*?\n(.*?)^/\* cdef end \*/", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r'^SP_USAGE\((\w+), (\w+), "(\w*)",\s((?:\s*"[^"\\]*")+)\)$', re.MULTILINE)
_INCLUDED = re.compile(r'#define SP_USAGE.*\n#include "agent/arbiter/usage.def"\n')
_MODULE = '''"""Generated from usage.def by build_native.py."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a share's account on one device."""

{fields}

METRICS = {metrics!r}
"""Of each number, the metric that shows it (empty: none does) and its meaning."""
'''


class UsageRow(NamedTuple):
    """A row of usage.def."""

    c_type: str
    name: str
    metric: str
    meaning: str


def usage_rows(table: str) -> list[UsageRow]:
    """Return the rows in `table`, the text of usage.def. Raises ValueError when one is malformed."""
    rows = [
        UsageRow(c_type, name, metric, "".join(re.findall(r'"([^"]*)"', meaning)))
        for c_type, name, metric, meaning in _ROW.findall(table)
    ]
    if len(rows) != len(re.findall(r"^SP_USAGE\(", table, re.MULTILINE)):
        raise ValueError('agent/arbiter/usage.def: a row is not SP_USAGE(C type, name, "metric or nothing", "meaning")')
    return rows


def usage_fields(rows: list[UsageRow]) -> str:
    """Return the C fields that the rows stand for in `struct sp_usage`."""
    return "".join(f"  {row.c_type} {row.name};\n" for row in rows)


def usage_module(rows: list[UsageRow]) -> str:
    """Return the text of the Python module that the rows stand for."""
    fields = "".join(f'    {row.name}: int = 0\n    """{row.meaning}"""\n' for row in rows)
    return _MODULE.format(fields=fields, metrics={row.name: (row.metric, row.meaning) for row in rows})


def cdef_block(header: str) -> str:
    """Return the text between the cdef markers in the text of a header, without comments. Raises ValueError."""
    found = _BLOCK.search(header)
    if found is None:
        raise ValueError("agent/arbiter/arbiter.h has no cdef block: keep its markers")
    return re.sub(r"/\*.*?\*/", "", found.group(1), flags=re.DOTALL)


_ROOT = Path(__file__).resolve().parent.parent


def _c_files(pattern: str) -> list[str]:
    """Return the files below the root that match a glob, as paths from there, without those that cffi generates."""
    paths = (path.relative_to(_ROOT) for path in _ROOT.glob(pattern))
    return sorted(str(path) for path in paths if not path.name.startswith("_native"))


def _arbiter_block() -> str:
    """Return the block of arbiter.h with the fields of usage.def filled in, and write `_native_usage.py`."""
    agent = _ROOT / "agent"
    rows = usage_rows((agent / "arbiter" / "usage.def").read_text(encoding="utf-8"))
    module, text = agent / "_native_usage.py", usage_module(rows)
    if not module.exists() or module.read_text(encoding="utf-8") != text:
        module.write_text(text, encoding="utf-8")
    return _INCLUDED.sub(usage_fields(rows), cdef_block((agent / "arbiter" / "arbiter.h").read_text(encoding="utf-8")))


ffi = FFI()
ffi.cdef(_arbiter_block())
ffi.cdef("#define SP_ABI ...\n#define SP_DEVICES_MAX ...\n#define SP_SLOTS_MAX ...\nint sp_region_error(const char *);")
ffi.set_source(
    "sharepod.agent._native",
    '#include "agent/arbiter/arbiter.h"\n#include "region/region.h"',
    sources=[*_c_files("agent/**/*.c"), *(f"region/{part}.c" for part in ("region", "guard", "files", "slots"))],
    depends=[*_c_files("agent/**/*.h"), "agent/arbiter/usage.def", "region/region.h"],
    include_dirs=["."],
    extra_compile_args=["-std=gnu11", "-O2", "-g", "-fvisibility=hidden", "-Wall", "-Wextra"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
