"""Test an unmodified program on third-party libraries on the simulated driver: bare, under the hook, in a share."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rig import REPO_ROOT
from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.until import until
from sharepod.hook import LIBRARY

CLIENT = REPO_ROOT / "tests" / "support" / "hook" / "numba_client.py"


@pytest.mark.parametrize("where", ["without the hook", "with the hook", "in a share"])
def test_numba_cuda_runs_unmodified(where: str, make_simgpu: MakeSimgpu, arbiter: Arbiter, tmp_path: Path) -> None:
    share = arbiter.share(tmp_path)
    # Without a region the hook passes everything through.
    own = {"without the hook": {}, "with the hook": {"LD_PRELOAD": str(LIBRARY)}, "in a share": share.env}[where]
    env = make_simgpu("2xH200,1xA10").env | own
    done = subprocess.run([sys.executable, CLIENT], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["libraries"] == sorted(["libcuda.so.1", *(["libsharepod.so"] if own else [])])
    assert seen["devices"] == 3
    assert seen["name"] == "NVIDIA H200"
    assert seen["capability"] == [9, 0]
    assert seen["total"] == 143771 << 20
    assert seen["copied"], "arrays did not come back as they were sent"
    assert 6.0 <= seen["elapsed_ms"] < 20.0  # 20 kernels of 300 us take 6 ms
    if where == "in a share":  # the kernels went through the gate and are billed; none passed it deliberately
        until(lambda: not share.usage().processes)
        account = share.usage()
        assert account.launches >= 20
        assert account.used_ns >= 0.97 * 6_000_000  # not exact: a unit's first length is only a guess
        assert (account.passed, account.faults, account.memory_used_bytes) == (0, 0, 0)
