"""`sharepod simulate` as a user sees it."""

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reference import check_placements

from sharepod.cli.simulate import POLICIES
from sharepod.scheduler.policy import DEFAULT, ROWS
from sharepod.scheduler.replay import Placed
from sharepod.scheduler.trace import read_nodes, read_pods

COMMAND = [str(Path(sys.executable).with_name("sharepod")), "simulate"]
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},64000,262144,4,A\n" for n in range(4))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(
    f"p{n},1000,1024,{n % 5 != 4:d},{(810, 470, 1000, 160, 0)[n % 5]}\n" for n in range(30)
)


@pytest.fixture
def lists(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=100, check=False)


def test_policies_are_compared_on_the_same_seeds(lists: list[str]) -> None:
    done = simulate(*lists, "--policy", "worth,fgd", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    totals, failures = (part.splitlines() for part in done.stdout.split("\n\n"))
    assert totals[0].split() == ["POLICY", "ASKED", "FOR", "ALLOCATED", "FRAGMENTED"]
    assert failures[0] == "Failed, of the pods of each size:"
    assert re.split(r"\s{2,}", failures[1].strip())[2:] == ["CPU", "share", "1 GPU"]
    for rows in (totals[2:], failures[3:]):
        assert [row.split()[:2] for row in rows] == [["worth", "100"], ["worth", "130"], ["fgd", "100"], ["fgd", "130"]]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "sharepod: 4 of 4: fgd, seed 1:" in done.stderr


def test_everything_is_there_for_machines(lists: list[str], tmp_path: Path) -> None:
    files = ["--placements", str(tmp_path / "out.csv"), "--picture", str(tmp_path / "curve.png")]
    done = simulate(*lists, "--seeds", "2", "--arrive", "1.1", *files, "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(one["policy"], one["seed"]) for one in told["outcomes"]] == [("worth", 0), ("worth", 1)]
    points = told["outcomes"][0]["points"]
    assert points[-1]["arrived"] >= 1.1
    assert set(points[-1]["failed"]) == {"1 GPU", "CPU", "share"}
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["seed", "pod", "node", "device_indices", "milli"]
    nodes, pods = read_nodes(Path(lists[1])), read_pods(Path(lists[3]))
    for seed in "01":
        check_placements(nodes, pods, [placed(row) for row in rows if row["seed"] == seed])
    given = sum(int(row["milli"]) for row in rows if row["seed"] == "0" and row["node"])
    assert given / 16_000 == pytest.approx(points[-1]["allocated"])
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def placed(row: dict[str, str]) -> Placed:
    devices = tuple(int(index) for index in row["device_indices"].split("|") if index)
    return Placed(row["pod"], row["node"], devices, int(row["milli"]))


def test_a_file_that_cannot_be_written_costs_nothing_else(lists: list[str]) -> None:
    done = simulate(*lists, "--seeds", "1", "--placements", "/dev/full")
    assert done.returncode == 1
    assert "worth" in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "error: cannot write /dev/full: No space left on device: choose another file"
    )


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (("--policy", "best"), 2, "policy 'best' is not known: choose of worth, fgd, binpack, consolidate, spread"),
        (("--policy", "fgd,fgd"), 2, "names one twice"),
        (("--arrive", "0"), 2, "--arrive 0 cannot be: above 0 and at most 10"),
        (("--arrive", "nan"), 2, "--arrive nan cannot be"),
        (("--seeds", "0"), 2, "--seeds 0 cannot be: 1 to 1000"),
        (("--jobs", "-1"), 2, "--jobs -1 cannot be"),
        (("--seed", "3"), 2, "No such option"),
        (("--picture", "curve.svg"), 2, "is no PNG"),
        (("--placements", "/nowhere/out.csv"), 1, "cannot write /nowhere/out.csv: /nowhere is not there"),
        (("--policy", "worth,fgd", "--placements", "out.csv"), 2, "--placements is for one policy, --policy names 2"),
        (("--pods", "/nowhere.csv"), 1, "/nowhere.csv: No such file or directory: give a CSV file"),
    ],
)
def test_a_flag_that_cannot_be_is_one_line(lists: list[str], change: tuple[str, ...], code: int, text: str) -> None:
    done = simulate(*lists, *change)
    assert done.returncode == code
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert text in line


def test_a_line_that_cannot_be_is_named(lists: list[str], tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text(PODS.replace("p7,1000", "p7,lots"))
    done = simulate(*lists)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pods.csv: line 9: cpu_milli is 'lots': a whole number from 0 is needed" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("wait_s", [0.9, 1.3, None])
def test_nothing_is_left_when_a_signal_ends_it(lists: list[str], number: signal.Signals, wait_s: float | None) -> None:
    running = subprocess.Popen(
        [*COMMAND, *lists, "--seeds", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr
    if wait_s is None:
        assert "1 of 1000" in running.stderr.readline()
    else:
        time.sleep(wait_s)
    if number == signal.SIGINT:  # as a terminal does: to all of the foreground
        for child in children(running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
    running.send_signal(number)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in errors
    deadline = time.monotonic() + 10
    while children(running.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not children(running.pid)


def test_a_process_that_is_killed_is_said(lists: list[str]) -> None:
    running = subprocess.Popen(
        [*COMMAND, *lists, "--seeds", "1000"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while running.poll() is None:  # one that has told its result already is not missed
        for victim in children(running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    assert errors.splitlines()[-1].startswith("error: a process of the simulation ended with -9 (-9: killed, perhaps")


@pytest.mark.parametrize(
    ("one", "other"), [("--placements", "--pods"), ("--picture", "--nodes"), ("--placements", "--picture")]
)
def test_a_file_is_not_written_over_another(lists: list[str], tmp_path: Path, one: str, other: str) -> None:
    (tmp_path / "x.png").write_text(PODS)
    named = dict(zip(lists[::2], lists[1::2], strict=True)) | {
        one: str(tmp_path / "x.png"),
        other: str(tmp_path / "x.png"),
    }
    done = simulate(*(part for pair in named.items() for part in pair))
    assert (done.returncode, done.stdout) == (2, "")
    assert "are the same file: give each its own" in done.stderr
    assert (tmp_path / "x.png").read_text() == PODS


def test_models_that_no_node_has_are_told(lists: list[str], tmp_path: Path) -> None:
    head, *rows = PODS.splitlines()
    (tmp_path / "pods.csv").write_text("\n".join([f"{head},gpu_spec", *(f"{row},a" for row in rows)]))
    done = simulate(*lists, "--seeds", "1")
    assert done.returncode == 0
    assert "pods insist on models that no node has and will fail: a" in done.stderr


def children(session: int) -> list[int]:
    """Return the other processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and int(path.parent.name) != session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_the_command_knows_the_policies_that_there_are() -> None:
    assert tuple(ROWS) == POLICIES
    assert POLICIES[0] == DEFAULT
