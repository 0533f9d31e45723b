"""Test that every function of the driver API is in exactly one class, and that the document matches the table."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from cuda.bindings import driver

from rig import REPO_ROOT
from sharepod.driver import coverage
from sharepod.driver.coverage import Function, manual, read_functions

# Names that a newer CUPTI gives to functions that it no longer names.
NAMELESS = re.compile(r"cuda\d+")
# Sizes that are properties of a chip: those of constant, shared and cache memory, and of single objects.
SIZES = {
    "L2_CACHE_SIZE", "MAX_ACCESS_POLICY_WINDOW_SIZE", "MAX_PERSISTING_L2_CACHE_SIZE",
    "MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK", "MAX_SHARED_MEMORY_PER_BLOCK", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", "RESERVED_SHARED_MEMORY_PER_BLOCK", "SHARED_MEMORY_PER_BLOCK",
    "MAXIMUM_TEXTURE2D_LINEAR_PITCH", "MAX_PITCH", "TEXTURE_PITCH_ALIGNMENT", "TENSOR_MAP_LARGE_TENSOR_MIN_SIZE",
    "MEM_DECOMPRESS_MAXIMUM_LENGTH", "TOTAL_CONSTANT_MEMORY", "WARP_SIZE",
}  # fmt: skip


def traced_names() -> set[str]:
    """Return the functions that CUPTI can trace: all that a driver ever had, by their exported names."""
    files = metadata.files("nvidia-cuda-cupti") or ()
    text = next(Path(file.locate()) for file in files if file.name == "cupti_driver_cbid.h").read_text()
    names = set(re.findall(r"\bCUPTI_DRIVER_TRACE_CBID_(cu\w+)", text))
    return {name for name in names if not NAMELESS.fullmatch(name)}


def declared_names(toolkit: Path) -> set[str]:
    """Return what the toolkit's headers declare, by the names that a program is linked with."""
    names = set()
    for file in ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"):
        text = (toolkit / file).read_text()
        names |= set(re.findall(r"\bCUDAAPI\s+(cu\w+)\s*\(", text))
        names |= {new for old, new in re.findall(r"#\s*define\s+(cu\w+)\s+(cu\w+)\s*$", text, re.MULTILINE)
                  if new.startswith(old)}  # fmt: skip
        for suffix, name in re.findall(r"#\s*define\s+cu\w+\s+__CUDA_API_(PTSZ|PTDS)\((\w+)\)", text):
            names |= {name, f"{name}_{suffix.lower()}"}
        names -= set(re.findall(r"\bstatic inline CUresult (cu\w+)\(", text))
    return names


def test_every_function_of_the_newest_toolkit_has_a_class(toolkit: Path) -> None:
    traced, declared = traced_names(), declared_names(toolkit)
    assert len(traced) > 700
    assert len(declared) > 700
    assert sorted((traced | declared) - {function.name for function in read_functions()}) == []


@pytest.mark.parametrize(
    "row",
    [
        ("metred", "one", "", "LAUNCH"), ("passed", "one", ""), ("passed", "one", "because"),
        ("escape", "one", "query"), ("metered", "one", "query", "LAUNCH"), ("metered", "", "", "LAUNCH"),
        ("metered", "one", ""),
        ("charged", "one", "", "LIFECYCLE"), ("passed", "one", "query", "MEMORY"), ("metered", "one", "", "NEW"),
    ],
)  # fmt: skip
def test_what_does_not_exist_or_does_not_fit_together_is_refused(row: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="cuOne"):
        Function("cuOne", 2000, *row)


@pytest.mark.parametrize("row", ["DRIVER(cuTwo, 2000)", 'DRIVER(cuTwo, 2000, metered, LAUNCH, "two", "")'])
def test_a_row_that_does_not_parse_is_not_skipped(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver.def").write_text(f'DRIVER(cuOne, 2000, passed, "one", "query")\n{row}\n')
    monkeypatch.setattr(coverage, "_HERE", tmp_path)
    with pytest.raises(ValueError, match="a row is not"):
        read_functions()


def test_all_functions_are_in_order_in_one_class_each_and_every_reason_is_given_by_one() -> None:
    functions = read_functions()
    names = [function.name for function in functions]
    assert names == sorted(set(names))
    assert {function.reason for function in functions if function.kind == "passed"} == set(coverage.REASONS)
    assert {function.reason for function in functions if function.kind == "escape"} == set(coverage.ESCAPES)
    others = {function.reason for function in functions if function.kind not in {"passed", "escape"}}
    assert others == {"", *coverage.NOTES}


def test_no_attribute_of_a_device_has_a_size_of_its_memory() -> None:
    names = {name.removeprefix("CU_DEVICE_ATTRIBUTE_") for name in driver.CUdevice_attribute.__members__}
    assert len(names) > 150
    sizes = {name for name in names if re.search("TOTAL|SIZE|LENGTH|BYTES|CAPACITY|MEMORY_PER|FREE|PITCH", name)}
    assert sizes == SIZES, "does it tell the memory of the device, or of a share? then it is not passed"


def test_the_document_is_what_the_table_says() -> None:
    text = (REPO_ROOT / "docs" / "cuda-coverage.md").read_text()
    assert text == manual(), "run: .venv/bin/python -m sharepod.driver.coverage > docs/cuda-coverage.md"
    assert "cuda-coverage.md" in (REPO_ROOT / "README.md").read_text()
    assert "cuda-coverage.md" in (REPO_ROOT / "hook" / "interpose" / "README.md").read_text()
