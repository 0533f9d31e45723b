"""Test that driver/cuda.h and the versions in driver.def match NVIDIA's own headers."""

import re
from pathlib import Path

import pytest
from cffi import FFI
from hooklab import compile_c, run

from rig import REPO_ROOT
from sharepod.driver.coverage import plain_name, read_functions

OURS = REPO_ROOT / "driver" / "cuda.h"


@pytest.fixture(scope="module")
def ours() -> FFI:
    """Return our header as a C compiler's preprocessor sees it."""
    text = run(["cc", "-E", "-P", OURS]).stdout
    ffi = FFI()
    ffi.cdef(text[text.index("typedef int CUresult;") : text.index("_Static_assert")])
    return ffi


def printed(directory: Path, toolkit: Path, expressions: list[str]) -> list[int]:
    """Return the value of each expression with NVIDIA's header."""
    values = "\n".join(f'printf("%lld\\n", (long long)({expression}));' for expression in expressions)
    source = (
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{toolkit / "cuda.h"}"\nint main(void) {{\n{values}\n}}\n'
    )
    (directory / "probe.c").write_text(source)
    # The headers show the types of CUDA 2 only with this macro, which NVIDIA's own sources set.
    program = compile_c(directory / "probe", "-D__CUDA_API_VERSION_INTERNAL", directory / "probe.c")
    return [int(line) for line in run([program]).stdout.splitlines()]


def fields(kind: "FFI.CType", prefix: str = "", begins: int = 0) -> dict[str, int]:
    """Return where each field of a structure begins, and those of the structures and unions inside it."""
    found: dict[str, int] = {}
    for name, field in kind.fields or []:
        begin = begins + field.offset
        if name:
            found[prefix + name] = begin
        if field.type.kind in {"struct", "union"}:
            found |= fields(field.type, f"{prefix}{name}." if name else prefix, begin)
    return found


def test_every_field_is_where_nvidias_header_has_it(ours: FFI, toolkit: Path, tmp_path: Path) -> None:
    kinds = {name: ours.typeof(name) for name in ours.list_types()[0]}
    expected = {f"sizeof({name})": ours.sizeof(kind) for name, kind in kinds.items() if kind.kind != "function"}
    for name, kind in kinds.items():
        if kind.kind in {"struct", "union"}:
            expected |= {f"offsetof({name}, {field})": begin for field, begin in fields(kind).items()}
    assert len(expected) > 400
    told = printed(tmp_path, toolkit, list(expected))
    assert dict(zip(expected, told, strict=True)) == expected


def test_every_constant_has_the_value_of_nvidias_header(toolkit: Path, tmp_path: Path) -> None:
    found = re.findall(
        r"^  (CU\w+) = (\w+),|^#define (CU_STREAM\w+) +\(\(CUstream\)\(uintptr_t\)(\d)\)",
        OURS.read_text(),
        re.MULTILINE,
    )
    values = {name or other: int(value or number, 0) for name, value, other, number in found}
    assert len(values) > 90
    assert dict(zip(values, printed(tmp_path, toolkit, list(values)), strict=True)) == values


def test_the_versions_are_those_of_nvidias_types(toolkit: Path) -> None:
    """Compare with NVIDIA's types: a type's name holds function, version, and a suffix for per-thread streams."""
    text = "".join((toolkit / f"{name}Typedefs.h").read_text() for name in ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU"))
    theirs = set(re.findall(r"\bPFN_(cu\w+?)_v(\d+)(?:_pt[sd][sz])?\)?\b", text))
    rows = {(plain_name(function.name), str(function.since)) for function in read_functions()}
    assert len(theirs) > 450
    assert sorted(theirs - rows) == []
