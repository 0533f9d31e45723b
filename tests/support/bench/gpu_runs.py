"""Runs bench.gpu in a process of its own."""

import subprocess
import sys
from pathlib import Path


def bench_gpu(repo_root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu", *arguments]
    return subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=False, timeout=100)
