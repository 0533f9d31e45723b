"""The fixtures of this room."""

# ruff: noqa: F403
from nvml_fixtures import *
from simgpu_fixtures import *
