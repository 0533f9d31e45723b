"""The fixtures of this room; of the simulated GPU's, what starts programs that answer."""

# ruff: noqa: F401, F403
from hook_fixtures import *
from simgpu_fixtures import new_gpu, prelude
