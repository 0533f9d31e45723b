"""A simulated GPU as a value that gives programs their environment."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rig import REPO_ROOT

LIBRARIES = REPO_ROOT / "simgpu" / "lib"
"""Where the simulated driver and NVML are built."""
OURS = ("SIMGPU_", "SHAREPOD_", "CUDA_")
"""What begins so in an environment changes what a program meets."""


def uuid(device: int) -> str:
    """Return the UUID of the simulated device with this number."""
    return f"GPU-53474750-0000-0000-8000-{device:012x}"


def inherited() -> dict[str, str]:
    """Return this process's environment without what changes which GPU, agent or hook a program meets."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith(OURS)}


@dataclass(frozen=True)
class SimulatedGpu:
    """A simulated GPU.

    Attributes:
        state: the state file, in memory; its maker removes it.
        devices: what is installed, as in ``SIMGPU_DEVICES``.
        settings: further ``SIMGPU_*`` settings.
    """

    state: Path
    devices: str = "1xH200"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The whole environment in which a program finds this GPU."""
        own = {"LD_LIBRARY_PATH": str(LIBRARIES), "SIMGPU_STATE": str(self.state), "SIMGPU_DEVICES": self.devices}
        return {**inherited(), **own, **self.settings}


MakeSimgpu = Callable[..., SimulatedGpu]
