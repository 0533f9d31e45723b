"""One launch onto several devices is let by, and billed on, every one of them."""

from pathlib import Path

import pytest
from metered import run_metered, run_together

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

ROUNDS = 100
PROGRAM = f"""
class Part(ctypes.Structure):
    _fields_ = [("function", c_void_p), ("sizes", c_uint * 7), ("stream", c_void_p), ("parameters", c_void_p)]
parts = []
for device in (0, 1):
    function = kernel(start(device), "together_100us")
    parts.append(Part(function, (c_uint * 7)(1, 1, 1, 32, 1, 1, 0), new_stream(), None))
for _ in range({ROUNDS}):
    ok(cuda.cuLaunchCooperativeKernelMultiDevice((Part * 2)(*parts), 2, 0))
    for part in parts:
        ok(cuda.cuStreamSynchronize(c_void_p(part.stream)))
time.sleep(0.3)  # idle turns are given back, and with them the last counts
"""


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_every_device_of_the_list_is_billed(make_simgpu: MakeSimgpu, tmp_path: Path, order: tuple[int, ...]) -> None:
    gpu = make_simgpu("2xH200")
    accounts = run_metered(gpu, tmp_path, PROGRAM, order).usage
    with Truth(gpu.state) as truth:
        busy_ns = [device.busy_ns for device in truth.devices()]
    assert [account.launches for account in accounts] == [ROUNDS, ROUNDS]
    for account, busy in zip(accounts, busy_ns, strict=True):
        assert account.used_ns >= busy * 0.995 >= ROUNDS * 99_000


def test_two_programs_that_name_the_devices_crosswise_do_not_wait_for_each_other(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    gpu = make_simgpu("2xH200")
    both = run_together(gpu, tmp_path, [(PROGRAM, (0, 1)), (PROGRAM, (1, 0))])
    with Truth(gpu.state) as truth:
        busy_ns = [device.busy_ns for device in truth.devices()]
    assert [account.launches for program in both for account in program.usage] == [ROUNDS] * 4
    for device, busy in enumerate(busy_ns):
        assert busy >= 2 * ROUNDS * 100_000
        assert sum(program.usage[device].used_ns for program in both) >= busy * 0.995
