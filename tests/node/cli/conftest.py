"""The fixtures of this room."""

# ruff: noqa: F403
from cli_fixtures import *
from hosts import *
