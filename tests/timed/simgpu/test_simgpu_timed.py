"""Test what needs real time: what driver calls cost the host, and how much of a device each program gets."""

import time
from statistics import median

import pytest
from simgpu_fixtures import LOOP, Gpu, NewGpu

from rig.until import until


def test_a_launch_costs_cpu_time_and_a_synchronised_loop_little_more_than_its_kernels(new_gpu: NewGpu) -> None:
    text = """
        f = kernel(start(), "k_100us")
        times = []
        for _ in range(1000):
            begin = time.monotonic_ns()
            ok(launch(f))
            launched = time.monotonic_ns()
            ok(cuda.cuStreamSynchronize(None))
            times.append((launched - begin, time.monotonic_ns() - begin))
        for column in zip(*times):
            print(sorted(column)[500])
        """
    runs = [[int(line) for line in new_gpu().play(text)] for _ in range(3)]
    launch_ns, loop_ns = (median(column) for column in zip(*runs, strict=True))
    assert 2_500 <= launch_ns < 20_000
    assert 105_000 <= loop_ns < 250_000


@pytest.mark.parametrize(
    ("setting", "call"),
    [
        ("SIMGPU_LAUNCH_COST_NS", "launch(f, stream)"),
        ("SIMGPU_RECORD_COST_NS", "cuda.cuEventRecord(event, stream)"),
        ("SIMGPU_WRITE_COST_NS", "cuda.cuStreamWriteValue32_v2(stream, c_uint64(word), 1, 0)"),
        ("SIMGPU_QUERY_COST_NS", "cuda.cuEventQuery(event)"),
    ],
)
def test_each_kind_of_call_burns_the_cpu_time_that_is_set(new_gpu: NewGpu, setting: str, call: str) -> None:
    text = f"""
        f, stream, event, word = kernel(start(), "k_20ns"), new_stream(), new_event(), allocate(8)
        times = []
        for _ in range(300):
            begin = time.thread_time_ns()
            {call}
            times.append(time.thread_time_ns() - begin)
        print(sorted(times)[150])
        """
    free_ns, dear_ns = (
        median(int(new_gpu(**{setting: cost_ns}).play(text)[0]) for _ in range(3)) for cost_ns in ("0", "50000")
    )
    assert 40_000 < dear_ns - free_ns < 60_000


def measure_shares(gpu: Gpu, *loops: tuple[str, str], seconds: float = 0.8) -> list[float]:
    """Return each program's busy time in percent of the time that passed."""
    programs = [gpu.ready(LOOP, *loop) for loop in loops]
    with gpu.truth() as truth:
        time.sleep(0.1)
        before = {c.pid: c.busy_ns for c in truth.contexts(0)}
        begin_ns = truth.now_ns()
        time.sleep(seconds)
        after = {c.pid: c.busy_ns for c in truth.contexts(0)}
        end_ns = truth.now_ns()
    return [100 * (after[p.pid] - before[p.pid]) / (end_ns - begin_ns) for p in programs]


def test_two_deep_queues_share_equally_and_lose_about_a_tenth_to_switching(new_gpu: NewGpu) -> None:
    first, second = measure_shares(new_gpu(), ("k_1ms", "deep"), ("k_1ms", "deep"))
    assert first == pytest.approx(second, abs=1)
    assert 90 <= first + second <= 92.5


def test_two_deep_queues_and_a_loop_share_by_the_formula(new_gpu: NewGpu) -> None:
    gpu = new_gpu(SIMGPU_SWITCH_US="0", SIMGPU_DRAIN_SWITCH_US="0")
    shares = measure_shares(gpu, ("k_1ms", "deep"), ("k_1ms", "deep"), ("k_500us", "sync"), seconds=1.2)
    assert shares == pytest.approx([44.4, 44.4, 11.1], abs=1.5)


RECORDS = """
    start()
    event, stream = new_event(), new_stream()
    print("ready", flush=True)
    while True:
        ok(cuda.cuEventRecord(event, stream))
        time.sleep(0.002)
    """


@pytest.mark.parametrize("intrusion", [False, True])
def test_records_without_the_turn_disturb_the_holder(new_gpu: NewGpu, intrusion: bool) -> None:
    gpu = new_gpu(SIMGPU_INTRUSION_US="200" if intrusion else "0")
    gpu.ready(LOOP, "k_1ms", "deep")
    gpu.ready(RECORDS)
    with gpu.truth() as truth:
        time.sleep(0.2)
        before, began_ns = truth.devices()[0], truth.now_ns()
        if intrusion:
            until(lambda: truth.devices()[0].switches > before.switches + 50)
        else:
            time.sleep(0.5)
        after, ended_ns = truth.devices()[0], truth.now_ns()
    lost_ns, switches = ended_ns - began_ns - (after.busy_ns - before.busy_ns), after.switches - before.switches
    if intrusion:
        assert switches > 50
        # Each intrusion costs a switch of 180 µs, the commands' part of the rotation, and a switch back of 10 µs.
        assert lost_ns == pytest.approx(switches / 2 * 390_000, rel=0.25)
    else:
        assert switches == 0
        assert lost_ns < 1_000_000
