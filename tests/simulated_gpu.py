"""The simulated GPU as tests see it: a value that gives programs their environment."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class SimulatedGpu:
    """A simulated GPU of this test alone.

    Attributes:
        state: the state file, in memory; it goes away with the test.
        devices: what is installed, as in ``SIMGPU_DEVICES``.
        settings: further ``SIMGPU_*`` settings.
    """

    state: Path
    devices: str = "1xH200"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The whole environment in which a program finds this GPU."""
        library_dir = REPO_ROOT / "simgpu" / "lib"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SIMGPU_", "SHAREPOD_", "CUDA_"))}
        inherited.pop("LD_PRELOAD", None)
        own = {"LD_LIBRARY_PATH": str(library_dir), "SIMGPU_STATE": str(self.state), "SIMGPU_DEVICES": self.devices}
        return {**inherited, **own, **self.settings}


MakeSimgpu = Callable[..., SimulatedGpu]
