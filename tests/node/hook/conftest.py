"""The fixtures of this room, and those of the simulated GPU that start programs."""

# ruff: noqa: F401, F403
from hook_fixtures import *
from memory_script import capped
from simgpu_fixtures import new_gpu, prelude
