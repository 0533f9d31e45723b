"""Test a program that is bound by its processor: it launches a short kernel now and then and does not wait for it."""

import subprocess
from pathlib import Path

import pytest

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.script import script
from sharepod.agent.shares.share import Usage
from sharepod.simgpu.truth import Truth

SECONDS = 1.5
BODY = """
functions = [kernel(start(), name) for name in %r]
stream, count = new_stream(), 0
end = time.monotonic() + %g
while time.monotonic() < end:
    ok(launch(functions[count %% len(functions)], stream))
    count += 1
    if count %% 500 == 0:
        ok(cuda.cuStreamSynchronize(stream))
    until = time.monotonic() + %g
    while time.monotonic() < until:
        pass
ok(cuda.cuStreamSynchronize(stream))
"""
ONE, THREE = ["rare_20us"], ["rare_20us", "rare_5us", "rare_100us"]


def run(
    make_simgpu: MakeSimgpu, directory: Path, gap_us: int, names: list[str], limit: float = 100
) -> tuple[Usage, int]:
    """Run the program in a share; return the share's account and how long the device was busy, in ns."""
    gpu = make_simgpu()
    body = BODY % (names, SECONDS, gap_us * 1e-6)
    with Arbiter() as arbiter:
        share = arbiter.share(directory / f"{limit:g}", request=min(30, limit), limit=limit)
        subprocess.run(script(body), env=gpu.env | share.env, check=True, timeout=30)
        account = share.usage()
    with Truth(gpu.state) as truth:
        return account, truth.devices()[0].busy_ns


@pytest.mark.parametrize(("gap_us", "names"), [(1000, ONE), (500, THREE)])
def test_the_pauses_between_short_kernels_are_not_billed(
    gap_us: int, names: list[str], make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    account, took_ns = run(make_simgpu, tmp_path, gap_us, names)
    # The prediction of a kernel that never queues is 1.3 times too long, and 2.5 times after a slow first launch. With
    # pauses that were not told in time the bill was 3 to 6 times too high.
    assert 0.9 * took_ns <= account.used_ns <= 2.8 * took_ns + 10_000_000


def test_a_limit_above_what_a_program_uses_takes_none_of_its_launches(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    bare, _ = run(make_simgpu, tmp_path, 1000, ONE)
    limited, took_ns = run(make_simgpu, tmp_path, 1000, ONE, limit=5)
    assert took_ns < 0.03 * SECONDS * 1e9
    assert limited.launches > 0.95 * bare.launches
