"""What calls of the driver cost the host."""

from collections.abc import Callable
from statistics import median

import pytest

from rig.gpu import MakeSimgpu

Run = Callable[..., str]


def test_a_launch_costs_cpu_time_and_a_synchronised_loop_little_more_than_its_kernels(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
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
    runs = [[int(line) for line in run(make_simgpu(), text).split()] for _ in range(3)]
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
def test_each_kind_of_call_burns_the_cpu_time_that_is_set(
    make_simgpu: MakeSimgpu, run: Run, setting: str, call: str
) -> None:
    text = f"""
        f, stream, event, word = kernel(start(), "k_20ns"), new_stream(), new_event(), allocate(8)
        times = []
        for _ in range(300):
            begin = time.thread_time_ns()
            {call}
            times.append(time.thread_time_ns() - begin)
        print(sorted(times)[150])
        """
    free_ns = median(int(run(make_simgpu(**{setting: "0"}), text)) for _ in range(3))
    dear_ns = median(int(run(make_simgpu(**{setting: "50000"}), text)) for _ in range(3))
    assert 40_000 < dear_ns - free_ns < 60_000
