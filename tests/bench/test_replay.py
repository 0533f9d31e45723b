"""The replayer on the simulated device: what it does is what the trace says, by the device's own account."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench import replay
from bench.table import markdown
from bench.traces.format import parse
from rig.gpu import MakeSimgpu
from rig.node import START_DELAY_NS, Node
from sharepod.simgpu.truth import Truth

HEADER = '{"sharepod_trace": 1, "name": "t", "origin": "synthesised", "sources": {"all": "made up"}}\n'
TABLES = (
    "stream 0 legacy\nstream 1 nonblocking\n"
    "kernel 0 200000 gemm 8x8x1\nkernel 1 50000 add 1x1x1\nkernel 2 200000 same 1x1x1\ngraph 0 0*3 1\n"
)

GAP_NS = 5_000
"""Nobody sees a gap that is shorter: a launch alone takes 3 µs to reach the device, a marker's record 1 µs."""
ATTEMPTS = 3

Written = Callable[[str], Path]


def replayed(env: dict[str, str], path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program, *_ = replay.command(path)
    command = [program, str(path), *options]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=30)


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(events: str) -> Path:
        path = tmp_path / "t.trace"
        path.write_text(HEADER + TABLES + events, encoding="utf-8")
        parse(path.read_text(encoding="utf-8"))
        return path

    return write


def test_kernels_graphs_and_memory_are_those_of_the_trace(make_simgpu: MakeSimgpu, written: Written) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="1000")
    path = written(
        "thread 0\nalloc 0 linear 1000000\nalloc 1 managed 500000\nfree 0\nalloc 2 async 300000\nalloc 3 host 9000000\n"
        "launch 0 0\nlaunch 1 1 4 1000\nlaunch 0 2\nrepeat 2\n  run 1 0\n  repeat 3\n    launch 1 1\n  again\nagain\n"
        "record 5 1\nwait 5 0\nsync-event 5\ncopy 1 set 4096\ncopy-sync dtoh 64\nsync-stream 1\nsync-context\nfree 2\n"
    )
    told = result(replayed(gpu.env, path))
    with Truth(gpu.state) as truth:
        names = Counter(kernel.name for kernel in truth.kernels(0))
        graphs = [kernel for kernel in truth.kernels(0) if kernel.name == "graph"]
    assert names == {"k_200us": 2, "k_50us": 10, "graph": 2, "memset": 1}
    assert [kernel.busy_ns for kernel in graphs] == [650_000, 650_000]
    assert (told["launches"], told["work_ns"]) == (14, 2 * 200_000 + 10 * 50_000 + 2 * 650_000)
    assert told["peak_bytes"] == 1_500_000


def test_the_host_computes_sleeps_and_waits_as_long_as_it_did(make_simgpu: MakeSimgpu, written: Written) -> None:
    path = written(
        "thread 0\nbegin all\nrepeat 5\n  begin cpu\n  cpu 2000000\n  end cpu\n  begin idle\n  idle 3000000\n"
        "  end idle\n  begin work\n  launch 0 0 10 0\n  sync-stream 0\n  end work\nagain\nend all\n"
    )
    done = result(replayed(make_simgpu().env, path))
    marks = done["marks"]
    assert {name: mark["count"] for name, mark in marks.items()} == {"all": 1, "cpu": 5, "idle": 5, "work": 5}
    least_ns = {"all": 35_000_000, "cpu": 2_000_000, "idle": 3_000_000, "work": 2_000_000}
    assert all(marks[name]["p50_ns"] >= ns for name, ns in least_ns.items())
    assert marks["all"]["p99_ns"] <= 6 * least_ns["all"]  # beside other work
    assert done["latencies_ns"] == [marks["all"]["p50_ns"]]


@pytest.mark.realtime
def test_an_endless_loop_ends_in_time_and_requests_come_when_they_are_due(
    make_simgpu: MakeSimgpu, written: Written
) -> None:
    path = written(
        "thread 0\nrepeat 0\n  every 20000000\n  begin request\n  launch 0 0\n  sync-stream 0\n  end request\nagain\n"
    )
    told = result(replayed(make_simgpu().env, path, "seconds=400ms", "warm=50ms"))
    assert 15 <= told["marks"]["request"]["count"] <= 21
    assert 0.4e9 <= told["end_ns"] - told["start_ns"] <= 0.6e9
    assert 200_000 <= told["marks"]["request"]["p50_ns"] <= 10_000_000


def test_threads_replay_side_by_side_and_wait_for_each_others_streams(
    make_simgpu: MakeSimgpu, written: Written
) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="1000")
    path = written("thread 0\nlaunch 1 0 5 0\nsync-stream 1\nthread 1\nlaunch 1 1 7 0\nsync-context\n")
    assert result(replayed(gpu.env, path))["launches"] == 12
    with Truth(gpu.state) as truth:
        assert Counter(kernel.name for kernel in truth.kernels(0)) == {"k_200us": 5, "k_50us": 7}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ("launch 0 9\n", "line 9: a number is larger than any that is declared"),
        ("jump 0\n", "line 9: it is nothing that a thread does"),
        ("repeat 2\nlaunch 0 0\n", "a loop is not closed"),
        ("again\n", "a loop ends that did not begin"),
        ("free 3\n", "buffer 3 is freed and was not allocated"),
        ("copy 0 up 8\n", "line 9: a word is none of those that may stand there"),
    ],
)
def test_what_cannot_be_replayed_says_why(simgpu: dict[str, str], tmp_path: Path, events: str, said: str) -> None:
    path = tmp_path / "t.trace"
    path.write_text(HEADER + TABLES + "thread 0\n" + events, encoding="utf-8")
    done = replayed(simgpu, path)
    assert done.returncode == 1
    assert said in done.stderr


def billed_within(most: float, attempt: Callable[[], float]) -> None:
    """Attempt three times: a busy host makes a bill too high now and then, a mistake in it every time."""
    seen: list[float] = []
    while not seen or abs(seen[-1]) >= most:
        assert len(seen) < ATTEMPTS, seen
        seen.append(attempt())


@pytest.mark.realtime
def test_a_replay_under_a_share_is_billed_and_said_to_be_synthesised() -> None:
    def error_percent() -> float:
        done = replay.run({"a": replay.Share(replay.SERVER, replay.Terms(100))}, 1)
        assert done.results["a"].other["marks"]["token"]["count"] >= 40
        assert done.used_ns["a"] > 0
        return done.bill_errors_percent["a"]

    billed_within(5, error_percent)
    assert replay.origin(replay.SERVER) == "synthesised"


@pytest.mark.realtime
def test_a_launch_bound_replay_is_billed_its_kernels_and_the_gaps_between_them_that_no_marker_tells_from_work() -> None:
    """The bill is 40 % above the kernels: each of 2.9 µs is followed by a gap of 1 µs until the next is there."""

    def error_percent() -> float:
        with Node(log_kernels=1 << 18) as node:
            program = node.add("a", replay.command(replay.LOOP), node.share_environment("a", replay.Terms(100)))
            start_ns = time.monotonic_ns() + START_DELAY_NS
            program.go(start_ns, start_ns + 400_000_000)
            steps = program.result().other["marks"]["step"]["count"]
            kernels, used_ns = node.kernels(), node.sample().busy_ns["a"]
            billed_ns = node.usage()["a"].devices[0].used_ns
        assert steps >= 50
        assert sum(kernel.ended_ns - kernel.started_ns for kernel in kernels) == used_ns  # the log has them all
        gaps_ns = [later.started_ns - before.ended_ns for before, later in pairwise(kernels)]
        untold_ns = sum(gap for gap in gaps_ns if gap <= GAP_NS)
        assert 0.2 * used_ns < untold_ns  # else it is another trace
        assert billed_ns > 0.98 * used_ns
        return (billed_ns / (used_ns + untold_ns) - 1) * 100

    billed_within(6, error_percent)
    assert replay.origin(replay.LOOP) == "synthesised"


def test_the_overhead_of_the_hook_is_measured_in_pairs_and_marked() -> None:
    line = replay.overhead(replay.SERVER, 1)
    assert "(synthesised)" in markdown([line])
    assert line.bar == "≤ 0.5 %"
    assert line.detail["pairs_percent"] == [pytest.approx(float(line.result.split()[0]), abs=0.01)]
