"""A node to test and to measure on, and a loop that waits for conditions. Part of the repository, not installed."""

from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parent.parent
