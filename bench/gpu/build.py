"""Builds what a run needs from the checkout with the C compiler alone, into build/gpu, once per change of a source."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CLIENT = ROOT / "rig" / "c"
PROGRAMS = ROOT / "bench" / "programs"
CACHE = ROOT / "build" / "gpu"
FLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-fvisibility=hidden"]
STRICT = [*FLAGS, "-Werror"]
# As in setup.py: the resolver's loops must stay loops, and thread locals must not call into the loader.
HOOK_FLAGS = [*FLAGS, "-fPIC", "-fno-builtin", "-ftls-model=initial-exec"]
SHARED = ["-shared", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,defs", "-Wl,--as-needed"]
MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())
PROBE = ("calls", "capture", "device", "kernels", "memory", "probe", "slices", "work")


class BuildFailed(Exception):
    """Something could not be compiled; the text says what, and the compiler's first complaint."""


@dataclass(frozen=True, slots=True)
class Built:
    """Where the built things are."""

    hook: Path
    node: Path
    probe: Path
    census: Path | None
    """None where its thunks are not written for this processor."""
    cupti: Path


def _compile(output: Path, sources: Sequence[Path], flags: Sequence[str], libraries: Sequence[str]) -> Path:
    directories = {CLIENT, PROGRAMS, *(source.parent for source in sources)}
    depends = [*sources, *(path for one in directories for path in _headers(one))]
    newest = max(path.stat().st_mtime for path in depends)
    if output.exists() and output.stat().st_mtime > newest:
        return output
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise BuildFailed(f"the C compiler {compiler[0]} is missing: apt install gcc libc6-dev, or set CC=")
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f"{output.name}.{os.getpid()}")
    command = [*compiler, *flags, "-o", str(partial), *map(str, sources), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        raise BuildFailed(f"{output.name} does not compile: {complaint}")
    partial.rename(output)
    return output


def _headers(directory: Path) -> list[Path]:
    return [path for pattern in ("*.h", "*.def") for path in directory.glob(pattern)]


def _sources(directory: str) -> list[Path]:
    found = (ROOT / directory).glob("*.c")
    return sorted(path for path in found if not path.name.startswith("_native"))


def _hook() -> Path:
    sources = [*_sources("hook"), ROOT / "hook" / f"trampoline_{MACHINE}.S"]
    inputs = [*sources, *_headers(ROOT / "hook"), *_headers(ROOT / "driver")]
    made = ROOT / "hook" / "libsharepod.so"  # what `make build` leaves, where it was run
    if made.exists() and made.stat().st_mtime > max(path.stat().st_mtime for path in inputs):
        return made
    flags = [*HOOK_FLAGS, *SHARED, "-Wl,-soname,libsharepod.so"]
    return _compile(CACHE / "libsharepod.so", sources, flags, ["-lpthread", "-ldl"])


def _node() -> Path:
    sources = [HERE / "node.c", *_sources("agent"), ROOT / "hook" / "region.c", ROOT / "hook" / "guard.c"]
    includes = [f"-I{ROOT / 'agent'}", f"-I{ROOT / 'hook'}"]
    return _compile(CACHE / "node", sources, [*FLAGS, *includes], ["-lpthread"])


def _probe() -> Path:
    return _compile(
        CACHE / "probe",
        [HERE / f"{name}.c" for name in PROBE],
        [*STRICT, f"-I{CLIENT}", f"-I{PROGRAMS}"],
        ["-ldl", "-lpthread"],
    )


def _census() -> Path | None:
    if MACHINE != "x86_64":
        return None
    sources = [HERE / "census.c", ROOT / "hook" / "resolve.c", ROOT / "hook" / f"trampoline_{MACHINE}.S"]
    flags = [*HOOK_FLAGS, *SHARED, f"-I{ROOT / 'hook'}"]
    return _compile(CACHE / "libcensus.so", sources, flags, ["-lpthread"])


def _cupti() -> Path:
    flags = [*STRICT, "-fPIC", *SHARED]
    return _compile(CACHE / "libcuptireport.so", [HERE / "cupti.c"], flags, ["-ldl", "-lpthread"])


def build() -> Built:
    """Build everything, side by side. Raises BuildFailed."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        census = pool.submit(_census)
        hook, node, probe, cupti = (pool.submit(part) for part in (_hook, _node, _probe, _cupti))
        return Built(hook.result(), node.result(), probe.result(), census.result(), cupti.result())
