"""What `make test` runs where, what its status tells, and that in CI a test is skipped only for want of a real GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rig import REPO_ROOT

CASE = """
import os, pathlib

def test_{name}():
    with pathlib.Path("ran").open("a") as ran:
        ran.write(f"{name} {{os.environ.get('PYTEST_XDIST_WORKER', 'alone')[:2]}}\\n")
    assert "{name}" != os.environ["FAILING"]
"""
SKIPS = """
import pytest

{mark}
def test_something():
    pytest.skip("a tool is missing")
"""
SKIPPED_MODULE = 'import pytest\npytest.skip("a module is missing", allow_module_level=True)\n'
GPU = SKIPS.format(mark="@pytest.mark.gpu")


def called(tree: Path, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a tree that has the conftest.py and the run.py of this one."""
    for name in ("conftest.py", "run.py"):
        shutil.copy(REPO_ROOT / "tests" / name, tree)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**inherited, "PYTHONPATH": str(REPO_ROOT), **environment}
    words = [sys.executable, *map(str, command), "-p", "no:cacheprovider"]
    return subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize(
    ("workers", "arguments", "failing", "status", "ran"),
    [
        (1, (), "beside", 1, ["beside gw", "alone al"]),
        (1, (), "alone", 1, ["beside gw", "alone al"]),
        (1, ("-x",), "beside", 2, ["beside gw"]),
        (1, ("-k", "alone", "--room=hook"), "", 0, ["alone al"]),
        (1, ("-k", "neither"), "", 5, []),
        (1, ("--room=huk",), "", 4, []),
        (0, ("-p", "no:randomly"), "", 0, ["beside al", "alone al"]),
    ],
)
def test_timed_tests_run_alone_after_the_rest_and_the_status_tells_of_both(
    tmp_path: Path, workers: int, arguments: tuple[str, ...], failing: str, status: int, ran: list[str]
) -> None:
    for way, name in (("node", "beside"), ("timed", "alone")):
        (tmp_path / way / "hook").mkdir(parents=True)
        (tmp_path / way / "hook" / f"test_{name}.py").write_text(CASE.format(name=name))
    done = called(tmp_path, "run.py", workers, *arguments, FAILING=failing)
    told = tmp_path / "ran"
    assert (done.returncode, told.read_text().splitlines() if told.exists() else []) == (status, ran)


@pytest.mark.parametrize(
    ("text", "ci", "fails"),
    [
        (SKIPS.format(mark=""), "true", True),
        (SKIPPED_MODULE, "true", True),
        (GPU, "true", False),
        (SKIPS.format(mark=""), "false", False),
    ],
)
def test_a_skip_in_ci_fails_and_says_why_but_for_want_of_a_gpu(
    tmp_path: Path, text: str, ci: str, *, fails: bool
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a real GPU\n")
    (tmp_path / "test_skipping.py").write_text(text)
    done = called(tmp_path, "-m", "pytest", "-q", CI=ci)
    assert bool(done.returncode) is fails
    assert ("is missing" in done.stdout) if fails else ("1 skipped" in done.stdout)
