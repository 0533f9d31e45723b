"""Test `sharepod simulate` as a user sees it."""

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from cli_fixtures import Sharepod
from cluster_world import node_body, pod_body
from reference import check_placements

from sharepod.cli.commands.play import listed
from sharepod.cli.commands.simulate import POLICIES
from sharepod.scheduler.placement.policy import DEFAULT, ROWS
from sharepod.scheduler.simulation.replay import Placed
from sharepod.scheduler.state.trace import read_nodes, read_pods

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
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=200, check=False)


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
    failed = points[-1]["failed"].values()
    first = [row for row in rows if row["seed"] == "0"]
    assert sum(size["arrived"] for size in failed) == len(first)
    assert sum(size["failed"] for size in failed) == sum(not row["node"] for row in first) > 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def begun(lists: list[str]) -> subprocess.Popen[str]:
    """Start a long simulation in a session of its own."""
    return subprocess.Popen(
        [*COMMAND, *lists, "--seeds", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


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
        (("--placements", "same.png", "--picture", "same.png"), 2, "are the same file: give each its own"),
        (("--placements", "x.csv", "--pods", "x.csv"), 2, "--pods and --placements are the same file"),
        (("--picture", "x.png", "--nodes", "x.png"), 2, "--nodes and --picture are the same file"),
        (("--policy", "worth,fgd", "--placements", "out.csv"), 2, "--placements is for one policy, --policy names 2"),
        (("--times", "--once"), 2, "--times and --once exclude each other"),
        (("--times", "--seeds", "2"), 2, "with --times there is one order"),
        (("--times", "--placements", "x.csv"), 2, "--placements is of pods that stay"),
        (("--times", "--picture", "x.png"), 2, "--picture is of pods that stay"),
        (("--queues", "q.yaml"), 2, "--queues is for pods that wait"),
        (("--pods", "/nowhere.csv"), 1, "/nowhere.csv: No such file or directory: give a CSV file"),
    ],
)
def test_a_flag_that_cannot_be_is_one_line(
    lists: list[str], sharepod: Sharepod, change: tuple[str, ...], code: int, text: str
) -> None:
    answer = sharepod("simulate", *lists, *change)
    assert (answer.code, answer.out) == (code, "")
    [line] = answer.err.splitlines()
    assert line.startswith("error: ")
    assert text in line


@pytest.mark.parametrize(("left", "says"), [(0, "--nodes is missing"), (2, "--pods is missing")])
@pytest.mark.parametrize("mode", [[], ["--times"]])
def test_a_list_that_is_missing_is_named(lists: list[str], mode: list[str], left: int, says: str) -> None:
    done = simulate(*lists[:left], *lists[left + 2 :], *mode)
    assert done.returncode == 2
    assert says in done.stderr


def live(tmp_path: Path) -> list[str]:
    """Write a cluster of three nodes with two devices each, and pods for four and a half devices; one never fits."""
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
    assert len({row["pod"] for row in rows}) == 12, "each of them came"
    part, whole = (row for row in rows if row["pod"] == "default/both")
    assert (part["milli"], whole["milli"]) == ("300", "1000"), "a pod with two shares has two lines"
    assert part["node"] == whole["node"]
    assert part["device_indices"] != whole["device_indices"]


@pytest.mark.parametrize(
    ("number", "wait_s"), [*product((signal.SIGINT, signal.SIGTERM), (0.9, None)), (signal.SIGKILL, None)]
)
def test_nothing_is_left_when_a_signal_ends_it(lists: list[str], number: signal.Signals, wait_s: float | None) -> None:
    running = begun(lists)
    assert running.stderr
    if wait_s is None:
        assert "1 of 1000" in running.stderr.readline()
    else:
        time.sleep(wait_s)
    if number == signal.SIGINT:  # a terminal sends it to all foreground processes
        for child in children(running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
    running.send_signal(number)
    _, errors = running.communicate(timeout=30)
    # A signal that comes before the command has read its arguments ends it like any program.
    early = {-number} if wait_s is not None or number == signal.SIGKILL else set()
    assert running.returncode in {128 + number} | early
    assert "Traceback" not in errors
    deadline = time.monotonic() + 10
    while children(running.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not children(running.pid)


def test_a_process_that_is_killed_is_said(lists: list[str]) -> None:
    running = begun(lists)
    while running.poll() is None:  # a worker that has already sent its result is not missed
        for victim in children(running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    assert errors.splitlines()[-1].startswith("error: a process of the simulation ended with -9 (-9: killed, perhaps")


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


ONE_DEVICE = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,1,A\n"
TIMED_PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,user,priority,gang_size,gang_min\n"
    "low,1000,1024,1,1000,BE,100,300,a,,,\n"  # it is paused for `high` for 50 s from 150 on
    "high,1000,1024,1,600,LS,150,200,b,,,\n"
    "late,1000,1024,1,1000,BE,160,170,a,,,\n"  # it waits for both
    "wide,1000,1024,1,500,BE,500,560,c,7,2,1\n"  # two halves of the device
    "cpu,1000,1024,0,0,BE,100,,a,,,\n"  # it asks for no device
    "never,1000,1024,4,1000,LS,100,200,d,,,\n"
)


@pytest.fixture
def timed(tmp_path: Path) -> list[str]:
    """Return the flags for a cluster of one device, and pods that come and go."""
    (tmp_path / "nodes.csv").write_text(ONE_DEVICE)
    (tmp_path / "pods.csv").write_text(TIMED_PODS)
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


def test_pods_come_wait_yield_and_go_at_their_times(timed: list[str]) -> None:
    done = simulate(*timed, "--times", "-o", "json")
    assert done.returncode == 0, done.stderr
    [play] = json.loads(done.stdout)["plays"]
    by_priority = {waits["priority"]: waits for waits in play["waits"]}
    assert set(by_priority) == {1000, 7, 0}
    assert (by_priority[1000]["tasks"], by_priority[1000]["longest_s"]) == (1, pytest.approx(0, abs=1.1))
    assert by_priority[0]["paused"] == 1
    assert by_priority[0]["stopped_longest_s"] == pytest.approx(50, abs=3)
    assert by_priority[0]["longest_s"] == pytest.approx(190, abs=3), "`late` begins when `low` has ended, at 350"
    assert (play["devices"], play["unfit"], play["unended"]) == (1, 1, 0)
    assert play["used"] == pytest.approx(0.605, abs=0.02), "of 400 s: 200 at 1, 50 at 0.6 and 10 at 1, less the rounds"


def test_a_pod_without_an_end_runs_to_the_lists_last_moment_and_each_for_a_second_at_least(tmp_path: Path) -> None:
    header = TIMED_PODS.partition("\n")[0]
    open_ended = [("open", 1, 120, ""), ("open", 1, 290, "")]
    rows = [open_ended[0], ("shown", 1, 100, 300), ("blink", 1, 250, 250), open_ended[1], ("cpu", 0, 130, 310)]
    lines = [f"{name},1,1,{gpus},500,,{came},{ended},,,," for name, gpus, came, ended in rows]
    (tmp_path / "pods.csv").write_text("\n".join([header, *lines, ""]))
    tasks = {task.name: (task.arrive_s, task.run_s, task.user) for task in listed(tmp_path / "pods.csv")}
    assert tasks == {
        "open#0": (20, 190, "default"), "shown#1": (0, 200, "default"), "blink#2": (150, 1, "default"),
        "open#3": (190, 20, "default"),
    }  # fmt: skip


def test_what_is_for_people_says_the_same(timed: list[str]) -> None:
    done = simulate(*timed, "--times", "--policy", "worth,binpack")
    assert done.returncode == 0, done.stderr
    totals, waits = done.stdout.split("\n\n")
    assert [line.split()[:2] for line in totals.splitlines()[2:]] == [["worth", "1"], ["binpack", "1"]]
    assert waits.startswith("How long jobs waited")
    assert max(map(len, done.stdout.splitlines())) <= 110
    assert "sharepod: 2 of 2: binpack:" in done.stderr


def test_the_rules_of_queues_are_those_of_a_cluster(timed: list[str], tmp_path: Path) -> None:
    rules = tmp_path / "queues.yaml"
    rules.write_text("b: {cap: 0.5}\n")
    done = simulate(*timed, "--times", "--queues", str(rules), "-o", "json")
    assert done.returncode == 0, done.stderr
    [play] = json.loads(done.stdout)["plays"]
    assert [waits["unstarted"] for waits in play["waits"] if waits["priority"] == 1000] == [1], "0.6 is above b's cap"
    rules.write_text("a: {weight: -1}\n")
    done = simulate(*timed, "--times", "--queues", str(rules))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "weight is '-1': give a number above 0" in done.stderr
