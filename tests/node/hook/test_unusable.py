"""Test a program that cannot use its region: `open` runs it unmetered, `closed` does not let CUDA start."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from sharepod.hook import LIBRARY

PROGRAM = """
import ctypes
cuda, context, bytes_ = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
result = cuda.cuInit(0)
print(result, cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) if result == 0 else "")
if result == 0:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(bytes_), ctypes.c_size_t(4096)) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert free.value > 1 << 30, free.value
    assert cuda.cuMemFree_v2(bytes_) == 0
"""
SYSTEM_NOT_READY = 802
ABI_AT, GRANT_COUNT_AT = 8, 20


def write(directory: Path, at: int, value: int) -> None:
    with (directory / "terms").open("r+b") as terms:
        terms.seek(at)
        terms.write(struct.pack("<I", value))


def take_all_slots(directory: Path) -> None:
    with (directory / "slots").open("r+b") as slots:
        slots.write(b"\1" * 64)


RUIN: dict[str, Callable[[Path], object]] = {
    "no directory": shutil.rmtree,
    "another ABI": lambda directory: write(directory, ABI_AT, 2),
    "no magic": lambda directory: write(directory, 0, 0),
    "no grants": lambda directory: write(directory, GRANT_COUNT_AT, 0),
    "too many grants": lambda directory: write(directory, GRANT_COUNT_AT, 17),
    "terms cut short": lambda directory: os.truncate(directory / "terms", 100),
    "slots cut short": lambda directory: os.truncate(directory / "slots", 100),
    "no bell": lambda directory: (directory / "bell").unlink(),
    "every slot taken": take_all_slots,
}


def start(environment: dict[str, str], directory: Path, policy: str) -> subprocess.CompletedProcess[str]:
    """Run the program in the share of this directory."""
    own = {"LD_PRELOAD": str(LIBRARY), "SHAREPOD_REGION": str(directory), "SHAREPOD_POLICY": policy}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment | own, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("cause", RUIN)
@pytest.mark.parametrize(("policy", "said"), [("open", "0 0\n"), ("closed", f"{SYSTEM_NOT_READY} \n")])
def test_a_program_without_a_usable_region_obeys_the_policy_of_the_node(
    make_simgpu: MakeSimgpu, tmp_path: Path, cause: str, policy: str, said: str
) -> None:
    environment, directory = make_simgpu().env, tmp_path / "share"
    with Arbiter() as arbiter:
        arbiter.share(directory)
    whole = start(environment, directory, "closed")
    assert (whole.returncode, whole.stdout, whole.stderr) == (0, "0 0\n", "")
    RUIN[cause](directory)
    ruined = start(environment, directory, policy)
    assert (ruined.returncode, ruined.stdout, ruined.stderr) == (0, said, "")
