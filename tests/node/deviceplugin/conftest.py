"""Sockets lie in directories with short names."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return an empty directory whose path leaves room for a socket's name."""
    made = Path(tempfile.mkdtemp(prefix="sp-"))
    yield made
    shutil.rmtree(made)
