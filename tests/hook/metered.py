"""Programs under a share of simulated GPUs: what they were billed, beside what the devices really did."""

import subprocess
from collections.abc import Sequence
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


def run_together(gpu: SimulatedGpu, directory: Path, programs: Sequence[tuple[str, tuple[int, ...]]]) -> list[Metered]:
    """Run programs at once, each under a share of its own whose terms name the devices in this order."""
    running: list[subprocess.Popen[str]] = []
    with Arbiter() as arbiter:
        try:
            shares = [arbiter.share(directory / str(n), own) for n, (_, own) in enumerate(programs)]
            for (body, _), share in zip(programs, shares, strict=True):
                env = gpu.env | share.env
                running.append(
                    subprocess.Popen(script(body), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                )
            ended = [program.communicate(timeout=60) for program in running]
            accounts = [[share.usage(device) for device in sorted(share.devices)] for share in shares]
        finally:
            for program in running:
                program.kill()
                program.communicate()
    for program, (_, errors) in zip(running, ended, strict=True):
        assert program.returncode == 0, errors
    return [Metered(usage, output) for usage, (output, _) in zip(accounts, ended, strict=True)]


def run_metered(gpu: SimulatedGpu, directory: Path, body: str, devices: tuple[int, ...] = (0,)) -> Metered:
    """Run one program alone."""
    return run_together(gpu, directory, [(body, devices)])[0]
