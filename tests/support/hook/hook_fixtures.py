"""Builds the interposition laboratory once a session, into a directory that goes away."""

from pathlib import Path

import pytest
from hooklab import HOOK, HOOK_FLAGS, INTERPOSITION, MACHINE, STRICT, C, Lab, compile_c, read_symbols


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Build the recording driver and the hook with the counting gate."""
    directory = tmp_path_factory.mktemp("lab")
    (directory / "driver").mkdir()
    driver = compile_c(
        directory / "driver" / "libcuda.so.1",
        *STRICT,
        "-shared",
        "-Wl,-soname,libcuda.so.1",
        "-Wl,-Bsymbolic",
        C / "fake_driver.c",
    )
    (directory / "driver" / "libcuda.so").symlink_to(driver.name)
    exports = directory / "exports.map"
    exports.write_text((HOOK / "exports.map").read_text().replace("  local:", "    test_*;\n  local:"))
    hook = compile_c(
        directory / "libtesthook.so",
        *HOOK_FLAGS,
        "-shared",
        "-Wl,-z,now",
        "-Wl,-z,defs",
        f"-Wl,--version-script={exports}",
        *(HOOK / source for source in INTERPOSITION),
        HOOK / f"trampoline_{MACHINE}.S",
        C / "test_gate.c",
        "-lpthread",
    )
    return Lab(directory, driver, hook)


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the whole hook as the product does, apart from the tree's own build."""
    output = tmp_path_factory.mktemp("product") / "libsharepod.so"
    return compile_c(
        output,
        *HOOK_FLAGS,
        "-shared",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-z,defs",
        "-Wl,--as-needed",
        "-Wl,-soname,libsharepod.so",
        f"-Wl,--version-script={HOOK / 'exports.map'}",
        *sorted(HOOK.glob("*.c")),
        HOOK / f"trampoline_{MACHINE}.S",
        "-lpthread",
        "-ldl",
    )


@pytest.fixture(scope="module")
def hooked_names() -> int:
    """Return how many symbols the laboratory calls."""
    return len(read_symbols())
