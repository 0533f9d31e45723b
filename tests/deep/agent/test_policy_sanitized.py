"""The policy under the sanitizers of the compiler, with calls that make no sense."""

import subprocess
from pathlib import Path

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_no_call_whatever_its_values_breaks_an_invariant_or_overflows(repo_root: Path, tmp_path: Path) -> None:
    program = tmp_path / "fuzz"
    sources = ["tests/support/agent/fuzz.c", "agent/policy.c", "agent/policy_accounts.c", "agent/policy_rates.c"]
    command = ["cc", "-std=c11", "-O1", "-g", *WARNINGS, *SANITIZERS, "-I.", "-o", str(program), *sources]
    subprocess.run(command, cwd=repo_root, check=True)
    result = subprocess.run([str(program)], check=False, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
