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
from cluster_world import node_body, pod_body
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
    assert points[-1]["insisting"] == {"failed": 0, "arrived": 0}
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
        (("--once", "--arrive", "1"), 2, "--once and --arrive exclude each other: give one of them"),
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


def live(tmp_path: Path) -> list[str]:
    """Write a cluster of three nodes with two devices each, and pods for four devices and a half; one cannot be."""
    nodes = [{**node_body(f"n{number}", 2), "kind": "Node"} for number in range(3)]
    pods = [{**pod_body(f"p{number}", 60 if number % 2 else 40), "kind": "Pod"} for number in range(6)]
    both = pod_body("both", 30)
    both["spec"]["containers"].append({"name": "whole", "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    wrong = [pod_body(f"wrong{number}", 30, {"sharepod.io/limit": "10"}) for number in range(3)]
    plain = [pod_body(f"plain{number}", 0) for number in range(5)]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": [*pods, both, *wrong, *plain]}))
    return ["--nodes", str(tmp_path / "nodes.json"), "--pods", str(tmp_path / "pods.json")]


def test_a_live_cluster_is_asked_whether_its_pods_fit_each_of_them_once(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = simulate(*live(tmp_path), "--once", "--seeds", "3", "--placements", str(out))
    assert done.returncode == 0, done.stderr
    totals, failures = (part.splitlines() for part in done.stdout.split("\n\n"))
    assert totals[2].split() == ["worth", "71.67", "%", "71.67", "%", "±", "0.00", *totals[2].split()[7:]]
    assert failures[3].split() == ["worth", "71.67", "%", "0.00", "%", "0.00", "%"], "CPU pods and shares: none failed"
    left_out = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(left_out) == 1
    assert left_out[0].startswith("sharepod: left out, as it can be placed nowhere: default/wrong0: sharepod.io/limit")
    assert left_out[0].endswith("; and 2 more pods")
    with out.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == "2"]
    names = [row["pod"] for row in rows]
    assert len(set(names)) == 12, "each of them came"
    assert sorted(names) == sorted([*set(names), "default/both"]), "a pod with two shares has two lines"
    both = [(row["node"], row["milli"], row["device_indices"]) for row in rows if row["pod"] == "default/both"]
    assert [milli for _, milli, _ in both] == ["300", "1000"]
    assert both[0][0] == both[1][0]
    assert both[0][2] != both[1][2]
    taken: dict[tuple[str, str], int] = {}
    for row in rows:
        for index in filter(None, row["device_indices"].split("|")):
            taken[row["node"], index] = taken.get((row["node"], index), 0) + int(row["milli"])
    assert sum(taken.values()) == 4300
    assert max(taken.values()) <= 1000


def test_a_live_cluster_is_asked_for_more_than_it_has(tmp_path: Path) -> None:
    done = simulate(*live(tmp_path), "--arrive", "1.2", "--seeds", "2", "--policy", "worth,binpack", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["arrive"] == 1.2
    assert min(one["points"][-1]["arrived"] for one in told["outcomes"]) >= 1.2
    once = json.loads(simulate(*live(tmp_path), "--once", "--seeds", "1", "-o", "json").stdout)
    assert once["arrive"] is None
    last = once["outcomes"][0]["points"][-1]
    assert last["arrived"] == pytest.approx(4.3 / 6)
    assert sum(size["arrived"] for size in last["failed"].values()) == 12


def test_files_of_a_cluster_that_are_mixed_up_or_cut_off_are_one_line(tmp_path: Path) -> None:
    nodes, pods = live(tmp_path)[1::2]
    done = simulate("--nodes", pods, "--pods", nodes)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {pods}: it has a Pod, Nodes are needed: were the files mixed up?\n"
    Path(pods).write_text(Path(pods).read_text()[:-100])
    done = simulate("--nodes", nodes, "--pods", pods)
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {pods}: ")
    assert line.endswith("it is cut off, or no JSON: get it again with kubectl get pods -A -o json")


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
    # A signal that comes before the command has read its arguments ends it as it would any program.
    early = {-number} if wait_s is not None or number == signal.SIGKILL else set()
    assert running.returncode in {128 + number} | early
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
