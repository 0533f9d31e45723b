"""Test what bench.gpu compiles: it runs on machines without a compiler, and its kernels assemble for real GPUs."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.gpu import build as gpu_build
from rig import programs
from rig.programs import BuildFailed, compiled

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
HEAVY_REGISTERS = range(57, 65)
"""Registers are allocated in steps of 8: these counts take 64, the most that each of 1,024 threads can have."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write a program that includes a header beside it; return the program's path."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.h").write_text("#define ANSWER 3\n")
    (folder / "program.c").write_text('#include "answer.h"\nint main(void) { int unused; return ANSWER; }\n')
    return folder / "program.c"


def make(source: Path, output: Path) -> int:
    """Compile the program if needed, run it and return its exit status."""
    program = compiled(output, [source], ["-Wall", "-Wextra"], [])
    return subprocess.run([str(program)], check=False).returncode


def test_what_was_made_of_the_same_sources_is_taken_without_a_compiler_whatever_the_times_of_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, header = tmp_path / "made" / "program", source.parent / "answer.h"
    assert make(source, made) == 3
    header.write_text("#define ANSWER 5\n")
    os.utime(header, (1, 1))
    assert make(source, made) == 5, "a change of a header alone, although the program is newer"
    carried = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "made", carried / "made")
    shutil.copytree(source.parent, carried / "sources")
    os.utime(carried / "sources" / "program.c", (4e9, 4e9))
    os.utime(carried / "made" / "program", (1, 1))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert make(carried / "sources" / "program.c", carried / "made" / "program") == 5
    (carried / "sources" / "answer.h").write_text("#define ANSWER 4\n")
    with pytest.raises(BuildFailed, match="program is not built of these sources, and the C compiler no-such-compiler"):
        make(carried / "sources" / "program.c", carried / "made" / "program")


def test_what_does_not_compile_says_so_in_one_line(source: Path, tmp_path: Path) -> None:
    source.write_text("int main(void) { return missing; }\n")
    with pytest.raises(BuildFailed, match=r"^program does not compile: .*missing.*$") as caught:
        make(source, tmp_path / "program")
    assert "\n" not in str(caught.value)


def test_a_run_without_a_compiler_takes_all_that_was_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    built = gpu_build.build()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert gpu_build.build() == built
    # The build includes the programs that the rows would otherwise compile when they need them.
    assert all(programs.build(*part).exists() for part in gpu_build.OF_BARS)


def ptxas() -> str:
    """Return NVIDIA's assembler from a toolkit, from PyPI's nvidia-cuda-nvcc, or from Triton."""
    found = shutil.which("ptxas", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    for package, pattern in (("nvidia", "cu*/bin/ptxas"), ("triton", "backends/nvidia/bin/ptxas")):
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            found = found or next(map(str, Path(folder).glob(pattern)), None)
    if found is None:
        pytest.skip("ptxas is not installed: pip install nvidia-cuda-nvcc, or a CUDA toolkit")
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_assemble_for_real_gpus_and_the_heavy_one_is_heavy(architecture: str, tmp_path: Path) -> None:
    assembler = ptxas()
    used: dict[str, str] = {}
    for heavy in (0, 1):
        command = [str(gpu_build.build().probe), "ptx", "units=20us,7001ns", f"heavy={heavy}"]
        text = tmp_path / f"{heavy}.ptx"
        text.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
        command = [assembler, "-v", f"-arch={architecture}", "-o", str(tmp_path / "kernels.cubin"), str(text)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "warning" not in said
        assert set(re.findall(r"(\d+) bytes spill stores", said)) == {"0"}
        used |= re.findall(r"Function properties for (\w+)\n.*\n.*?Used (\d+) registers", said)
    assert set(used) == {"ticks_1ms", "work_20us", "work_7001ns", "heavy_20us", "heavy_7001ns"}
    assert int(used["heavy_20us"]) in HEAVY_REGISTERS
