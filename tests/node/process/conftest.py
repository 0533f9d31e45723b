"""The fixtures of this room."""

# ruff: noqa: F403
from agent_fixtures import *
