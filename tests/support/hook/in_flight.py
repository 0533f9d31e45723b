"""Counts how many kernels of a program are in flight at one time, by the device's own log."""

from pathlib import Path

from metered import most_in_flight, run_metered

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

BEFORE = {
    "nothing": "",
    "kernels that take now 20 µs, now 1 ms": """
for number in range(300):
    ok(launch(kernel(module, "k_var"), stream, 64, (20_000, 1_000_000)[number % 2]))
""",
}
"""What a program launches before its even work."""


def in_flight(
    make_simgpu: MakeSimgpu, directory: Path, body: str, prefix: str, beside: bool = False, last: int = 0
) -> tuple[int, int]:
    """Run a program; return the most of its (last) kernels in flight at one time, and its deliberate passes."""
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="1000")
    account = run_metered(gpu, directory, body, beside=beside).usage[0]
    with Truth(gpu.state) as truth:
        kernels = [kernel for kernel in truth.kernels(0) if kernel.name.startswith(prefix)]
    return most_in_flight(kernels[-last:]), account.passed


def even_work_in_flight(make_simgpu: MakeSimgpu, directory: Path, before: str) -> tuple[int, int]:
    """Run kernels of 5 ms beside a busy share, behind one of BEFORE; return as `in_flight`, for the last 15."""
    body = f"""
module, stream = start(), new_stream()
{BEFORE[before]}
for _ in range(50):
    ok(launch(kernel(module, "even_5ms"), stream))
ok(cuda.cuStreamSynchronize(stream))
"""
    return in_flight(make_simgpu, directory, body, "even", beside=True, last=15)
