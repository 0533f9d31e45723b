"""`sharepod simulate` with pods that come, wait, yield and go, as a user sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharepod.scheduler.errors import TraceError
from sharepod.scheduler.trace import read_timed_pods

COMMAND = [str(Path(sys.executable).with_name("sharepod")), "simulate"]
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,1,A\n"
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,user,priority,gang_size,gang_min\n"
PODS = HEAD + (
    "low,1000,1024,1,1000,BE,100,300,a,,,\n"  # it is paused for `high` from 150 on, for 50 s
    "high,1000,1024,1,600,LS,150,200,b,,,\n"
    "late,1000,1024,1,1000,BE,160,170,a,,,\n"  # it waits for both
    "wide,1000,1024,1,500,BE,500,560,c,7,2,1\n"  # two halves of the device
    "cpu,1000,1024,0,0,BE,100,,a,,,\n"  # it asks for no device
    "never,1000,1024,4,1000,LS,100,200,d,,,\n"
)


@pytest.fixture
def lists(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=200, check=False)


def test_pods_come_wait_yield_and_go_at_their_times(lists: list[str]) -> None:
    done = simulate(*lists, "--times", "-o", "json")
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


def test_what_is_for_people_says_the_same(lists: list[str]) -> None:
    done = simulate(*lists, "--times", "--policy", "worth,binpack")
    assert done.returncode == 0, done.stderr
    totals, waits = done.stdout.split("\n\n")
    assert [line.split()[:2] for line in totals.splitlines()[2:]] == [["worth", "1"], ["binpack", "1"]]
    assert waits.startswith("How long jobs waited")
    assert max(map(len, done.stdout.splitlines())) <= 110
    assert "sharepod: 2 of 2: binpack:" in done.stderr


def test_the_rules_of_queues_are_those_of_a_cluster(lists: list[str], tmp_path: Path) -> None:
    rules = tmp_path / "queues.yaml"
    rules.write_text("b: {cap: 0.5}\n")
    done = simulate(*lists, "--times", "--queues", str(rules), "-o", "json")
    assert done.returncode == 0, done.stderr
    [play] = json.loads(done.stdout)["plays"]
    assert [waits["unstarted"] for waits in play["waits"] if waits["priority"] == 1000] == [1], "0.6 is above b's cap"
    rules.write_text("a: {weight: -1}\n")
    done = simulate(*lists, "--times", "--queues", str(rules))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "weight is '-1': give a number above 0" in done.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--times", "--once"], "--times and --once exclude each other"),
        (["--once", "--arrive", "1"], "--once and --arrive exclude each other"),
        (["--times", "--seeds", "2"], "with --times there is one order"),
        (["--times", "--placements", "x.csv"], "--placements is of pods that stay"),
        (["--times", "--picture", "x.png"], "--picture is of pods that stay"),
        (["--queues", "q.yaml"], "--queues is for pods that wait"),
    ],
)
def test_flags_that_cannot_be_together_are_one_line(lists: list[str], given: list[str], says: str) -> None:
    done = simulate(*lists, *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.parametrize(("left", "says"), [(0, "--nodes is missing"), (2, "--pods is missing")])
@pytest.mark.parametrize("mode", [[], ["--times"]])
def test_a_list_that_is_missing_is_named(lists: list[str], mode: list[str], left: int, says: str) -> None:
    done = simulate(*lists[:left], *lists[left + 2 :], *mode)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("p,1,1,1,100,LS,300,200,,,,", "deletion_time 200 is before creation_time 300"),
        ("p,1,1,1,100,LS,x,200,,,,", "creation_time is 'x'"),
        ("p,1,1,1,100,LS,1,2,,-5,,", "priority is '-5'"),
        ("p,1,1,1,100,LS,1,2,,99999999999,,", "priority is 99999999999: at most 2147483647"),
        ("p,1,1,1,100,LS,1,2,,,0,", "gang_size 0, gang_min 0: give 1 to 4096"),
        ("p,1,1,1,100,LS,1,2,,,2,3", "gang_size 2, gang_min 3"),
        ("p,1,1,1,100,LS,1,2,,,9999,", "gang_size 9999"),
    ],
)
def test_a_line_of_times_that_cannot_be_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(TraceError, match=f"line 2: {says}"):
        read_timed_pods(tmp_path / "pods.csv", HEAD + line + "\n")
    with pytest.raises(TraceError, match="column creation_time is missing"):
        read_timed_pods(tmp_path / "pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,100\n")
