"""Test that the compiled hook and the simulated driver take, pass on and return what NVIDIA's own types say.

The test reads the compiled code, as the hook's wrappers get their types from macros.
"""

import re
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

import pytest
from debug_info import DebugInfo, Shape
from hooklab import HOOK, compile_c, read_symbols

from sharepod.driver.coverage import plain_name, read_functions
from sharepod.hook import LIBRARY
from sharepod.simgpu import LIBRARY_DIR

Signatures = Mapping[str, list[Shape]]

# Intended differences, by position: 0 is the result, 1 the first parameter. Of a node's parameters the hook reads only
# the type, with which they begin.
BEGINS_WITH_TYPE = {"cuGraphAddNode": {5}, "cuGraphAddNode_v2": {6}, "cuGraphAddNode_v3": {6}}
# The simulated driver has one structure for two versions. These functions use only the fields of the older version.
LONGER_STRUCTURE = {
    "cuGraphAddKernelNode": {5}, "cuGraphAddMemsetNode": {5},
    "cuGraphExecKernelNodeSetParams": {3}, "cuGraphExecMemsetNodeSetParams": {3},
    "cuGraphKernelNodeGetParams": {2}, "cuGraphKernelNodeSetParams": {2},
    "cuGraphMemsetNodeGetParams": {2}, "cuGraphMemsetNodeSetParams": {2},
}  # fmt: skip
WITHOUT_TYPE = {"cuProfilerStart", "cuProfilerStop"}  # the environment has no cudaProfiler.h

# What NVIDIA's headers for graphics need from the headers of others.
GRAPHICS = {
    "GL/gl.h": "typedef unsigned int GLuint, GLenum;\n",
    "vdpau/vdpau.h": "typedef unsigned int VdpDevice, VdpVideoSurface, VdpOutputSurface;\n"
    "typedef int VdpGetProcAddress(VdpDevice, unsigned int, void **);\n",
}
WRONG = {
    "int cuInit(int flags)": {1},
    "long cuDriverGetVersion(int *version)": {0},
    "int cuMemAlloc_v2(unsigned long *address, unsigned bytes)": {2},
    "int cuMemFree_v2(void *address)": {1},
    "int cuMemsetD8_v2(unsigned long target, signed char value, unsigned long count)": {2},
    "int cuMemGetInfo_v2(unsigned *free, unsigned long *total)": {1},
    "int cuParamSetf(void *function, int offset, int value)": {3},
    "int cuIpcOpenMemHandle_v2(unsigned long *address, void *handle, unsigned flags)": {2},
    "int cuCtxSynchronize(int flags)": {1},
    "int cuMemFreeHost(void)": {1},
}


@pytest.fixture(scope="module")
def theirs(toolkit: Path, tmp_path_factory: pytest.TempPathFactory) -> Signatures:
    """Return NVIDIA's type of each function by its exported name.

    The type's name holds the plain name, the version that the function came with, and the kind of default stream.
    """
    directory = tmp_path_factory.mktemp("types")
    for name, text in GRAPHICS.items():
        (directory / name).parent.mkdir()
        (directory / name).write_text(text)
    source = directory / "types.c"
    source.write_text("".join(f"#include <{name}Typedefs.h>\n" for name in ("cuda", "cudaGL", "cudaVDPAU")))
    # The headers show the types of CUDA 2 only with this macro, which NVIDIA's own sources set.
    flags = ["-g", "-fno-eliminate-unused-debug-types", "-D__CUDA_API_VERSION_INTERNAL", f"-I{directory}"]
    info = DebugInfo(compile_c(directory / "types.o", "-c", *flags, f"-I{toolkit}", source))
    types = {name: info.type_of(info.type_of(entry)) for name, entry in info.named("typedef")}
    found = {}
    for function in read_functions():
        suffix = "".join(re.findall("_pt[sd][sz]$", function.name))
        kind = types.get(f"PFN_{plain_name(function.name)}_v{function.since}{suffix}")
        if kind:
            found[function.name] = info.signature(kind)
    assert len(found) > 700
    return found


def differences(ours: Signatures, theirs: Signatures) -> dict[str, set[int]]:
    """Return, for each function that differs, the positions at which it does."""
    found = {}
    for name, signature in ours.items():
        pairs = enumerate(zip_longest(signature, theirs[name], fillvalue=Shape("nothing", 0)))
        found[name] = {position for position, (own, other) in pairs if not own.fits(other)}
    return {name: positions for name, positions in found.items() if positions}


@pytest.mark.parametrize("prefix", ["", "sp_wrap_"])
def test_the_hooks_wrappers_have_nvidias_parameters(prefix: str, theirs: Signatures) -> None:
    info = DebugInfo(LIBRARY)
    functions = dict(info.named("subprogram"))
    ours = {row.name: info.signature(functions[prefix + row.name]) for row in read_symbols()}
    assert differences(ours, theirs) == BEGINS_WITH_TYPE


def test_the_hooks_own_calls_have_nvidias_parameters(theirs: Signatures) -> None:
    info = DebugInfo(LIBRARY)
    fields = next(entry.parts for name, entry in info.named("structure_type") if name == "sp_driver")
    own = {part.facts["name"]: info.signature(info.type_of(info.type_of(part))) for part in fields}
    rows = re.findall(r'X\((\w+), "(\w+)", "(\w+)"', (HOOK / "interpose" / "driver.h").read_text())
    assert [name for name, *_ in rows] == list(own)
    assert differences({symbol: own[name] for name, *symbols in rows for symbol in symbols}, theirs) == {}


def test_the_simulated_driver_has_nvidias_parameters(theirs: Signatures) -> None:
    info = DebugInfo(LIBRARY_DIR / "libcuda.so.1")
    rows = {function.name for function in read_functions()}
    # The functions of this source only answer that they are not simulated.
    functions = {name: entry for name, entry in info.named("subprogram") if entry.source != "simgpu/api/symbols.c"}
    ours = {name: info.signature(functions[name]) for name in rows & functions.keys()}
    assert len(ours) > 430
    assert ours.keys() - theirs.keys() == WITHOUT_TYPE
    assert differences({name: ours[name] for name in ours.keys() - WITHOUT_TYPE}, theirs) == LONGER_STRUCTURE


def test_what_is_passed_otherwise_is_found(theirs: Signatures, tmp_path: Path) -> None:
    (tmp_path / "wrong.c").write_text("".join(f"{text} {{ return 0; }}\n" for text in WRONG))
    info = DebugInfo(compile_c(tmp_path / "wrong.o", "-c", "-g", tmp_path / "wrong.c"))
    ours = {name: info.signature(entry) for name, entry in info.named("subprogram")}
    expected = {re.findall(r"(\w+)\(", text)[0]: positions for text, positions in WRONG.items()}
    assert differences(ours, theirs) == expected
