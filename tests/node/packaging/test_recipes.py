"""Test the recipes of docs/development.md literally, and the map of docs/architecture.md."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

from bench.bars import bar
from rig import REPO_ROOT
from sharepod.agent.build_native import usage_module, usage_rows
from sharepod.agent.metrics import collector as agent_metrics
from sharepod.driver import coverage
from sharepod.process.metrics import Table, manual

DOCS = REPO_ROOT / "docs"


def recipe(title: str) -> list[str]:
    """Return the code blocks of a recipe."""
    text = (DOCS / "development.md").read_text()
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"```\w+\n(.+?)\n```", section, re.DOTALL)


def test_a_usage_counter_is_a_row(tmp_path: Path) -> None:
    [row] = recipe("A usage counter")
    copytree(REPO_ROOT / "agent", tmp_path / "agent", ignore=lambda _, names: [n for n in names if n.endswith(".py")])
    table = tmp_path / "agent" / "arbiter" / "usage.def"
    table.write_text(table.read_text().replace("#undef", f"{row}\n#undef"))
    source = '#include "agent/arbiter/arbiter.h"\nuint64_t count(struct sp_usage *usage) { return ++usage->yawns; }\n'
    command = ["cc", "-Wall", "-Werror", f"-I{tmp_path}", "-c", "-o", "/dev/null", "-xc", "-"]
    subprocess.run(command, input=source, text=True, check=True)
    module: dict[str, object] = {}
    exec(usage_module(usage_rows(table.read_text())), module)  # noqa: S102 - our own generated code
    known = module["METRICS"]
    assert isinstance(known, dict)
    assert known["yawns"] == ("sharepod_share_yawns_total", "Turns in which nothing ran.")


def test_a_driver_symbol_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in "driver", "simgpu":
        copytree(REPO_ROOT / room, tmp_path / room)
    table = tmp_path / "driver" / "driver.def"
    table.write_text(f"{table.read_text()}{chr(10).join(recipe('A driver symbol'))}\n")
    sources = [path for path in (tmp_path / "simgpu").glob("*/*.c") if path.parent.name != "nvml"]
    library = tmp_path / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic", f"-I{tmp_path}"]
    command = ["cc", *flags, "-o", library, *sources, "-lpthread"]
    subprocess.run(command, check=True)
    asks = f"""
import ctypes
driver, found = ctypes.CDLL({str(library)!r}), ctypes.c_void_p()
result = driver.cuGetProcAddress(b"cuZebraGetStripes", ctypes.byref(found), 13050, ctypes.c_uint64(0))
print(result, found.value == ctypes.cast(driver.cuZebraGetStripes, ctypes.c_void_p).value, driver.cuZebraRunAsync())
"""
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert done.stdout == "0 True 801\n"
    monkeypatch.setattr(coverage, "_HERE", table.parent)
    assert "| cuZebraGetStripes | 13.5 | `cuZebraGetStripes` | query |" in coverage.manual()
    assert [function.name for function in coverage.read_functions() if function.action][-1] == "cuZebraRunAsync"


def test_a_metric_is_a_row() -> None:
    [row] = recipe("A metric")
    made = eval(row, vars(agent_metrics))  # noqa: S307 - our own document
    assert made.kind == "gauge"
    table = Table("Node", {"node": ()}, (made,), lambda status: [(("n1",), status)])

    class Status:
        devices, shares = (1, 2, 3), (1,)

    [family] = table.families(Status())
    assert [(sample.name, sample.labels, sample.value) for sample in family.metric().samples] == [
        ("sharepod_node_naps", {"node": "n1"}, 2)
    ]
    assert "| `sharepod_node_naps` | gauge | Devices on which nothing runs. |" in manual("Metrics", [], [table])


def test_a_bar_is_a_row() -> None:
    [row] = recipe("A bar")
    known = dict(vars(bar))
    exec(row, known)  # noqa: S102 - our own document
    lines = [known["NAP"].line("two shares", value) for value in (9_900_000, 10_100_000)]
    assert [(line.what, line.bar, line.met) for line in lines] == [
        ("longest nap: two shares", "≤ 10 ms", True),
        ("longest nap: two shares", "≤ 10 ms", False),
    ]


def test_each_step_of_a_launch_has_its_file_and_its_function() -> None:
    text = (DOCS / "architecture.md").read_text()
    steps = re.findall(r"^\| (\d) \w+ \| \[([\w./]+)\]\(\.\./([\w./]+)\) \| `(\w+)` \|$", text, re.MULTILINE)
    assert [number for number, *_ in steps] == list("123456")
    readme = (REPO_ROOT / "README.md").read_text()
    for _, name, path, function in steps:
        assert name == path
        assert re.search(rf"^(?:\w[\w *]*| *(?:async )?def ){function}\(", (REPO_ROOT / path).read_text(), re.MULTILINE)
        assert f"]({path})" in readme


def test_every_room_is_in_the_table() -> None:
    rooms = re.findall(r"^\| `(\w+)/` \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    there = {path.name for path in REPO_ROOT.iterdir() if path.is_dir() and path.name.isalpha()}
    assert set(rooms) == there - {"build", "dist"}
