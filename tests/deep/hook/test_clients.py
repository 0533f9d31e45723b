"""Programs on other people's libraries run unmodified on the simulated driver: bare, under the hook, in a share."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rig import REPO_ROOT
from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from sharepod.agent.share import Usage
from sharepod.hook import LIBRARY

HERE = REPO_ROOT / "tests" / "support" / "hook"
H200_BYTES = 143771 << 20
PER_THREAD = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}
"""cuda-bindings asks for the functions of the per-thread default stream."""


@dataclass(frozen=True)
class Place:
    """Where a client runs: its environment, and what the account of its share says, if it is in one."""

    env: dict[str, str]
    account: Callable[[], Usage] | None = None


@pytest.fixture(params=["without the hook", "with the hook", "in a share"])
def place(request: pytest.FixtureRequest, make_simgpu: MakeSimgpu, tmp_path: Path) -> Iterator[Place]:
    """Two H200s and an A10; the hook, which without a region passes all through; a share of the first device."""
    env = make_simgpu("2xH200,1xA10").env
    if request.param == "without the hook":
        yield Place(env)
        return
    env["LD_PRELOAD"] = str(LIBRARY)
    if request.param == "with the hook":
        yield Place(env)
        return
    with Arbiter() as arbiter:
        share = arbiter.share(tmp_path)
        yield Place(env | share.env, share.usage)


def check_account(place: Place, kernels_ns: int) -> None:
    """In a share, the gate has seen the kernels and they are billed; nothing had to pass it by force."""
    if place.account is None:
        return
    deadline = time.monotonic() + 5
    while (account := place.account()).processes:  # the arbiter hears of its end
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert account.launches >= 20
    assert account.used_ns >= 0.97 * kernels_ns  # units seen for the first time are judged against a guess
    assert (account.passed, account.faults, account.memory_used_bytes) == (0, 0, 0)


def run(script: str, env: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, str(HERE / script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen["libraries"] == sorted(["libcuda.so.1", *(["libsharepod.so"] if "LD_PRELOAD" in env else [])])
    return seen


def test_every_kind_of_device_memory_is_there_for_cuda_bindings(place: Place) -> None:
    seen = run("memory_client.py", place.env)
    mib = 1 << 20
    assert seen["pool"] == [32 * mib, True]
    assert seen["physical"] == [2 * mib, True]
    assert seen["array"] == [16 * 16 * 4 * 4, True]
    assert seen["external"] == [2 * mib, True]
    assert seen["leaked"] == 0


@pytest.mark.parametrize("own", [{}, PER_THREAD], ids=["legacy stream", "per-thread stream"])
def test_cuda_bindings_runs_unmodified(place: Place, own: dict[str, str]) -> None:
    seen = run("bindings_client.py", place.env | own)
    assert seen["devices"] == 3
    assert seen["name"] == "NVIDIA H200"
    assert seen["total"] == H200_BYTES
    assert seen["copied"], "bytes did not come back as they were sent"
    assert seen["leaked"] == 0
    assert "CUDA_ERROR_NOT_FOUND" in seen["missing_symbol"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in seen["too_much"]
    assert 10.0 <= seen["elapsed_ms"] < 30.0  # 20 kernels of 500 us, in order, and the launch of the first
    check_account(place, 10_000_000)


def test_numba_cuda_runs_unmodified(place: Place) -> None:
    seen = run("numba_client.py", place.env)
    assert seen["devices"] == 3
    assert seen["name"] == "NVIDIA H200"
    assert seen["capability"] == [9, 0]
    assert seen["total"] == H200_BYTES
    assert seen["copied"], "arrays did not come back as they were sent"
    assert 6.0 <= seen["elapsed_ms"] < 20.0  # 20 kernels of 300 us
    check_account(place, 6_000_000)
