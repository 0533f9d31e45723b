"""Test the shipped hook: one file for every glibc since 2.17, harmless under musl, the same on aarch64."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from every_symbol import EVERY, Node
from hooklab import HOOK_FLAGS, HOOK_SOURCES, INTERPOSE, STRICT, C, clean_environment, compile_c, need_tool, run

from rig import REPO_ROOT
from rig.gpu import MakeSimgpu
from sharepod.hook import LIBRARY

SIMGPU = REPO_ROOT / "simgpu"
GLIBC = "2.17"
MUSL_LOADER = Path("/lib/ld-musl-x86_64.so.1")
CROSS_ROOT = "/usr/aarch64-linux-gnu"
X86 = os.uname().machine == "x86_64"
# Weak references that may stay unresolved: the loader's debugger interface (one of two names), and the toolchain's.
OPTIONAL = {"_r_debug", "_dl_debug_addr", "__cxa_finalize", "__gmon_start__"}
OPTIONAL |= {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}


def zig(target: str, cache: Path) -> list[str]:
    """Return the portable compiler's command for a target, or skip."""
    pytest.importorskip("ziglang", reason="the portable compiler (PyPI package ziglang) is not installed")
    caches = [f"ZIG_GLOBAL_CACHE_DIR={cache}", f"ZIG_LOCAL_CACHE_DIR={cache}"]
    return ["env", *caches, sys.executable, "-m", "ziglang", "cc", "-target", f"{target}-linux-gnu.{GLIBC}"]


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the product for both machines with the portable compiler; with -O0 it would link a sanitizer."""
    directory = tmp_path_factory.mktemp("portable")
    return {
        machine: compile_c(
            directory / f"libsharepod-{machine}.so",
            *HOOK_FLAGS,
            "-shared",
            "-Wl,-soname,libsharepod.so",
            *HOOK_SOURCES,
            INTERPOSE / f"trampoline_{machine}.S",
            "-lpthread",
            "-ldl",
            cc=zig(machine, directory / "cache"),
        )
        for machine in ("x86_64", "aarch64")
    }


def imports(library: Path) -> set[str]:
    """Return the undefined dynamic symbols, without their versions."""
    done = run(["nm", "--dynamic", "--undefined-only", library])
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_portable_hook_needs_libc_alone_and_none_newer_than_the_oldest_glibc_served(
    portable: dict[str, Path], machine: str
) -> None:
    done = run(["readelf", "--dynamic", "--version-info", "--wide", portable[machine]])
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([0-9.]+)", done.stdout)]
    assert versions
    assert max(versions) <= tuple(map(int, GLIBC.split(".")))
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", done.stdout))
    assert needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@pytest.mark.skipif(not X86, reason="this machine's musl loader has another name")
def test_every_import_exists_in_musl(portable: dict[str, Path]) -> None:
    if not MUSL_LOADER.exists():
        pytest.skip(f"{MUSL_LOADER} is needed: apt install musl")
    done = run(["nm", "--dynamic", "--defined-only", MUSL_LOADER.resolve()])
    offered = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    assert "pthread_create" in offered
    for library in portable["x86_64"], portable["aarch64"], LIBRARY:
        undefined = run(["nm", "--dynamic", "--undefined-only", library]).stdout.splitlines()
        weak = {line.split()[-1].split("@")[0] for line in undefined if line.split()[0] in "wv"}  # may be absent
        assert imports(library) - weak - offered - OPTIONAL == set()


@pytest.mark.parametrize("kind", ["product", "portable"])
def test_thread_locals_are_reached_without_the_loader(portable: dict[str, Path], kind: str) -> None:
    library = LIBRARY if kind == "product" else portable["x86_64"]
    assert "__tls_get_addr" not in imports(library)
    done = run(["readelf", "--relocs", "--wide", library])
    assert "TPOFF64" in done.stdout or kind == "product"
    assert "DTPMOD64" not in done.stdout
    assert "TLSDESC" not in done.stdout


def test_the_resolver_and_the_trampolines_import_nothing_from_libc(tmp_path: Path) -> None:
    sources = (INTERPOSE / "resolve.c", INTERPOSE / "object.c")
    resolver = compile_c(tmp_path / "resolve.o", *HOOK_FLAGS, "-nostdlib", "-r", *sources)
    done = run(["nm", "--undefined-only", resolver])
    strong = {line.split()[-1] for line in done.stdout.splitlines() if line.split()[0] == "U"}
    assert strong <= {"_DYNAMIC", "_GLOBAL_OFFSET_TABLE_"}


@dataclass(frozen=True)
class Machine:
    """A machine and a C library to load the hook on."""

    cc: str
    hook: Path
    emulator: tuple[str, ...] = ()

    def run(self, program: Path, *arguments: str, **guest: str) -> subprocess.CompletedProcess[str]:
        """Run a program with the hook and further settings."""
        settings = {"LD_PRELOAD": str(self.hook), **guest}
        if not self.emulator:
            return run([program, *arguments], clean_environment() | settings)
        return run([*self.emulator, *in_guest(settings), program, *arguments], clean_environment())


def in_guest(settings: Mapping[str, str]) -> list[str]:
    """Return the emulator's arguments that put settings into the environment of its program."""
    return [word for name, value in settings.items() for word in ("-E", f"{name}={value}")]


@pytest.fixture(params=["x86_64", "aarch64", "musl"])
def machine(request: pytest.FixtureRequest, portable: dict[str, Path]) -> Machine:
    """Return a machine that there is a compiler for."""
    if request.param == "aarch64":
        cc = need_tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
        return Machine(cc, portable["aarch64"], (need_tool("qemu-aarch64", "qemu-user"), "-L", CROSS_ROOT))
    if not X86:
        pytest.skip("runs the x86-64 build")
    if request.param == "musl" and not MUSL_LOADER.exists():
        pytest.skip(f"{MUSL_LOADER} is needed: apt install musl")
    return Machine(need_tool("musl-gcc", "musl-tools") if request.param == "musl" else "cc", portable["x86_64"])


def test_the_portable_hook_changes_nothing_for_a_busy_program(machine: Machine, tmp_path: Path) -> None:
    done = machine.run(compile_c(tmp_path / "busy", "-O1", C / "busy.c", "-lpthread", "-ldl", cc=[machine.cc]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "busy 4\n", "")


def test_the_portable_hook_stands_before_nvml(machine: Machine, tmp_path: Path) -> None:
    nvml = REPO_ROOT / "tests" / "support" / "simgpu" / "crowded_nvml.c"
    library: list[str | Path] = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", nvml]
    compile_c(tmp_path / "libnvidia-ml.so.1", *library, cc=[machine.cc])
    program = compile_c(tmp_path / "lookup", C / "nvml_lookup.c", "-ldl", cc=[machine.cc])
    done = machine.run(program, LD_LIBRARY_PATH=str(tmp_path))
    assert done.stdout == f"{machine.hook.name} libnvidia-ml.so.1 - - 7 2000\n", done.stderr


@pytest.mark.parametrize("names", ["-DVARIABLES", "-DSTUBS"])
@pytest.mark.parametrize("way", ["-DLINKS", "-DOPENS"])
def test_the_portable_hook_leaves_a_library_its_own_names(
    machine: Machine, tmp_path: Path, names: str, way: str
) -> None:
    source, cc = C / "own_names.c", [machine.cc]
    shared = [*STRICT, "-shared"]
    compile_c(tmp_path / "libcuda.so.1", *shared, "-Wl,-soname,libcuda.so.1", "-DIDLE", source, cc=cc)
    library = tmp_path / "library.so"
    compile_c(library, *shared, "-Wl,-soname,library.so,-z,now", names, "-DWORK", source, "-ldl", cc=cc)
    linked = [library] if way == "-DLINKS" else []
    program = compile_c(tmp_path / "program", *STRICT, "-DMAIN", way, source, *linked, "-ldl", cc=cc)
    done = machine.run(program, str(library), LD_LIBRARY_PATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


ROUTES = ["linked", "default", "soname", "path", "soname-deepbind", "gpa1", "gpa2", "runtime"]


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the simulated driver, and the program that calls every symbol, for aarch64."""
    cc = [need_tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")]
    directory = tmp_path_factory.mktemp("aarch64")
    sources = sorted(path for path in SIMGPU.glob("*/*.c") if path.parent.name != "nvml")
    bound = ["-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]
    driver = compile_c(directory / "libcuda.so.1", *STRICT, *bound, *sources, "-lpthread", "-ldl", cc=cc)
    compile_c(directory / "unlinked", *EVERY, cc=cc)
    compile_c(directory / "linked", "-DLINKED", *EVERY, "-Wl,--no-as-needed", driver, "-ldl", cc=cc)
    return directory


@pytest.mark.parametrize("route", ROUTES)
def test_the_aarch64_hook_meters_every_symbol_by_every_route_under_emulation(
    node: Node, arm: Path, portable: dict[str, Path], route: str, make_simgpu: MakeSimgpu
) -> None:
    guest = {
        "LD_PRELOAD": str(portable["aarch64"]),
        "LD_LIBRARY_PATH": str(arm),
        "DRIVER": str(arm / "libcuda.so.1"),
        "SIMGPU_STATE": str(make_simgpu().state),  # an own state, as its layout depends on the machine
    }
    emulator = [need_tool("qemu-aarch64", "qemu-user"), "-L", CROSS_ROOT, *in_guest(guest)]
    program = arm / ("linked" if route == "linked" else "unlinked")
    node.check_run(*emulator, program, route, preload=(), elsewhere=True)
