"""`make test` runs what judges real time alone, after all the rest; its status tells of both parts."""

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


@pytest.fixture
def tree(tmp_path: Path, repo_root: Path) -> Path:
    """A tree with one test of each part."""
    for name in ("conftest.py", "run.py"):
        shutil.copy(repo_root / "tests" / name, tmp_path)
    for way, name in (("node", "beside"), ("timed", "alone")):
        (tmp_path / way / "hook").mkdir(parents=True)
        (tmp_path / way / "hook" / f"test_{name}.py").write_text(CASE.format(name=name))
    return tmp_path


def run(tree: Path, workers: int, *arguments: str, failing: str = "") -> tuple[int, list[str]]:
    """Return the status and what ran where, in this order: under a worker (`gw`) or not (`al`)."""
    command = [sys.executable, str(tree / "run.py"), str(workers), "-p", "no:cacheprovider", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**inherited, "FAILING": failing, "PYTHONPATH": str(REPO_ROOT)}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=100)
    ran = tree / "ran"
    return done.returncode, ran.read_text().splitlines() if ran.exists() else []


@pytest.mark.parametrize(
    ("workers", "arguments", "failing", "status", "ran"),
    [
        (1, (), "beside", 1, ["beside gw", "alone al"]),
        (1, (), "alone", 1, ["beside gw", "alone al"]),
        (1, ("-x",), "beside", 2, ["beside gw"]),
        (1, ("-k", "beside"), "", 0, ["beside gw"]),
        (1, ("-k", "alone"), "", 0, ["alone al"]),
        (1, ("-k", "neither"), "", 5, []),
        (1, ("--room=hook",), "", 0, ["beside gw", "alone al"]),
        (1, ("--room=huk",), "", 4, []),
        (0, ("-p", "no:randomly"), "", 0, ["beside al", "alone al"]),
    ],
)
def test_what_runs_where_and_the_status(
    tree: Path, workers: int, arguments: tuple[str, ...], failing: str, status: int, ran: list[str]
) -> None:
    assert run(tree, workers, *arguments, failing=failing) == (status, ran)
