"""Programs on other people's libraries run unmodified on the simulated driver, with and without the hook."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulated_gpu import MakeSimgpu

HERE = Path(__file__).parent
H200_BYTES = 143771 << 20


@pytest.fixture(params=["without the hook", "with the hook"])
def env(request: pytest.FixtureRequest, make_simgpu: MakeSimgpu, repo_root: Path) -> dict[str, str]:
    """Two H200s and an A10, and the hook preloaded in half of the tests: without a region it passes all through."""
    preload = {"LD_PRELOAD": str(repo_root / "hook" / "libsharepod.so")} if request.param == "with the hook" else {}
    return {**make_simgpu("2xH200,1xA10").env, **preload}


def run(script: str, env: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, str(HERE / script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen["libraries"] == sorted(["libcuda.so.1", *(["libsharepod.so"] if "LD_PRELOAD" in env else [])])
    return seen


def test_cuda_bindings_runs_unmodified(env: dict[str, str]) -> None:
    seen = run("bindings_client.py", env)
    assert seen["devices"] == 3
    assert seen["name"] == "NVIDIA H200"
    assert seen["total"] == H200_BYTES
    assert seen["copied"], "bytes did not come back as they were sent"
    assert seen["leaked"] == 0
    assert "CUDA_ERROR_NOT_FOUND" in seen["missing_symbol"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in seen["too_much"]
    assert 10.0 <= seen["elapsed_ms"] < 30.0  # 20 kernels of 500 us, in order, and the launch of the first


def test_numba_cuda_runs_unmodified(env: dict[str, str]) -> None:
    seen = run("numba_client.py", env)
    assert seen["devices"] == 3
    assert seen["name"] == "NVIDIA H200"
    assert seen["capability"] == [9, 0]
    assert seen["total"] == H200_BYTES
    assert seen["copied"], "arrays did not come back as they were sent"
    assert 6.0 <= seen["elapsed_ms"] < 20.0  # 20 kernels of 300 us
