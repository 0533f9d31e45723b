"""Test that every row of bench.gpu can be measured on the simulated GPU."""

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_runs import bench_gpu

from bench.gpu.__main__ import ROWS
from bench.gpu.report import MEASURED


def test_every_row_is_measured_and_written_on_the_simulated_gpu(repo_root: Path, tmp_path: Path) -> None:
    done = bench_gpu(repo_root, "--simulated", "--results", str(tmp_path))
    (written,) = tmp_path.glob("dry-run-*.json")
    document: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    rows = {row["key"]: row for row in document["rows"]}
    assert {key: (row["state"], row["reason"]) for key, row in rows.items()} == dict.fromkeys(ROWS, (MEASURED, ""))
    assert done.returncode == 0, done.stderr
    assert all(row["lines"] for row in rows.values())
    assert done.stdout == written.with_suffix(".md").read_text(encoding="utf-8") + "\n"
    assert document["profile"]["latency_ns"] == pytest.approx(5000, abs=1)
