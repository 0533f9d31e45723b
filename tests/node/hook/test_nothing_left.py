"""Test that launches, waits and memory leave nothing behind in the hook, whatever was in between."""

import subprocess
from pathlib import Path

from hooklab import build_threads


def test_when_all_work_has_ended_no_launch_and_no_wait_is_left(tmp_path: Path) -> None:
    program = build_threads(tmp_path / "threads")
    done = subprocess.run([program, tmp_path, "1000"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    launches = int(done.stdout.split()[1])
    assert launches > 100
