"""Runs programs in a share on simulated GPUs; gives what they were billed and what the devices really did."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rig.arbiter import Arbiter, Share
from rig.gpu import SimulatedGpu
from rig.script import script
from sharepod.agent.shares.share import Usage
from sharepod.simgpu.truth import KernelTruth, Truth

NEIGHBOUR = """
function = kernel(start(), "neighbour_500us")
print("ready", flush=True)
while True:
    for _ in range(8):
        ok(launch(function))
    ok(cuda.cuCtxSynchronize())
"""


@dataclass(frozen=True, slots=True)
class Metered:
    """The results of a program that has ended with success."""

    usage: list[Usage]
    """The share's account on each device, in the order of their numbers."""
    busy_ns: list[int]
    """For how long each device of the machine was busy."""
    stdout: str


def most_in_flight(kernels: Sequence[KernelTruth]) -> int:
    """Return the most kernels of these that were launched and not ended at one time."""
    return max(sum(k.submitted_ns <= at.submitted_ns < k.ended_ns for k in kernels) for at in kernels)


@contextmanager
def neighbour(gpu: SimulatedGpu, share: Share) -> Iterator[None]:
    """Keep a share busy; the block begins after its first kernel."""
    with subprocess.Popen(script(NEIGHBOUR), env=gpu.env | share.env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


def run_together(gpu: SimulatedGpu, body: str, environments: Sequence[Mapping[str, str]]) -> None:
    """Run programs together: each prints a line when it is ready, and goes on after it gets a line."""
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        started = [subprocess.Popen(script(body), env=gpu.env | e, stdin=pipe, stdout=pipe) for e in environments]
        programs = [stack.enter_context(program) for program in started]
        for program in programs:
            stack.callback(program.kill)
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
        for program in programs:
            assert program.stdin is not None
            program.stdin.write(b"go\n")
            program.stdin.flush()
        for program in programs:
            assert program.wait(timeout=20) == 0


def run_metered(
    gpu: SimulatedGpu,
    directory: Path,
    body: str,
    devices: tuple[int, ...] = (0,),
    *,
    memory_bytes: int = 0,
    beside: bool = False,
) -> Metered:
    """Run one program under a share; its terms name the devices in this order, with a cap on each if any.

    The program is alone, or `beside` a share that is always busy.
    """
    with Arbiter() as arbiter, ExitStack() as stack:
        share = arbiter.share(directory / "0", devices, memory_bytes=memory_bytes)
        if beside:
            stack.enter_context(neighbour(gpu, arbiter.share(directory / "beside")))
        done = subprocess.run(script(body), env=gpu.env | share.env, capture_output=True, text=True, timeout=60)
        usage = [share.usage(device) for device in sorted(share.devices)]
    assert done.returncode == 0, done.stderr
    with Truth(gpu.state) as truth:
        return Metered(usage, [device.busy_ns for device in truth.devices()], done.stdout)
