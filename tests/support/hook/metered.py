"""Programs under a share of simulated GPUs: what they were billed, beside what the devices really did."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from rig.arbiter import Arbiter
from rig.gpu import SimulatedGpu
from rig.script import script
from sharepod.agent.share import Usage


@dataclass(frozen=True, slots=True)
class Metered:
    """A program that has ended well."""

    usage: list[Usage]
    """The share's account on each device, in the order of their numbers."""
    stdout: str


def run_metered(gpu: SimulatedGpu, directory: Path, body: str, devices: tuple[int, ...] = (0,)) -> Metered:
    """Run one program alone, under a share whose terms name the devices in this order."""
    with Arbiter() as arbiter:
        share = arbiter.share(directory / "0", devices)
        done = subprocess.run(script(body), env=gpu.env | share.env, capture_output=True, text=True, timeout=60)
        usage = [share.usage(device) for device in sorted(share.devices)]
    assert done.returncode == 0, done.stderr
    return Metered(usage, done.stdout)
