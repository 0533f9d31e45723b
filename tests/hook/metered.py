"""Programs under a share of simulated GPUs: what they were billed, beside what the devices really did."""

import subprocess
import sys
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


def run_metered(gpu: SimulatedGpu, directory: Path, body: str, devices: tuple[int, ...] = (0,)) -> Metered:
    """Run a program alone under a share whose terms name the devices in this order."""
    arbiter = NativeArbiter()
    try:
        handles = {device: arbiter.add_device(uuid(device)) for device in sorted(devices)}
        terms = Terms(request_millipercent=50_000, limit_millipercent=100_000, memory_limit_bytes=0)
        asked = [(handles[device], terms) for device in devices]
        share = arbiter.add_share(str(directory), asked, ShareClass.STANDARD, [])
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(DRIVER)!r})\nfrom driver import *\n{body}"],
            env=gpu.env | {"LD_PRELOAD": str(LIBRARY), "SHAREPOD_REGION": str(directory)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        usage = {device: arbiter.read_usage(share, term) for term, device in enumerate(devices)}
    finally:
        arbiter.close()
    assert done.returncode == 0, done.stderr
    return Metered([usage[device] for device in sorted(usage)], done.stdout)
