"""Test that the source tree matches the packaging."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_link_in_sharepod_leads_to_a_package_of_the_tree(repo_root: Path) -> None:
    links = [entry for entry in (repo_root / "sharepod").iterdir() if entry.is_symlink()]
    assert links
    for link in links:
        assert link.readlink() == Path("..") / link.name
        assert (link / "__init__.py").is_file(), f"{link.name} is not a package"


def test_every_dependency_is_explained_and_pinned_by_name_and_exact_version(repo_root: Path) -> None:
    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {canonical(re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0]) for requirement in declared} - {"sharepod"}
    lines = (repo_root / "constraints.txt").read_text().splitlines()
    pins = {canonical(line.split("==")[0]) for line in lines}
    explained = (repo_root / "docs" / "dependencies.md").read_text()
    assert names <= pins
    assert [name for name in sorted(names) if f"`{name}`" not in explained.lower()] == []
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!]+", line)] == []
    assert lines == sorted(lines, key=lambda line: line.split("==")[0].lower())


def test_make_alone_says_what_can_be_made(repo_root: Path) -> None:
    shown = subprocess.run(["make", "-s"], cwd=repo_root, capture_output=True, text=True, check=True).stdout
    for target in ("help", "build", "demo", "test", "deep", "soak", "e2e", "check", "bench"):
        assert re.search(rf"^  make {target} +\S", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["PYTHON=python3-of-nowhere"], "python3-of-nowhere is missing: apt install python3"),
        (["CC=cc-of-nowhere"], "the C compiler cc-of-nowhere is missing: apt install gcc libc6-dev"),
    ],
)
def test_a_missing_tool_is_one_clear_line(repo_root: Path, tmp_path: Path, arguments: list[str], cause: str) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        shutil.copy(repo_root / name, tmp_path)
    done = subprocess.run(
        ["make", "-s", "build", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == cause
    assert not (tmp_path / ".venv").exists()


def test_sharepod_is_the_only_name_in_site_packages(repo_root: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('hook', 'simgpu', 'cli', 'agent') if u.find_spec(n)])"
    found = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
