"""The fixtures of this room."""

# ruff: noqa: F403
from simgpu_fixtures import *
