"""Builds what a run needs from the checkout with the C compiler alone, into build/, when a source has changed.

build/gpu and build/bench can be copied to a machine without a compiler: a hash of the sources decides whether the
outputs belong to them.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.bars import costs
from rig import programs
from rig.programs import CLIENT, SOURCES, compiled

C = Path(__file__).resolve().with_name("c")
ROOT = C.parents[2]
CACHE = ROOT / "build" / "gpu"
HEADERS = [ROOT, ROOT / "driver", ROOT / "region"]
"""Folders in which includes are looked up, also those of other rooms that the sources of hook and agent include."""
INTERPOSE = ROOT / "hook" / "interpose"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow"]
FLAGS = ["-std=gnu11", "-O2", "-g", *WARNINGS, "-fvisibility=hidden"]
# As in setup.py: the resolver's loops must stay loops, and thread locals must not call into the loader.
HOOK_FLAGS = [*FLAGS, "-fPIC", "-fno-builtin", "-ftls-model=initial-exec"]
SHARED = ["-shared", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,defs", "-Wl,--as-needed"]
MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())
PROBE = ("calls", "capture", "device", "kernels", "memory", "probe", "work")
OF_BARS = (("chain.c", "chain"), ("load.c", "load"), costs.NOOP_DRIVER)


@dataclass(frozen=True, slots=True)
class Built:
    """The paths of the built files."""

    hook: Path
    node: Path
    probe: Path
    census: Path | None
    """None: there are no thunks for this processor."""
    cupti: Path


def _sources(directory: str) -> list[Path]:
    found = (ROOT / directory).rglob("*.c")
    return sorted(path for path in found if not path.name.startswith("_native"))


def _region(*parts: str) -> list[Path]:
    """Return the sources of the region that every side needs, and these `parts`."""
    return [ROOT / "region" / f"{part}.c" for part in ("region", "guard", *parts)]


def _hook() -> Path:
    sources = [*_sources("hook"), INTERPOSE / f"trampoline_{MACHINE}.S", *_region("attach", "look")]
    flags = [*HOOK_FLAGS, *SHARED, "-Wl,-soname,libsharepod.so"]
    return compiled(CACHE / "libsharepod.so", sources, flags, ["-lpthread", "-ldl"], HEADERS)


def _node() -> Path:
    sources = [C / "node.c", *_sources("agent"), *_region("files", "slots")]
    return compiled(CACHE / "node", sources, FLAGS, ["-lpthread"], HEADERS)


def _probe() -> Path:
    sources = [C / f"{name}.c" for name in PROBE]
    return compiled(CACHE / "probe", sources, FLAGS, ["-ldl", "-lpthread"], [CLIENT, SOURCES])


def _census() -> Path | None:
    if MACHINE != "x86_64":
        return None
    resolver = [INTERPOSE / name for name in ("resolve.c", "object.c", f"trampoline_{MACHINE}.S")]
    sources = [C / "census.c", *resolver]
    return compiled(CACHE / "libcensus.so", sources, [*HOOK_FLAGS, *SHARED], ["-lpthread"], HEADERS)


def _cupti() -> Path:
    flags = [*FLAGS, "-fPIC", *SHARED]
    return compiled(CACHE / "libcuptireport.so", [C / "cupti.c"], flags, ["-ldl", "-lpthread"])


def build() -> Built:
    """Build everything that a run can need, in parallel. Raises BuildFailed."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        bars = [pool.submit(programs.build, *part) for part in OF_BARS]
        census = pool.submit(_census)
        hook, node, probe, cupti = (pool.submit(part) for part in (_hook, _node, _probe, _cupti))
        for part in bars:
            part.result()
        return Built(hook.result(), node.result(), probe.result(), census.result(), cupti.result())
