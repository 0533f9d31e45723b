"""Sockets lie in directories with short names."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return an empty directory whose path leaves room for a socket's name."""
    made = Path(tempfile.mkdtemp(prefix="sp-"))
    yield made
    shutil.rmtree(made)
