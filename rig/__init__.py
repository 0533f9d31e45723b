"""A node to test and to measure on, and what waits for it; a room of the repository, not installed for users."""

from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parent.parent
