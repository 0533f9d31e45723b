"""Test that programs built with a sanitizer are metered under the hook and work as they do without it."""

from pathlib import Path

import pytest
from every_symbol import EVERY, Node
from hooklab import C, clean_environment, compile_c, run

from sharepod.hook import LIBRARY

QUIET = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}


@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined"])
def test_every_symbol_is_metered_in_a_sanitized_program(node: Node, tmp_path: Path, sanitizer: str) -> None:
    program = compile_c(tmp_path / "every", *EVERY, f"-fsanitize={sanitizer}")
    assert "Sanitizer" not in node.check_run(program, "soname", env=QUIET)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_sanitized_program_forks_and_loads_as_ever(tmp_path: Path, sanitizer: str) -> None:
    flags = ["-O1", "-g", f"-fsanitize={sanitizer}"]
    program = compile_c(tmp_path / "busy", *flags, C / "busy.c", "-lpthread", "-ldl")
    done = run(
        [program], clean_environment() | {"LD_PRELOAD": str(LIBRARY), "ASAN_OPTIONS": "verify_asan_link_order=0"}
    )
    assert (done.returncode, done.stdout) == (0, "busy 4\n"), done.stderr
