"""In CI a test may be skipped only for want of a real GPU; anywhere else a skip is a skip."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import pytest

{mark}
def test_something():
    pytest.skip("a tool is missing")
"""
MODULE = """
import pytest

pytest.skip("a module is missing", allow_module_level=True)
"""


def outcome(tmp_path: Path, repo_root: Path, text: str, ci: str) -> tuple[int, str]:
    shutil.copy(repo_root / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a real GPU\n")
    (tmp_path / "test_skipping.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(repo_root)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("text", [CASES.format(mark=""), MODULE])
def test_a_skip_in_ci_fails_and_says_why(tmp_path: Path, repo_root: Path, text: str) -> None:
    code, output = outcome(tmp_path, repo_root, text, "true")
    assert code != 0
    assert "is missing" in output


@pytest.mark.parametrize(
    ("text", "ci"),
    [(CASES.format(mark="@pytest.mark.gpu"), "true"), (CASES.format(mark=""), ""), (CASES.format(mark=""), "false")],
)
def test_want_of_a_gpu_and_a_machine_of_ones_own_excuse_a_skip(
    tmp_path: Path, repo_root: Path, text: str, ci: str
) -> None:
    code, output = outcome(tmp_path, repo_root, text, ci)
    assert code == 0, output
    assert "1 skipped" in output
