"""Reads the hook's tables, and builds and runs programs in C (those of ``c/``) with the hook's sources."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rig import REPO_ROOT
from sharepod.driver.coverage import Function, read_functions

HOOK = REPO_ROOT / "hook"
INTERPOSE = HOOK / "interpose"
HOOK_SOURCES = [
    *sorted(HOOK.rglob("*.c")),
    *(REPO_ROOT / "region" / f"{part}.c" for part in ("region", "guard", "attach", "look")),
]
C = Path(__file__).resolve().parent / "c"
STRICT = ["-std=gnu11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wconversion", "-Wshadow"]
HOOK_FLAGS = [*STRICT, "-Werror", "-fno-builtin", "-ftls-model=initial-exec"]


def read_symbols() -> list[Function]:
    """Return the functions of the driver that the hook wraps."""
    return [function for function in read_functions() if function.action]


def read_nvml_symbols() -> list[str]:
    """Return the functions of NVML that the hook wraps."""
    table = REPO_ROOT / "driver" / "nvml.def"
    return re.findall(r"^NVML_WRAPPED\((\w+)\)$", table.read_text(), re.MULTILINE)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without anything that changes how libraries are found."""
    dropped = ("LD_", "SHAREPOD_", "SIMGPU_", "ASAN_", "TSAN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with its output as text."""
    return subprocess.run(
        [str(part) for part in command],
        env=dict(env) if env is not None else None,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def compile_c(output: Path, *arguments: str | Path, cc: Sequence[str] = ("cc",)) -> Path:
    """Compile and link; if the compiler complains, the test fails with its output."""
    done = run([*cc, "-o", output, f"-I{REPO_ROOT}", *arguments])
    assert done.returncode == 0, done.stderr
    return output


BETWEEN = ("hook/gate", "hook/meter", "region", "agent/arbiter", "agent/policy")
"""The folders with the sources on the way between a launch and the arbiter."""


def build_threads(output: Path, *flags: str) -> Path:
    """Compile threads.c with the sources on the way between a launch and the arbiter."""
    folders = [sorted((REPO_ROOT / folder).glob("*.c")) for folder in BETWEEN]
    sources = [path for found in folders for path in found if path.name not in ("host_copies.c", "look.c")]
    wrapped = ("-Wl,--wrap=sp_slot_owner", "-lpthread")
    return compile_c(output, "-std=gnu11", "-O1", "-g", *flags, C.parent / "threads.c", *sources, *wrapped)


def load_c(output: Path, *sources: str | Path, never: Sequence[str] = ()) -> ctypes.CDLL:
    """Compile sources of the hook, or a test's own beside them, into a library that exports all functions by name.

    The functions named in ``never`` are replaced: a call of one ends the process.
    """
    flags = [flag for flag in HOOK_FLAGS if flag != "-fvisibility=hidden"]
    traps = output.with_suffix(".never.c")
    traps.write_text("".join(f"void {name}(void);\nvoid {name}(void) {{ __builtin_trap(); }}\n" for name in never))
    return ctypes.CDLL(str(compile_c(output, *flags, "-shared", "-Wl,-z,defs", traps, *sources)))


def need_tool(name: str, package: str) -> str:
    """Return the path of a tool, or skip with the package that has it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is needed: apt install {package}")
    return found
