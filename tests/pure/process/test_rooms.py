"""Test the layout of the tree: folders are small, READMEs name their files, lists of lines are current."""

import re
from pathlib import Path

import pytest

from rig import REPO_ROOT

ROOMS = (
    "region",
    "driver",
    "hook",
    "agent",
    "deviceplugin",
    "scheduler",
    "webhook",
    "cli",
    "kube",
    "process",
    "simgpu",
)
MOST_FILES = 20
MOST_LINES = 40
CODE = (".py", ".c", ".S")


def code(room: str) -> list[Path]:
    """Return the sources of a room that are not generated."""
    found = (path for path in (REPO_ROOT / room).rglob("*") if path.suffix in CODE)
    return [path for path in found if not path.name.startswith(("_native", "__", "build_"))]


@pytest.mark.parametrize("room", ROOMS)
def test_no_folder_has_more_files_than_can_be_looked_through(room: str) -> None:
    folders = {path.parent for path in code(room)}
    for folder in folders:
        files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(("_", "lib"))]
        assert len(files) <= MOST_FILES, folder


@pytest.mark.parametrize("room", ROOMS)
def test_the_readme_of_a_room_is_short_and_names_every_file(room: str) -> None:
    readme = (REPO_ROOT / room / "README.md").read_text()
    if room not in ("driver", "process"):
        assert len(readme.splitlines()) <= MOST_LINES
    told = readme + "".join(path.read_text() for path in (REPO_ROOT / room).glob("*/README.md"))
    missing = [path.name for path in code(room) if not re.search(rf"`[^`]*\b{re.escape(path.name)}`", told)]
    assert [name for name in missing if not name.startswith("trampoline")] == []


@pytest.mark.parametrize("room", ROOMS)
def test_the_image_is_built_of_all_rooms(room: str) -> None:
    assert f"!{room}" in (REPO_ROOT / ".dockerignore").read_text().splitlines()


def test_every_slip_that_changes_nothing_is_a_line_of_its_file() -> None:
    listed = (REPO_ROOT / "tests" / "mutants" / "equivalent.txt").read_text().splitlines()
    slips = [line.split("\t") for line in listed if line and not line.startswith("#")]
    gone = [
        (path, before)
        for path, before, _, _ in slips
        if before not in map(str.strip, (REPO_ROOT / path).read_text().splitlines())
    ]
    assert gone == []


@pytest.mark.parametrize("room", ["region", "hook", "agent"])
def test_memory_orders_are_named_on_one_page(room: str) -> None:
    sources = [*(REPO_ROOT / room).rglob("*.c"), *(REPO_ROOT / room).rglob("*.h")]
    naming = {path.name for path in sources if "__ATOMIC" in path.read_text() or "stdatomic" in path.read_text()}
    assert naming == ({"order.h"} if room == "region" else set())
