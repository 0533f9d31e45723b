"""A simulated GPU as a value that gives programs their environment."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rig import REPO_ROOT

LIBRARIES = REPO_ROOT / "simgpu" / "lib"
"""The directory with the simulated driver and NVML."""
OURS = ("SIMGPU_", "SHAREPOD_", "CUDA_")
"""Variables that begin so change which GPU, agent or hook a program finds."""


def uuid(device: int) -> str:
    """Return the UUID of the simulated device with this number."""
    return f"GPU-53474750-0000-0000-8000-{device:012x}"


def inherited() -> dict[str, str]:
    """Return this process's environment without the variables that change which GPU, agent or hook a program finds."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith(OURS)}


@dataclass(frozen=True)
class SimulatedGpu:
    """A simulated GPU.

    Attributes:
        state: the state file, in memory; the code that made it removes it.
        devices: the installed devices, as in ``SIMGPU_DEVICES``.
        settings: further ``SIMGPU_*`` settings.
    """

    state: Path
    devices: str = "1xH200"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The whole environment of a program on this GPU."""
        own = {"LD_LIBRARY_PATH": str(LIBRARIES), "SIMGPU_STATE": str(self.state), "SIMGPU_DEVICES": self.devices}
        return {**inherited(), **own, **self.settings}


MakeSimgpu = Callable[..., SimulatedGpu]
