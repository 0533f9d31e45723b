"""What a launch costs the host."""

from collections.abc import Callable
from statistics import median

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
