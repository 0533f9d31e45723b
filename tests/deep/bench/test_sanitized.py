"""Test the hook under AddressSanitizer and UndefinedBehaviorSanitizer, preloaded into the stress test's programs."""

import platform
from pathlib import Path

import pytest
from hooklab import HOOK_SOURCES, INTERPOSE, compile_c, run

from bench import stress

SECONDS = 8
SEED = 4
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
# These run while the sanitizer's own runtime looks up libc's functions, before it can check anything.
BEFORE_THE_RUNTIME = {"intercept.c", "lookup.c", "object.c", "own_names.c", "resolve.c"}


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the hook with the sanitizers."""
    directory = tmp_path_factory.mktemp("sanitized")
    flags = ["-std=gnu11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-fno-builtin", "-ftls-model=initial-exec"]
    flags += ["-c"]
    objects = []
    for number, source in enumerate(HOOK_SOURCES):
        checks = () if source.name in BEFORE_THE_RUNTIME else SANITIZE
        objects.append(compile_c(directory / f"{number}.o", *flags, *checks, source, cc=["gcc"]))
    objects.append(INTERPOSE / f"trampoline_{platform.machine()}.S")
    link = ["-shared", "-Wl,-soname,libsharepod.so", *SANITIZE, *objects, "-lpthread", "-ldl"]
    return compile_c(directory / "libsharepod.so", *link, cc=["gcc"])


@pytest.mark.timeout(SECONDS + 150)
def test_the_sanitizers_find_nothing_in_the_hook_under_stress(hook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0:exitcode=66:verify_asan_link_order=0")
    monkeypatch.setenv("UBSAN_OPTIONS", "print_stacktrace=1:exitcode=66")
    runtime = run(["gcc", "-print-file-name=libasan.so"]).stdout.strip()
    verdict = stress.stress(SECONDS, SEED, preload=(runtime, str(hook)))
    assert verdict.faults == ()
    assert verdict.episodes > 100
