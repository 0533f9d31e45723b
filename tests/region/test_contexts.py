"""Streams and contexts that end while the keeper waits for their last marker."""

import subprocess
import sys
from pathlib import Path

from simulated_gpu import MakeSimgpu

from sharepod.agent.native import NativeArbiter
from sharepod.agent.share import ShareClass, Terms
from sharepod.hook import LIBRARY

ROUNDS = 300
PROGRAM = f"""
import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[1] / "simgpu")!r})
from driver import *
for round in range({ROUNDS}):
    f, stream = kernel(start(), "k_20us"), new_stream()
    for _ in range(5):
        ok(launch(f, stream))
    if round % 2:
        ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuStreamDestroy_v2(stream))
    ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
print("done")
"""


def test_no_marker_outlives_its_stream_or_its_context(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    arbiter = NativeArbiter()
    device = arbiter.add_device("GPU-53474750-0000-0000-8000-000000000000")
    terms = Terms(request_millipercent=50_000, limit_millipercent=100_000, memory_limit_bytes=0)
    share = arbiter.add_share(str(tmp_path), [(device, terms)], ShareClass.STANDARD, [])
    env = make_simgpu().env | {"LD_PRELOAD": str(LIBRARY), "SHAREPOD_REGION": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    used_ns = arbiter.read_usage(share, 0).used_ns
    arbiter.close()
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert used_ns >= ROUNDS * 5 * 20_000
