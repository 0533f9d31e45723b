"""Gives tests of sockets a directory with a short name."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return an empty directory; its path is short enough for a socket's name to follow."""
    made = Path(tempfile.mkdtemp(prefix="sp-"))
    yield made
    shutil.rmtree(made)
