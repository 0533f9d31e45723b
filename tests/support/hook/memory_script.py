"""A script that allocates memory in a share with a cap, and the fixture that runs it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from metered import Metered, run_metered

from rig.gpu import MakeSimgpu

CAP = 1000
Run = Callable[..., Metered]
PROGRAM = """
from rig.holdings import *
start()
def take(size):
    address = c_uint64()
    return cuda.cuMemAlloc_v2(byref(address), c_size_t(size)), address
def memory():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value, total.value
"""


@pytest.fixture
def capped(make_simgpu: MakeSimgpu, tmp_path: Path) -> Run:
    """Return a function that runs a script of assertions in a share with a cap on each device."""

    def execute(body: str, cap: int = CAP, devices: str = "1xH200") -> Metered:
        numbers = tuple(range(int(devices[0])))
        return run_metered(make_simgpu(devices), tmp_path, PROGRAM + body, numbers, memory_bytes=cap)

    return execute
