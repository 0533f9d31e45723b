"""Streams and contexts that end while the keeper waits for their last marker."""

import subprocess
from pathlib import Path

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.script import script

ROUNDS = 300
PROGRAM = f"""
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
    with Arbiter() as arbiter:
        share = arbiter.share(tmp_path)
        env = make_simgpu().env | share.env
        done = subprocess.run(script(PROGRAM), env=env, capture_output=True, text=True, timeout=60, check=False)
        used_ns = share.usage().used_ns
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert used_ns >= ROUNDS * 5 * 20_000
