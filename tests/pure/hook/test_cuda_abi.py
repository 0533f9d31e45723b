"""The types and constants of CUDA that the hook declares for itself are those of NVIDIA's own header."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from hooklab import HOOK, compile_c, run

BOX = "srcXInBytes srcY srcMemoryType srcHost srcDevice srcArray srcPitch dstXInBytes dstMemoryType dstDevice dstPitch"
FIELDS = {
    "CUmemAllocationProp": "type requestedHandleTypes location",
    "CUmemPoolProps": "allocType handleTypes location maxSize",
    "CUDA_MEM_ALLOC_NODE_PARAMS": "poolProps accessDescs accessDescCount bytesize dptr",
    "CUDA_GRAPH_INSTANTIATE_PARAMS": "flags hUploadStream hErrNode_out result_out",
    "CUDA_EXTERNAL_MEMORY_HANDLE_DESC": "type handle size flags",
    "CUDA_ARRAY_DESCRIPTOR": "Width Height Format NumChannels",
    "CUDA_ARRAY3D_DESCRIPTOR": "Width Height Depth Format NumChannels Flags",
    "CUlaunchConfig": "gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes hStream attrs numAttrs",
    "CUDA_MEMCPY2D": f"{BOX} WidthInBytes Height",
    "CUDA_MEMCPY3D": f"{BOX} srcZ srcHeight dstHeight WidthInBytes Height Depth",
    "CUDA_MEMCPY3D_PEER": "srcContext srcPitch dstContext dstPitch Depth",
    "CUmemcpy3DOperand": "type",
    "CUDA_MEMCPY3D_BATCH_OP": "src dst srcAccessOrder",
    "CUmemDecompressParams": "srcNumBytes dstNumBytes",
}
"""What the hook reads or writes. The copies between devices have a type of their own in NVIDIA's header alone."""


@pytest.fixture(scope="module")
def toolkit() -> Path:
    """Return the directory of the newest toolkit's headers that the environment has."""
    files = metadata.files("nvidia-cuda-runtime") or ()
    return next(Path(file.locate()) for file in files if file.name == "cuda.h").parent


def printed(directory: Path, *lines: str) -> str:
    """Return what a program of these lines prints."""
    (directory / "probe.c").write_text("\n".join(["#include <stddef.h>", "#include <stdio.h>", *lines]))
    return run([compile_c(directory / "probe", directory / "probe.c")]).stdout


def layout(header: Path, directory: Path, *more: str) -> str:
    """Return where each field stands by a header, and how large each type is."""
    probes = [
        f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));'
        for name, text in FIELDS.items()
        for field in text.split()
    ]
    probes += [f'printf("{name} %zu\\n", sizeof({name}));' for name in FIELDS]
    return printed(directory, f'#include "{header}"', *more, "int main(void) {", *probes, "}")


def test_every_field_that_the_hook_reads_is_where_nvidias_header_has_it(toolkit: Path, tmp_path: Path) -> None:
    ours = layout(HOOK / "cuda_abi.h", tmp_path, "#define CUDA_MEMCPY3D_PEER CUDA_MEMCPY3D")
    assert ours == layout(toolkit / "cuda.h", tmp_path)
    assert ours.count("\n") > 60


def test_every_constant_has_the_value_of_nvidias_header(toolkit: Path, tmp_path: Path) -> None:
    text = (HOOK / "cuda_abi.h").read_text()
    values = {name: int(value, 0) for name, value in re.findall(r"^  (CU\w+) = (\w+),", text, re.MULTILINE)}
    assert len(values) > 25
    include = f'#include "{toolkit / "cuda.h"}"'
    probes = [f'printf("{name} %d\\n", (int){name});' for name in values]
    told = printed(tmp_path, include, "int main(void) {", *probes, "}")
    assert {name: int(value) for name, value in (line.split() for line in told.splitlines())} == values
