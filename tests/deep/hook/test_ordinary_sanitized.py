"""Programs that are built with a sanitizer work under the hook."""

from pathlib import Path

import pytest
from hooklab import STRICT, C, Lab, clean_environment, compile_c, run
from ordinary import gate_was_reached


@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined"])
def test_a_sanitized_program_starts_and_is_hooked(lab: Lab, hooked_names: int, sanitizer: str) -> None:
    program = compile_c(
        lab.directory / f"routes-{sanitizer}", *STRICT, "-DPROGRAM", f"-fsanitize={sanitizer}", C / "routes.c", "-ldl"
    )
    quiet = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}
    done = run([program, "soname"], lab.env(lab.hook, **quiet))
    assert done.returncode == 0, done.stderr
    assert gate_was_reached(done, hooked_names)
    assert "Sanitizer" not in done.stderr


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_sanitized_program_works_under_the_product(product: Path, lab: Lab, sanitizer: str) -> None:
    program = compile_c(
        lab.directory / f"busy-{sanitizer}", "-O1", "-g", f"-fsanitize={sanitizer}", C / "busy.c", "-lpthread", "-ldl"
    )
    env = clean_environment() | {"LD_PRELOAD": str(product), "ASAN_OPTIONS": "verify_asan_link_order=0"}
    done = run([program], env)
    assert (done.returncode, done.stdout) == (0, "busy 4\n"), done.stderr
