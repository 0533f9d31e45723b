"""Writes traces for a test and replays them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.bars import replay

HEADER = '{"sharepod_trace": 1, "name": "t", "origin": "synthesised", "sources": {"all": "made up"}}\n'


TABLES = (
    "stream 0 legacy\nstream 1 nonblocking\n"
    "kernel 0 200000 gemm 8x8x1\nkernel 1 50000 add 1x1x1\nkernel 2 200000 same 1x1x1\ngraph 0 0*3 1\n"
)


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
        return path

    return write
