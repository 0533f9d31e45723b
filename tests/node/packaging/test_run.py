"""Test what `make test` runs and returns, and that in CI a test is skipped only for want of a real GPU.

A failed test runs once more. A test that leaves something behind fails itself.
"""

import json
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
    """Run a command in a tree with this tree's conftest.py and run.py, and with no plugin but xdist."""
    for name in ("conftest.py", "run.py"):
        shutil.copy(REPO_ROOT / "tests" / name, tree)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}  # other plugins cost a second
    env = {**inherited, **plugins, "PYTHONPATH": f"{REPO_ROOT}:{REPO_ROOT / 'tests/support'}", **environment}
    words = [sys.executable, *map(str, command), "-p", "no:cacheprovider"]
    return subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize(
    ("workers", "arguments", "failing", "status", "ran"),
    [
        (1, (), "beside", 1, ["beside gw", "beside al", "alone al"]),  # a failed test runs once more, alone
        (1, (), "alone", 1, ["beside gw", "alone al", "alone al"]),
        (1, ("--timed=without",), "", 0, ["beside gw"]),
        (1, ("--timed=only",), "", 0, ["alone al"]),
        (1, ("-x",), "beside", 2, ["beside gw"]),
        (1, ("-k", "alone", "--room=hook"), "", 0, ["alone al"]),
        (1, ("-k", "neither"), "", 5, []),
        (1, ("--room=huk",), "", 4, []),
        (0, (), "", 0, ["beside al", "alone al"]),
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


LONG = """
import pathlib, time
import pytest

@pytest.fixture(scope="session", autouse=True)
def all_are_here(worker_id):  # else the first worker takes over tests of workers that have not started yet
    pathlib.Path(f"{worker_id}.here").touch()
    for _ in range(6000):
        if len(list(pathlib.Path().glob("*.here"))) == 4:
            return
        time.sleep(0.01)

@pytest.mark.parametrize("number", range(20))
def test_some(number):
    pass

@pytest.mark.early
@pytest.mark.parametrize("number", range(4))
def test_long(number):
    pass
"""


def test_what_takes_long_begins_early_in_half_of_the_workers(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LONG)
    done = called(tmp_path, "-m", "pytest", "-n4", "--dist=worksteal", "-v")
    ran = [line.split() for line in done.stdout.splitlines() if line.startswith("[gw")]
    by_worker = {worker: [words[-1] for words in ran if words[0] == worker] for worker in {words[0] for words in ran}}
    begin_long = [worker for worker, names in by_worker.items() if all("test_long" in name for name in names[:2])]
    assert len(begin_long) == 2, by_worker  # any two workers: they get their parts in the order in which they are ready
    assert len(ran) == 24


FAILS_ONCE = """
import pathlib

def test_{name}():
    seen = pathlib.Path("{name}")
    first = not seen.exists()
    seen.touch()
    assert not first, "the first time"
"""


@pytest.mark.parametrize(
    ("workers", "shaky", "broken", "status"), [(2, 2, 0, 0), (2, 0, 1, 1), (0, 3, 0, 1), (0, 1, 1, 1)]
)
def test_what_fails_is_run_once_more_alone_and_what_then_passes_is_listed(
    tmp_path: Path, workers: int, shaky: int, broken: int, status: int
) -> None:
    for number in range(shaky):
        (tmp_path / f"test_shaky_{number}.py").write_text(FAILS_ONCE.format(name=f"shaky_{number}"))
    for number in range(broken):
        (tmp_path / f"test_broken_{number}.py").write_text("def test_it(): assert 1 == 2")
    (tmp_path / "test_fine.py").write_text(CASE.format(name="fine"))
    done = called(tmp_path, "run.py", workers, FAILING="none")
    assert done.returncode == status, done.stdout
    assert (tmp_path / "ran").read_text().splitlines() == [f"fine {'gw' if workers else 'al'}"]  # passed tests run once
    told = done.stdout.partition("shaky: ")[2].splitlines()
    if shaky:
        assert told[0] == f"{shaky} (failed, then passed alone; more than 2 fail the run)"
        assert sorted(told[1::2]) == [f"  test_shaky_{n}.py::test_shaky_{n}" for n in range(shaky)]
        assert set(told[2::2]) == {f"    test_shaky_{n}.py:8: AssertionError: the first time" for n in range(shaky)}
    else:
        assert not told


STOLEN = """
import os, pathlib, time

def test_it():
    with pathlib.Path("ran").open("a") as ran:
        ran.write("again\\n")
    number = len(pathlib.Path("ran").read_text().split())
    stolen = {stolen}[number - 1] if number <= len({stolen}) else 0
    began = time.monotonic()
    time.sleep(0.2)
    stat = pathlib.Path(os.environ["SHAREPOD_TEST_STAT"])
    words = stat.read_text().split()
    took_ticks = (time.monotonic() - began) * os.sysconf("SC_CLK_TCK") * os.cpu_count()
    words[8] = str(int(words[8]) + round(stolen * took_ticks))
    stat.write_text(" ".join(words))
    {fails}
"""
ROBBED, QUIET = 0.5, 0.001


@pytest.mark.parametrize(
    ("way", "stolen", "failures", "status", "runs", "word"),
    [
        ("crash", [ROBBED], 1, 0, 2, "shaky"),  # only an assertion judges time
        ("timed", [ROBBED], 1, 0, 2, "disturbed"),
        ("timed", [ROBBED, ROBBED], 2, 0, 3, "disturbed"),  # in both runs it judged the host
        ("timed", [QUIET], 1, 0, 2, "shaky"),
        ("timed", [QUIET, ROBBED], 2, 0, 3, "shaky"),
        ("timed", [ROBBED, QUIET], 2, 1, 2, ""),  # the second failure is the code's
        ("timed", [ROBBED] * 9, 9, 1, 6, ""),
        ("node", [ROBBED], 1, 0, 2, "shaky"),  # a test that does not judge time has no excuse
    ],
)
def test_a_test_that_judges_time_is_judged_again_if_the_host_took_the_processors_away(
    tmp_path: Path, way: str, stolen: list[float], failures: int, status: int, runs: int, word: str
) -> None:
    fails = f"assert number > {failures}" if way != "crash" else f"[0][number <= {failures}]"
    place = tmp_path / ("node" if way == "node" else "timed") / "hook"
    place.mkdir(parents=True)
    (place / "test_it.py").write_text(STOLEN.format(stolen=stolen, fails=fails))
    stat = tmp_path / "stat"
    stat.write_text("cpu 1 2 3 4 5 6 7 800 9 10")
    done = called(tmp_path, "run.py", 0, SHAREPOD_TEST_STAT=str(stat))
    assert done.returncode == status, done.stdout
    assert len((tmp_path / "ran").read_text().split()) == runs
    told = {
        line.partition(":")[0]: line for line in done.stdout.splitlines() if line.startswith(("disturbed: ", "shaky: "))
    }
    assert list(told) == ([word] if word else [])
    assert ("of the processors' time was stolen" in done.stdout) == (
        ROBBED in stolen[:1] and bool(word) and way != "node"
    )


def test_a_machine_that_disturbs_more_than_ten_tests_is_not_fit_to_judge(tmp_path: Path) -> None:
    (tmp_path / "timed" / "hook").mkdir(parents=True)
    once = STOLEN.format(stolen=[ROBBED], fails="assert number > 1").replace('"ran"', 'f"ran{case}"')
    once = once.replace(
        "def test_it():", 'import pytest\n\n@pytest.mark.parametrize("case", range(11))\ndef test_it(case):'
    )
    (tmp_path / "timed" / "hook" / "test_it.py").write_text(once)
    stat = tmp_path / "stat"
    stat.write_text("cpu 1 2 3 4 5 6 7 800 9 10")
    done = called(tmp_path, "run.py", 0, SHAREPOD_TEST_STAT=str(stat))
    assert "disturbed: 11 (" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_cannot_be_collected_fails_the_run(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name")
    (tmp_path / "test_fine.py").write_text(CASE.format(name="fine"))
    done = called(tmp_path, "run.py", workers, FAILING="none")
    assert done.returncode != 0, done.stdout


def test_when_many_tests_fail_none_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_many.py").write_text(
        'import pytest\n@pytest.mark.parametrize("n", range(21))\ndef test_it(n): assert False'
    )
    done = called(tmp_path, "run.py", 0)
    assert done.returncode == 1
    assert "21 tests failed: too many to run again" in done.stdout
    assert "once more" not in done.stdout


LEAVES = {
    "socket": "socket.socket()",
    "file": "open('/dev/null')",
    "circle": "circle = []; circle.append((circle, socket.socket()))",
    "loop": "asyncio.new_event_loop()",
    "thread": "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "process": "globals()['kept'] = subprocess.Popen(['sleep', '9'])",
}
SERVER = """
import pytest, subprocess

@pytest.fixture(scope="session")
def server():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()

def test_a(request):
    assert request.getfixturevalue("server").pid

def test_b(server):
    assert server.pid
"""
"""Tests with a thread that serves several of them, which none of them leaves behind."""


def test_a_test_that_leaves_something_behind_fails_and_no_other_does(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    lines = ["import asyncio, socket, subprocess, threading, time"]
    for name, leaves in LEAVES.items():
        lines += [f"def test_{name}(): {leaves}", f"def test_behind_{name}(): [[] for _ in range(100000)]"]
    (tmp_path / "test_leaving.py").write_text("\n".join(lines))
    (tmp_path / "test_served.py").write_text(SERVER)
    done = called(tmp_path, "-m", "pytest", "--outcomes=outcomes.json")
    assert done.returncode == 1
    failed = json.loads((tmp_path / "outcomes.json").read_text())["failed"]
    assert set(failed) == {f"test_leaving.py::test_{name}" for name in LEAVES}
    assert "(sleep 9)" in failed["test_leaving.py::test_process"]


def test_the_packages_that_skipped_tests_lack_are_told_in_one_line(tmp_path: Path) -> None:
    lacks = [f'def test_{n}(): pytest.skip("{n} is needed: apt install {n}-tools")' for n in ("b", "a", "c")]
    (tmp_path / "test_skips.py").write_text("\n".join(["import pytest", *lacks]))
    done = called(tmp_path, "run.py", 0, CI="false")
    assert "3 tests were skipped for want of packages: apt install a-tools b-tools c-tools" in done.stdout


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
