"""Test the replayer on the simulated device: by the device's own account it does what the trace says."""

from collections import Counter
from pathlib import Path

import pytest
from replays import HEADER, TABLES, Written, replayed, result

from bench.bars import replay
from bench.scale import FULL
from bench.table import markdown
from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth


def test_kernels_graphs_and_copies_are_those_of_the_trace(make_simgpu: MakeSimgpu, written: Written) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="1000", SIMGPU_STREAMS_SHARE_SMS="0")
    path = written(
        "thread 0\nalloc 1000000\nlaunch 0 0\nlaunch 1 1 4 1000\nlaunch 0 2\nrepeat 2\n  run 1 0\n  repeat 3\n"
        "    launch 1 1\n  again\nagain\ncopy 1 htod 4096\ncopy-sync dtoh 64\nsync-stream 1\n"
    )
    told = result(replayed(gpu.env, path))
    with Truth(gpu.state) as truth:
        names = Counter(kernel.name for kernel in truth.kernels(0))
        graphs = [kernel for kernel in truth.kernels(0) if kernel.name == "graph"]
    assert names == {"k_200us": 2, "k_50us": 10, "graph": 2}
    assert [kernel.busy_ns for kernel in graphs] == [650_000, 650_000]
    assert (told["launches"], told["work_ns"]) == (14, 2 * 200_000 + 10 * 50_000 + 2 * 650_000)


def test_the_host_computes_and_waits_as_long_as_it_did(make_simgpu: MakeSimgpu, written: Written) -> None:
    path = written(
        "thread 0\nbegin all\nrepeat 5\n  begin cpu\n  cpu 5000000\n  end cpu\n"
        "  begin work\n  launch 0 0 10 0\n  sync-stream 0\n  end work\nagain\nend all\n"
    )
    marks = result(replayed(make_simgpu().env, path))["marks"]
    assert {name: mark["count"] for name, mark in marks.items()} == {"all": 1, "cpu": 5, "work": 5}
    least_ns = {"all": 35_000_000, "cpu": 5_000_000, "work": 2_000_000}
    assert all(marks[name]["p50_ns"] >= ns for name, ns in least_ns.items())
    assert marks["all"]["p99_ns"] <= 6 * least_ns["all"]  # the machine has other work beside this


THREAD = f"{TABLES}thread 0\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{THREAD}launch 0 9\n", "line 9: a number is larger than any that is declared"),
        (f"{THREAD}launch 2 0\n", "line 9: a number is larger than any that is declared"),
        (f"{THREAD}run 0 1\n", "line 9: a number is larger than any that is declared"),
        (f"{THREAD}cpu soon\n", "`soon` is not a number"),
        (f"{THREAD}jump 0\n", "line 9: it is nothing that a program does"),
        (f"{THREAD}repeat 2\nlaunch 0 0\n", "a loop is not closed"),
        (f"{THREAD}again\n", "a loop ends that did not begin"),
        (f"{THREAD}thread 1\n", "line 9: it is nothing that a program does"),
        (f"{THREAD}copy 0 up 8\n", "line 9: a word is none of those that may stand there"),
        ("stream 0 fast\n", "line 2: a word is none of those that may stand there"),
        ("kernel 1 5 a 1x1x1\n", "line 2: a declaration is out of order"),
        ("launch 0 0\n", "line 2: a declaration is out of order"),
        (f"{TABLES}graph 1 7\nthread 0\ncpu 1\n", "graph 1 has a kernel that is not declared"),
        (TABLES, "has no thread"),
    ],
)
def test_what_cannot_be_replayed_says_why(simgpu: dict[str, str], tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.trace"
    path.write_text(HEADER + text, encoding="utf-8")
    done = replayed(simgpu, path)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_overhead_of_the_hook_is_measured_in_pairs_and_marked() -> None:
    line = replay.overhead(replay.ReplayRig(FULL), replay.SERVER, 1)
    assert "(synthesised)" in markdown([line])
    assert line.bar == "≤ 0.5 %"
    assert line.detail["pairs_percent"] == [pytest.approx(float(line.result.split()[0]), abs=0.01)]
