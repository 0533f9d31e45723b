"""The hook that is shipped: one file for every glibc since 2.17, harmless under musl, the same on aarch64."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from hooklab import HOOK, HOOK_FLAGS, INTERPOSITION, C, Lab, clean_environment, compile_c, need_tool, read_symbols, run

SYMBOLS = read_symbols()
GLIBC = "2.17"
MUSL_LOADER = Path("/lib/ld-musl-x86_64.so.1")
CROSS_ROOT = "/usr/aarch64-linux-gnu"
X86 = os.uname().machine == "x86_64"
# Weak references that may stay unresolved: the loader's debugger interface (one of two), and the toolchain's own.
OPTIONAL = {"_r_debug", "_dl_debug_addr", "__cxa_finalize", "__gmon_start__"}
OPTIONAL |= {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}


def zig(target: str, cache: Path) -> list[str]:
    """Return the portable compiler's command for a target, or skip."""
    pytest.importorskip("ziglang", reason="the portable compiler (PyPI package ziglang) is not installed")
    caches = [f"ZIG_GLOBAL_CACHE_DIR={cache}", f"ZIG_LOCAL_CACHE_DIR={cache}"]
    return ["env", *caches, sys.executable, "-m", "ziglang", "cc", "-target", f"{target}-linux-gnu.{GLIBC}"]


def build(output: Path, machine: str, cc: list[str], exports: Path, sources: list[Path]) -> Path:
    """Build a hook for a machine; zig's -O0 would link a sanitizer, so the flags keep -O2."""
    return compile_c(
        output,
        *HOOK_FLAGS,
        "-shared",
        "-Wl,-soname,libsharepod.so",
        f"-Wl,--version-script={exports}",
        *sources,
        HOOK / f"trampoline_{machine}.S",
        "-lpthread",
        "-ldl",
        cc=cc,
    )


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the product for both machines with the portable compiler."""
    directory = tmp_path_factory.mktemp("portable")
    return {
        machine: build(
            directory / f"libsharepod-{machine}.so",
            machine,
            zig(machine, directory / "cache"),
            HOOK / "exports.map",
            sorted(HOOK.glob("*.c")),
        )
        for machine in ("x86_64", "aarch64")
    }


def imports(library: Path) -> set[str]:
    """Return the undefined dynamic symbols, without their versions."""
    done = run(["nm", "--dynamic", "--undefined-only", library])
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_symbol_version_is_newer_than_the_oldest_glibc_served(portable: dict[str, Path], machine: str) -> None:
    done = run(["readelf", "--version-info", "--wide", portable[machine]])
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([0-9.]+)", done.stdout)]
    assert versions
    assert max(versions) <= tuple(map(int, GLIBC.split(".")))


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_portable_hook_needs_libc_alone(portable: dict[str, Path], machine: str) -> None:
    done = run(["readelf", "--dynamic", "--wide", portable[machine]])
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", done.stdout))
    assert needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@pytest.mark.skipif(not X86, reason="this machine's musl loader has another name")
def test_every_import_exists_in_musl(product: Path, portable: dict[str, Path]) -> None:
    if not MUSL_LOADER.exists():
        pytest.skip(f"{MUSL_LOADER} is not there (Debian package musl)")
    done = run(["nm", "--dynamic", "--defined-only", MUSL_LOADER.resolve()])
    offered = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    assert "pthread_create" in offered
    for library in portable["x86_64"], portable["aarch64"], product:
        undefined = run(["nm", "--dynamic", "--undefined-only", library]).stdout.splitlines()
        weak = {line.split()[-1].split("@")[0] for line in undefined if line.split()[0] in "wv"}  # may be absent
        assert imports(library) - weak - offered - OPTIONAL == set()


@pytest.mark.parametrize("kind", ["product", "portable"])
def test_thread_locals_are_reached_without_the_loader(product: Path, portable: dict[str, Path], kind: str) -> None:
    library = product if kind == "product" else portable["x86_64"]
    assert "__tls_get_addr" not in imports(library)
    done = run(["readelf", "--relocs", "--wide", library])
    assert "TPOFF64" in done.stdout or kind == "product"
    assert "DTPMOD64" not in done.stdout
    assert "TLSDESC" not in done.stdout


def test_the_resolver_and_the_trampolines_import_nothing_from_libc(lab: Lab) -> None:
    resolver = compile_c(lab.directory / "resolve.o", *HOOK_FLAGS, "-c", HOOK / "resolve.c")
    done = run(["nm", "--undefined-only", resolver])
    strong = {line.split()[-1] for line in done.stdout.splitlines() if line.split()[0] == "U"}
    assert strong <= {"_DYNAMIC", "_GLOBAL_OFFSET_TABLE_"}


@pytest.mark.skipif(not X86, reason="runs the x86-64 build")
def test_the_portable_hook_changes_nothing_for_a_busy_program(portable: dict[str, Path], lab: Lab) -> None:
    busy = compile_c(lab.directory / "busy-portable", "-O1", C / "busy.c", "-lpthread", "-ldl")
    done = run([busy], clean_environment() | {"LD_PRELOAD": str(portable["x86_64"])})
    assert (done.returncode, done.stdout, done.stderr) == (0, "busy 4\n", "")


def test_the_aarch64_product_changes_nothing_for_a_busy_program(portable: dict[str, Path], lab: Lab) -> None:
    qemu = need_tool("qemu-aarch64", "qemu-user")
    cc = need_tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    busy = compile_c(lab.directory / "busy-aarch64", "-O1", C / "busy.c", "-lpthread", "-ldl", cc=[cc])
    done = run([qemu, "-L", CROSS_ROOT, "-E", f"LD_PRELOAD={portable['aarch64']}", busy], clean_environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "busy 4\n", "")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_portable_hook_stands_before_nvml(portable: dict[str, Path], tmp_path: Path, machine: str) -> None:
    if machine == "aarch64":
        cc, emulator = (
            need_tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
            need_tool("qemu-aarch64", "qemu-user"),
        )
    elif X86:
        cc, emulator = "cc", ""
    else:
        pytest.skip("runs the x86-64 build")
    nvml = HOOK.parent / "tests" / "support" / "simgpu" / "crowded_nvml.c"
    library: list[str | Path] = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", nvml]
    compile_c(tmp_path / "libnvidia-ml.so.1", *library, cc=[cc])
    program = compile_c(tmp_path / "lookup", C / "nvml_lookup.c", "-ldl", cc=[cc])
    settings = {"LD_PRELOAD": str(portable[machine]), "LD_LIBRARY_PATH": str(tmp_path)}
    if emulator:
        guest = [part for name, value in settings.items() for part in ("-E", f"{name}={value}")]
        done = run([emulator, "-L", CROSS_ROOT, *guest, program], clean_environment())
    else:
        done = run([program], clean_environment() | settings)
    assert done.stdout == f"libsharepod-{machine}.so libnvidia-ml.so.1 - - 7 2000\n", done.stderr


@pytest.mark.skipif(not X86, reason="this machine's musl loader has another name")
def test_a_musl_program_runs_under_the_portable_hook(portable: dict[str, Path], lab: Lab) -> None:
    cc = need_tool("musl-gcc", "musl-tools")
    if not MUSL_LOADER.exists():
        pytest.skip(f"{MUSL_LOADER} is not there (Debian package musl)")
    busy = compile_c(lab.directory / "busy-musl", "-O1", C / "busy.c", cc=[cc])
    env = clean_environment() | {"LD_PRELOAD": str(portable["x86_64"])}
    done = run([busy], env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "busy 4\n", "")


@pytest.mark.skipif(not X86, reason="this machine's musl loader has another name")
def test_a_musl_program_is_hooked_by_handle_and_chains_by_name(lab: Lab) -> None:
    cc = need_tool("musl-gcc", "musl-tools")
    if not MUSL_LOADER.exists():
        pytest.skip(f"{MUSL_LOADER} is not there (Debian package musl)")
    program = compile_c(lab.directory / "routes-musl", "-O1", "-DPROGRAM", C / "routes.c", cc=[cc])
    directory = lab.directory / "driver-musl"
    directory.mkdir()
    driver = compile_c(
        directory / "libcuda.so.1",
        "-O1",
        "-fPIC",
        "-shared",
        "-Wl,-soname,libcuda.so.1",
        "-Wl,-Bsymbolic",
        C / "fake_driver.c",
        cc=[cc],
    )
    exports = lab.directory / "exports.map"
    hook = build(
        lab.directory / "libtesthook-musl.so",
        "x86_64",
        [cc],
        exports,
        [*(HOOK / name for name in INTERPOSITION), C / "test_gate.c"],
    )
    env = clean_environment() | {"LD_PRELOAD": str(hook), "LD_LIBRARY_PATH": str(directory), "FAKE_DRIVER": str(driver)}
    done = run([program, "soname"], env)
    assert done.returncode == 0, done.stderr
    launches = {line.split()[0]: line.split()[1:6] for line in done.stdout.splitlines()}
    assert len(launches) == len(SYMBOLS)
    assert launches["cuLaunchKernel"] == ["1", "1", "0", "1", "1"]


@pytest.mark.parametrize("route", ["linked", "default", "soname", "path", "soname-deepbind", "gpa1", "gpa2", "gpaself"])
def test_the_aarch64_hook_passes_every_route_under_emulation(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, route: str
) -> None:
    qemu = need_tool("qemu-aarch64", "qemu-user")
    cc = need_tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    directory = lab.directory / "aarch64"
    if not directory.exists():
        built = tmp_path_factory.mktemp("aarch64")
        driver: list[str | Path] = [
            *HOOK_FLAGS,
            "-shared",
            "-Wl,-soname,libcuda.so.1",
            "-Wl,-Bsymbolic",
            C / "fake_driver.c",
        ]
        compile_c(built / "libcuda.so.1", *driver, cc=[cc])
        (built / "libcuda.so").symlink_to("libcuda.so.1")
        build(
            built / "libtesthook.so",
            "aarch64",
            zig("aarch64", built / "cache"),
            lab.directory / "exports.map",
            [*(HOOK / name for name in INTERPOSITION), C / "test_gate.c"],
        )
        program: list[str | Path] = ["-O1", "-DPROGRAM", "-DLINKED", C / "routes.c", "-L", built, "-lcuda", "-ldl"]
        compile_c(built / "routes", *program, cc=[cc])
        shutil.rmtree(built / "cache", ignore_errors=True)
        directory.symlink_to(built)
    guest = {"LD_LIBRARY_PATH": str(directory), "FAKE_DRIVER": str(directory / "libcuda.so.1")}
    settings = [f"{name}={value}" for name, value in {**guest, "LD_PRELOAD": f"{directory}/libtesthook.so"}.items()]
    emulator = [qemu, "-L", CROSS_ROOT, *(part for one in settings for part in ("-E", one))]
    done = run([*emulator, directory / "routes", route], clean_environment())
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert len(lines) == len(SYMBOLS)
    for symbol in SYMBOLS:
        calls, arrived, _, enters, leaves = lines[symbol.name][1:6]
        assert (calls, arrived) == ("2" if symbol.name == "cuDevicePrimaryCtxRelease_v2" else "1", "1"), symbol
        gated = symbol.action in {"LAUNCH", "COPY"}
        wanted = "1" if gated else "0"
        assert (enters, leaves) == (wanted, wanted), symbol
