"""Test that a stream's waits are not billed: the bill equals the kernels' time by the device's own account."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from metered import run_metered, run_together

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu, SimulatedGpu
from sharepod.simgpu.truth import Truth

START = """
module, stream, other = start(), new_stream(), new_stream()
function, host = kernel(module, "work_500us"), c_void_p()
ok(cuda.cuMemHostAlloc(byref(host), c_size_t(4 << 20), 3))
memory, words = allocate(4 << 20), ctypes.cast(host, ctypes.POINTER(c_uint32))
for number in range(1024):
    words[number] = 0
for _ in range(8):
    ok(launch(function, stream, 1024))
ok(cuda.cuStreamSynchronize(stream))

@HOST_FUNCTION
def sleeps(_):
    time.sleep(0.004)

def set_later(number):
    time.sleep(0.004)
    words[number] = 1

def upload(to):
    ok(cuda.cuMemcpyHtoDAsync_v2(c_uint64(memory), host, c_size_t(4 << 20), to))
"""

WAYS = {
    "upload": "upload(stream)",
    "upload by a copy of any direction": "ok(cuda.cuMemcpyAsync(c_uint64(memory), host, c_size_t(4 << 20), stream))",
    "upload and download": """upload(stream)
    ok(launch(function, stream, 1024))
    ok(cuda.cuMemcpyDtoHAsync_v2(host, c_uint64(memory), c_size_t(1 << 20), stream))""",
    "host function": "ok(cuda.cuLaunchHostFunc(stream, sleeps, None))",
    "word": "ok(cuda.cuStreamWaitValue32(stream, c_uint64(host.value + 4 * number), 1, 0))",
    "event behind an upload": """upload(other)
    ok(cuda.cuEventRecord(event, other))
    ok(cuda.cuStreamWaitEvent(stream, event, 0))""",
}

ROUNDS = """
event = new_event(2)
for number in range(50):
    {way}
    ok(launch(function, stream, 1024))
    ok(launch(function, stream, 1024))
    {then}
    ok(cuda.cuStreamSynchronize(stream))
time.sleep(0.3)  # the idle turn is given back, and with it the last counts
"""


FAR = """
near, away = c_void_p(), c_void_p()
ok(cuda.cuCtxGetCurrent(byref(near)))
far = kernel(start(1), "far_5ms")
far_stream, done = new_stream(), new_event(2)
ok(cuda.cuCtxGetCurrent(byref(away)))
for number in range(60):
    ok(cuda.cuCtxSetCurrent(away))
    ok(launch(far, far_stream, 1024))
    ok(cuda.cuEventRecord(done, far_stream))
    ok(cuda.cuCtxSetCurrent(near))
    ok(cuda.cuStreamWaitEvent(stream, done, 0))
    ok(launch(function, stream, 1024))
    ok(cuda.cuStreamSynchronize(stream))
time.sleep(0.3)
"""


LOOP = """
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + 2
while time.monotonic() < until:
    upload(stream)
    ok(launch(function, stream, 1024))
    ok(cuda.cuStreamSynchronize(stream))
"""


def busy_of_two_loops(gpu: SimulatedGpu, environments: Sequence[Mapping[str, str]]) -> int:
    """Run two programs that upload before each kernel; return how long the device ran kernels, in ns."""
    run_together(gpu, START + LOOP, environments)
    with Truth(gpu.state) as truth:
        return truth.devices()[0].busy_ns


def billed_to_busy(make_simgpu: MakeSimgpu, directory: Path, body: str, devices: tuple[int, ...]) -> list[float]:
    """Run a program alone three times; return for each device the median of its bill per second of work."""
    ratios: list[list[float]] = []
    for number in range(3):
        gpu = make_simgpu(f"{len(devices)}xH200", SIMGPU_PCIE_MB_S="1000")
        done = run_metered(gpu, directory / str(number), body, devices)
        assert min(done.busy_ns) > 30_000_000
        ratios.append([account.used_ns / busy for account, busy in zip(done.usage, done.busy_ns, strict=True)])
    return [statistics.median(of_device) for of_device in zip(*ratios, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_a_wait_in_front_of_kernels_is_not_billed(way: str, make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    body = START + ROUNDS.format(way=WAYS[way], then="set_later(number)" if way == "word" else "")
    assert billed_to_busy(make_simgpu, tmp_path, body, (0,)) == pytest.approx([1], abs=0.05)


def test_work_behind_an_event_of_another_device_is_billed_alone(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    assert billed_to_busy(make_simgpu, tmp_path, START + FAR, (0, 1)) == pytest.approx([1, 1], abs=0.15)


def test_while_the_work_of_one_share_waits_another_has_the_device(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    gpu = make_simgpu("H200", SIMGPU_PCIE_MB_S="1000")
    bare_ns = busy_of_two_loops(gpu, [{}, {}])
    with Arbiter() as arbiter:
        shares = [arbiter.share(tmp_path / name, request=50) for name in "ab"]
        busy_ns = busy_of_two_loops(gpu, [share.env for share in shares])
        used_ns = sum(share.usage().used_ns for share in shares)
    busy_ns -= bare_ns
    assert busy_ns > 0.85 * bare_ns
    assert used_ns == pytest.approx(busy_ns, rel=0.05)
