"""Programs under a share of simulated GPUs: what they were billed, beside what the devices really did."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulated_gpu import SimulatedGpu

from sharepod.agent.native import NativeArbiter
from sharepod.agent.share import ShareClass, Terms, Usage
from sharepod.hook import LIBRARY

DRIVER = Path(__file__).resolve().parents[1] / "simgpu"


@dataclass(frozen=True, slots=True)
class Metered:
    """A program that has ended well."""

    usage: list[Usage]
    """The share's account on each device, in the order of their numbers."""
    stdout: str


def uuid(device: int) -> str:
    """Return the name of the simulated device with this number."""
    return f"GPU-53474750-0000-0000-8000-{device:012x}"


def run_together(gpu: SimulatedGpu, directory: Path, programs: Sequence[tuple[str, tuple[int, ...]]]) -> list[Metered]:
    """Run programs at once, each under a share of its own whose terms name the devices in this order."""
    arbiter = NativeArbiter()
    terms = Terms(request_millipercent=50_000, limit_millipercent=100_000, memory_limit_bytes=0)
    handles = {device: arbiter.add_device(uuid(device)) for device in sorted({n for _, own in programs for n in own})}
    running, shares = [], []
    try:
        for number, (body, devices) in enumerate(programs):
            region = directory / str(number)
            region.mkdir()
            asked = [(handles[device], terms) for device in devices]
            shares.append(arbiter.add_share(str(region), asked, ShareClass.STANDARD, []))
            text = f"import sys; sys.path.insert(0, {str(DRIVER)!r})\nfrom driver import *\n{body}"
            env = gpu.env | {"LD_PRELOAD": str(LIBRARY), "SHAREPOD_REGION": str(region)}
            command = [sys.executable, "-c", text]
            running.append(
                subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        ended = [program.communicate(timeout=60) for program in running]
        accounts = [
            {device: arbiter.read_usage(share, term) for term, device in enumerate(devices)}
            for share, (_, devices) in zip(shares, programs, strict=True)
        ]
    finally:
        for program in running:
            program.kill()
            program.communicate()
        arbiter.close()
    for program, (_, errors) in zip(running, ended, strict=True):
        assert program.returncode == 0, errors
    return [
        Metered([usage[device] for device in sorted(usage)], output)
        for usage, (output, _) in zip(accounts, ended, strict=True)
    ]


def run_metered(gpu: SimulatedGpu, directory: Path, body: str, devices: tuple[int, ...] = (0,)) -> Metered:
    """Run one program alone."""
    return run_together(gpu, directory, [(body, devices)])[0]
