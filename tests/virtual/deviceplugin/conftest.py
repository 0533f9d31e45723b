"""The fixtures of this room."""

# ruff: noqa: F403
from deviceplugin_fixtures import *
