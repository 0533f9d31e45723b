"""Test a program with another clock than the agent's: it waits for its turns, and is billed for what it used."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from metered import neighbour

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.script import script
from sharepod.simgpu.truth import Truth

BODY = """
function = kernel(start(), "own_1ms")
for _ in range(150):
    ok(launch(function))
    ok(cuda.cuCtxSynchronize())
"""
SHIFTED = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  long result = syscall(SYS_clock_gettime, clock, now);
  now->tv_sec += 1000;
  return (int)result;
}
"""


def away(_directory: Path, preloaded: str) -> tuple[list[str], str]:
    """Return the words that run a command in a time namespace of its own, and its LD_PRELOAD."""
    words = ["unshare", "--time", "--monotonic", "1000000"]
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a time namespace needs root")
    return words, preloaded


def faked(directory: Path, preloaded: str) -> tuple[list[str], str]:
    """Return the same for a program that gets its clock_gettime from another library."""
    library = directory / "shifted.so"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiler, input=SHIFTED, text=True, check=True)
    return [], f"{library}:{preloaded}"


@pytest.mark.parametrize("clock", [away, faked])
def test_a_program_with_another_clock_gets_its_turns_and_its_bill(
    clock: Callable[[Path, str], tuple[list[str], str]], make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="4000")
    with Arbiter() as arbiter:
        own, beside = arbiter.share(tmp_path / "own"), arbiter.share(tmp_path / "beside")
        words, preloaded = clock(tmp_path, own.env["LD_PRELOAD"])
        environment = gpu.env | own.env | {"LD_PRELOAD": preloaded}
        with neighbour(gpu, beside):
            done = subprocess.run([*words, *script(BODY)], env=environment, capture_output=True, text=True, timeout=60)
        account = own.usage()
    assert done.returncode == 0, done.stderr
    with Truth(gpu.state) as truth:
        took_ns = sum(kernel.busy_ns for kernel in truth.kernels(0) if kernel.name == "own_1ms")
    assert (account.launches, account.passed, account.faults) == (150, 0, 0)
    assert account.used_ns == pytest.approx(took_ns, rel=0.3)
