"""The fixtures of this room."""

# ruff: noqa: F403
from policy_fixtures import *
