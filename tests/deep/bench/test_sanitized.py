"""The hook, built with AddressSanitizer and UndefinedBehaviorSanitizer, preloaded into the stress test's programs."""

import platform
import subprocess
from pathlib import Path

import pytest

from bench import stress
from rig import REPO_ROOT

SECONDS = 8
SEED = 4
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
# These run while the sanitizer's own runtime looks up libc: before it can check anything.
BEFORE_THE_RUNTIME = {"intercept.c", "lookup.c", "nvml_intercept.c", "object.c", "own_names.c", "resolve.c"}


def gcc(*arguments: str | Path) -> str:
    """Run the compiler; return what it printed."""
    done = subprocess.run(["gcc", *arguments], cwd=REPO_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the hook with the sanitizers."""
    directory = tmp_path_factory.mktemp("sanitized")
    flags = ["-std=gnu11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-fno-builtin", "-ftls-model=initial-exec"]
    objects = []
    for source in sorted((REPO_ROOT / "hook").glob("*.c")):
        output = directory / f"{source.stem}.o"
        checks = () if source.name in BEFORE_THE_RUNTIME else SANITIZE
        gcc(*flags, *checks, "-I.", "-Ihook", "-c", "-o", output, source)
        objects.append(output)
    library = directory / "libsharepod.so"
    trampoline = REPO_ROOT / "hook" / f"trampoline_{platform.machine()}.S"
    link = ["-shared", "-Wl,-soname,libsharepod.so"]
    gcc(*link, *SANITIZE, "-o", library, *objects, trampoline, "-lpthread", "-ldl")
    return library


@pytest.mark.timeout(SECONDS + 150)
def test_the_sanitizers_find_nothing_in_the_hook_under_stress(hook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0:exitcode=66:verify_asan_link_order=0")
    monkeypatch.setenv("UBSAN_OPTIONS", "print_stacktrace=1:exitcode=66")
    runtime = gcc("-print-file-name=libasan.so")
    verdict = stress.stress(SECONDS, SEED, preload=(runtime, str(hook)))
    assert verdict.faults == ()
    assert verdict.episodes > 100
