"""The bench for real GPUs: every line of its orchestration on the simulated one, and its arithmetic on made-up logs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_runs import bench_gpu

from bench.bars import figures
from bench.gpu import spans
from bench.gpu.__main__ import ROWS
from bench.gpu.calibration import calibration
from bench.gpu.census import Counts, hooked_launches, read_counts
from bench.gpu.host import Device
from bench.gpu.report import FAILED, MEASURED, Report, Row
from bench.gpu.spans import RECORD, ClockMap, Span, Tick
from bench.table import Line
from rig.loads import nanoseconds

UNIX_NS = 1_700_000_000_000_000_000
"""Where the device's clock of a real machine stands: far from the host's."""


def test_a_row_that_cannot_be_measured_in_time_is_reported_and_the_files_are_there(
    repo_root: Path, tmp_path: Path
) -> None:
    done = bench_gpu(repo_root, "--simulated", "--minutes", "0.001", "--only", "duty", "--results", str(tmp_path))
    (written,) = tmp_path.glob("*.json")
    (row,) = json.loads(written.read_text(encoding="utf-8"))["rows"]
    assert (row["state"], row["reason"]) == ("skipped", "no time left")
    assert "skipped: no time left" in done.stdout


def test_a_dry_run_without_room_in_memory_says_so_in_one_line(repo_root: Path) -> None:
    more_than_there_is = "import runpy; from bench.gpu import host; host.SIMULATED_BYTES = 1 << 60"
    program = f"{more_than_there_is}; runpy.run_module('bench.gpu', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", program, "--simulated"]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("nothing can be measured here: /dev/shm is full: ")
    assert "Traceback" not in done.stderr


def test_help_says_what_it_needs_and_how_to_narrow_it(repo_root: Path) -> None:
    shown = bench_gpu(repo_root, "--help").stdout
    assert "needs an NVIDIA driver, gcc and python3" in shown
    assert "--only latency" in shown
    assert all(key in shown for key in ROWS)


def test_device_times_become_host_times_although_the_clocks_drift() -> None:
    clock = ClockMap(Tick(1_000_000, UNIX_NS), Tick(11_000_000, UNIX_NS + 10_000_500))
    assert clock.host_ns(UNIX_NS) == 1_000_000
    assert clock.host_ns(UNIX_NS + 10_000_500) == 11_000_000
    assert clock.host_ns(UNIX_NS + 5_000_250) == 6_000_000
    assert clock.drift_ppm == pytest.approx(50)


def test_a_log_becomes_spans_in_host_time() -> None:
    content = RECORD.pack(77, UNIX_NS + 10, UNIX_NS + 30) + RECORD.pack(0, UNIX_NS + 40, UNIX_NS + 60)
    clock = ClockMap(Tick(1000, UNIX_NS), Tick(2000, UNIX_NS + 1000))
    assert spans.logged(content, clock, 20) == [Span(77, 1010, 1030, 20), Span(0, 1040, 1060, 20)]


def test_work_counts_evenly_over_a_kernel_however_long_it_was_sliced_out() -> None:
    # 10 of work, on the device from 5 to 45 beside another: a quarter of it is done at each instant.
    # What was done before the first instant is in all samples, and what comes after the last in none.
    log = [Span(0, 0, 4, 4), Span(0, 5, 45, 10), Span(0, 45, 46, 1), Span(0, 100, 104, 4)]
    found = spans.samples({"a": log}, 5, 10, 5)
    assert [sample.busy_ns["a"] for sample in found] == [4, 6, 9, 11, 14, 15]
    assert [sample.now_ns for sample in found] == [5, 15, 25, 35, 45, 55]


def test_shares_come_out_of_a_log_as_they_were_held() -> None:
    held = {
        "a": [Span(0, start, start + 70, 70) for start in range(0, 1000, 100)],
        "b": [Span(0, start + 70, start + 100, 30) for start in range(0, 1000, 100)],
    }
    errors = figures.share_errors(spans.samples(held, 0, 100, 10), {"a": 0.7, "b": 0.3}, 1)
    assert errors == pytest.approx([0.0] * 10)


def test_short_gaps_are_held_and_long_ones_are_not() -> None:
    found = [Span(0, 0, 100, 100), Span(0, 105, 200, 95), Span(0, 300, 400, 100)]
    assert spans.occupied_ns({"a": found}, joined_gap_ns=10) == {"a": 300}


def test_where_kernels_of_two_owners_stand_side_by_side_each_has_half() -> None:
    found = {"a": [Span(0, 0, 100, 50)], "b": [Span(0, 60, 200, 100)]}
    assert spans.occupied_ns(found, joined_gap_ns=0) == {"a": 80, "b": 120}


def test_slices_and_switches_are_read_from_the_gaps_of_two_kernels() -> None:
    one = spans.running(0, 120, [(20, 50), (70, 105)])
    other = spans.running(25, 100, [(45, 75)])
    assert one == [(0, 20), (50, 70), (105, 120)]
    seen = spans.slicing(one, other)
    assert (seen.slices_ns, seen.switches_ns) == ([20], [5, 5])
    assert seen.lost == pytest.approx(10 / 75)


def test_contexts_that_never_met_teach_nothing() -> None:
    with pytest.raises(ValueError, match="never on the device together"):
        spans.slicing([(0, 10)], [(20, 30)])


def test_a_visit_tells_what_preempting_and_coming_back_cost() -> None:
    seen = spans.visits([(100, 250), (400, 420)], [(10, 20), (120, 180), (190, 240), (300, 310)])
    assert [(v.preempted_ns, v.back_ns) for v in seen] == [(20, 10)]


def test_times_have_a_unit() -> None:
    assert [nanoseconds(text) for text in ("20us", "1.5ms", "2s", "7ns")] == [20_000, 1_500_000, 2_000_000_000, 7]
    with pytest.raises(ValueError, match="give ns, us, ms or s"):
        nanoseconds("500")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("Tesla V100-SXM2-16GB", "v100"), ("NVIDIA GeForce RTX 4090", "rtx-4090")],
)
def test_results_are_named_for_the_model(name: str, kind: str) -> None:
    assert Device(name, "GPU-", 1, 1, "9.0", 13000, 0).kind == kind


def test_the_census_adds_the_variants_of_a_function_up_and_leaves_captures_out(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    launches = [["cuLaunchKernel", 5], ["cuLaunchKernel_ptsz", 2], ["cuLaunchKernelOfTomorrow", 1]]
    others = [["cuMemsetD8_v2", 1], ["cuMemcpyAsync", 4], ["cuGetExportTable", 3], ["cuInit", 1]]
    path.write_text(json.dumps(launches + others))
    counts = Counts(read_counts(path), 3, 5, {})
    assert {"cuLaunchKernel", "cuGraphLaunch", "cuMemsetD8"} <= hooked_launches()
    assert counts.census == 5
    assert counts.copies == 4  # of the host or of a device
    assert counts.escapes == {"cuGetExportTable": 3, "cuLaunchKernelOfTomorrow": 1}


def test_what_no_row_has_measured_is_left_open_in_the_calibration() -> None:
    found = {entry["setting of simgpu"]: entry["measured"] for entry in calibration({"slice_ns": 1_980_000})}
    assert found["SIMGPU_SLICE_US"] == "1980"
    assert found["SIMGPU_LAUNCH_COST_NS"] == "not measured"


def test_a_report_shows_what_failed_beside_what_was_measured(tmp_path: Path) -> None:
    rows = [
        Row("a", "row a", MEASURED, 1.0, lines=[Line("what a", "≤ 1", "2", False, "3")]),
        Row("b", "row b", FAILED, 2.0, "it\nbroke | badly"),
    ]
    report = Report("some-gpu", {"device": {"name": "X"}}, rows)
    json_path, table_path = report.save(tmp_path / "results")
    assert [line.what for line in report.missed] == ["what a"]
    assert [row.key for row in report.failed] == ["b"]
    assert json.loads(json_path.read_text())["rows"][1]["reason"] == "it\nbroke | badly"
    assert "failed: it broke / badly" in table_path.read_text()
    assert [path.name for path in sorted((tmp_path / "results").iterdir())] == ["some-gpu.json", "some-gpu.md"]
