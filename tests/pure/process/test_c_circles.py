"""Test that C files of a room do not call each other in a circle, beyond the circles that are listed here.

A circle is a set of files each of which reaches every other by calls of functions that are not static. Inside a circle
no file can be understood, tested or replaced by itself. The listed ones may only shrink.
"""

import re
from pathlib import Path

import pytest

from rig import REPO_ROOT

DEFINITION = re.compile(
    r"^(?!static|#|/|\s|\}|extern|typedef)[\w\s*()]*?\b(\w+)\(([^;{}]*?)\)[\w\s()]*\{", re.MULTILINE
)
OWN = re.compile(r"^static[\w\s*]*?\b(\w+)\(", re.MULTILINE)
CALL = re.compile(r"\b(\w+)\s*\(")
MACROS = {"__attribute__", "SP_WRAPPER", "NVML_WRAPPER"}
CIRCLES = {
    "agent": [{"bill", "gang", "identity", "pressure", "slots", "step", "turn"}],
    "hook": [
        {"thread", "wait", "capture", "keeper", "keeper_thread", "marker", "record", "stand", "stream_state"},
        {"account", "allocation_table", "graph", "pool", "pool_table"},
        {"attach", "intercept"},
    ],
    "region": [],
    "scheduler": [],
    "simgpu": [
        {
            "context", "module", "process", "capture", "capture_nodes", "conditional", "exec", "graph", "memory",
            "nodes", "steps", "user_object", "array", "array_copy", "charge", "mapping", "pool", "vmm", "batch", "copy",
            "event", "host_function", "launch", "stream", "wait",
        },
        {"client", "model", "repair", "state"},
        {"board", "device", "nvml"},
    ],
}  # fmt: skip
"""By room: the files of each circle that is left, without the endings of their names."""


def without_words(source: str) -> str:
    """Return C source without comments and string literals."""
    return re.sub(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', " ", source, flags=re.DOTALL)


def calls(folder: Path) -> dict[Path, set[Path]]:
    """Return for each C file below a folder the other files of which it calls functions."""
    texts = {path: without_words(path.read_text()) for path in sorted(folder.rglob("*.c")) if path.name[0] != "_"}
    homes: dict[str, Path] = {}
    for path, text in texts.items():
        for found in DEFINITION.finditer(text):
            if found[1] not in MACROS:
                homes.setdefault(found[1], path)
    called = {path: set(CALL.findall(text)) - set(OWN.findall(text)) for path, text in texts.items()}
    return {path: {homes[name] for name in names if name in homes} - {path} for path, names in called.items()}


def circles(edges: dict[Path, set[Path]]) -> list[set[Path]]:
    """Return the sets of two and more files that reach each other."""
    reached: dict[Path, set[Path]] = {}
    for start in edges:
        seen: set[Path] = set()
        open_ = [start]
        while open_:
            more = edges[open_.pop()] - seen
            seen |= more
            open_ += more
        reached[start] = seen
    found: list[set[Path]] = []
    for start in edges:
        circle = {other for other in reached[start] if start in reached[other]}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


@pytest.mark.parametrize("room", CIRCLES)
def test_no_new_circle_of_calls(room: str) -> None:
    found = [{path.stem for path in circle} for circle in circles(calls(REPO_ROOT / room))]
    assert sorted(map(sorted, found)) == sorted(map(sorted, CIRCLES[room])), "a circle that has shrunk is listed anew"


def test_a_circle_is_found_whatever_its_length(tmp_path: Path) -> None:
    sources = {
        "a": "int one(int x) {\n  return two(x);\n}\n",
        "b": "int two(int x) {\n  return three(x);\n}\n",
        "c": "/* four(x) */\nint three(int x) {\n  return x ? one(0) : four(x);\n}\n",
        "d": "int four(int x) {\n  return x;\n}\nstatic int one(int y) {\n  return y;\n}\n",
    }
    for name, text in sources.items():
        (tmp_path / f"{name}.c").write_text(text)
    assert [{path.stem for path in circle} for circle in circles(calls(tmp_path))] == [{"a", "b", "c"}]
