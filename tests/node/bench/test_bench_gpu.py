"""Test the bench for real GPUs: all of its orchestration on the simulated GPU, and its arithmetic on made-up logs."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_runs import bench_gpu

from bench.gpu import spans
from bench.gpu.__main__ import ROWS
from bench.gpu.census import Counts, hooked_launches, read_counts
from bench.gpu.host import Device
from bench.gpu.report import FAILED, MEASURED, Report, Row
from bench.gpu.spans import RECORD, ClockMap, Span, Tick
from bench.table import Line
from rig.loads import nanoseconds

UNIX_NS = 1_700_000_000_000_000_000
"""A time of the device's clock as on a real machine, where it is far from the host's."""


def test_a_row_that_cannot_be_measured_in_time_is_reported_and_the_files_are_there(
    repo_root: Path, tmp_path: Path
) -> None:
    done = bench_gpu(repo_root, "--simulated", "--minutes", "0.001", "--only", "duty", "--results", str(tmp_path))
    (written,) = tmp_path.glob("*.json")
    (row,) = json.loads(written.read_text(encoding="utf-8"))["rows"]
    assert (row["state"], row["reason"]) == ("skipped", "no time left")
    assert "skipped: no time left" in done.stdout


@pytest.mark.early
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
    # Work of 10 is on the device from 5 to 45 beside other work, so a quarter of each instant counts for it. Work
    # before the first instant is in all samples, and work after the last instant in none.
    log = [Span(0, 0, 4, 4), Span(0, 5, 45, 10), Span(0, 45, 46, 1), Span(0, 100, 104, 4)]
    found = spans.samples({"a": log}, 5, 10, 5)
    assert [sample.busy_ns["a"] for sample in found] == [4, 6, 9, 11, 14, 15]
    assert [sample.now_ns for sample in found] == [5, 15, 25, 35, 45, 55]


def test_short_gaps_are_held_long_ones_are_not_and_of_what_two_hold_at_once_each_has_half() -> None:
    alone = {"a": [Span(0, 0, 100, 100), Span(0, 105, 200, 95), Span(0, 300, 400, 100)]}
    assert spans.occupied_ns(alone, joined_gap_ns=10) == {"a": 300}
    beside = {"a": [Span(0, 0, 100, 50)], "b": [Span(0, 60, 200, 100)]}
    assert spans.occupied_ns(beside, joined_gap_ns=0) == {"a": 80, "b": 120}


def test_a_context_was_off_the_device_for_what_its_kernels_ended_late_and_not_while_it_waited_for_its_host() -> None:
    ends_ns = (10, 20, 30, 140, 150, 160, 170, 180, 190, 300, 310, 330, 340)  # all were launched at the start
    assert spans.absences([Span(1, 0, end_ns, 10) for end_ns in ends_ns]) == [(100, 0), (100, 60), (10, 20)]
    assert spans.absences([]) == []
    starved = [Span(0, 0, 10, 10), Span(0, 10, 20, 10), Span(0, 20, 30, 10), Span(120, 130, 140, 10)]
    on = [*starved, *(Span(121, 0, end_ns, 10) for end_ns in (150, 160, 260, 270, 280, 290, 390))]
    assert spans.absences(on) == [(90, 0), (90, 40)]


def test_a_slice_is_the_mean_of_what_usually_lies_between_absences() -> None:
    assert spans.slice_ns([(5, 0), (5, 50), (5, 55), (5, 51), (5, 9), (5, 500)]) == 52
    with pytest.raises(ValueError, match="no values"):
        spans.slice_ns([(5, 0)])


@pytest.mark.parametrize(("unit_ns", "found"), [(500, 500), (32, 32), (1, 1), (1024, 1024), (0.7, 1)])
def test_the_unit_of_event_times_is_what_all_of_them_are_multiples_of(unit_ns: float, found: int) -> None:
    multiples = [round(ns / unit_ns) * unit_ns for ns in (7001, 11003, 13007, 17011, 7301, 12013)]
    assert spans.resolution_ns([ns / 1e6 for ns in multiples]) == found


@pytest.mark.parametrize("counts", [(23, 37, 41, 97_771, 1_400_003), (12_971, 12_949, 9_001)])
def test_neither_a_pause_of_the_host_nor_what_a_float_rounds_hides_the_unit(counts: tuple[int, ...]) -> None:
    steps_ms = [ctypes.c_float(count * 300 / 1e6).value for count in counts]  # up to 420 ms, and from 2.7 to 3.9 ms
    assert spans.resolution_ns(steps_ms) == 300


def ticks(ppm: float, period_s: float = 0, length_s: float = 6) -> list[Tick]:
    """Return readings, every 20 ms and up to 2 µs off, of a clock that gains `ppm`, or gains and loses in turn."""
    made, gained_ns = [], 0.0
    for n in range(round(length_s * 50)):
        made.append(Tick(n * 20_000_000, round(UNIX_NS + n * 20_000_000 + gained_ns) + (n * 7919) % 2000))
        gained_ns += 20_000_000 * ppm / 1e6 * (-1 if period_s and n * 0.02 % (2 * period_s) >= period_s else 1)
    return made


@pytest.mark.parametrize(("ppm", "period_s"), [(0, 0), (20, 0), (-33, 0), (150, 1), (60, 1.5)])
def test_the_drift_of_a_clock_is_found_and_how_often_it_turns(ppm: float, period_s: float) -> None:
    found_ppm, found_s = spans.drift(ticks(ppm, period_s))
    assert found_ppm == pytest.approx(ppm, rel=0.1, abs=2)
    assert found_s == pytest.approx(period_s, rel=0.1)


def test_one_look_at_two_clocks_tells_no_drift() -> None:
    with pytest.raises(ValueError, match="less than twice"):
        spans.drift([Tick(1, 2)])


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
    assert counts.copies == 4  # copies of the host and inside a device
    assert counts.escapes == {"cuGetExportTable": 3, "cuLaunchKernelOfTomorrow": 1}


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
