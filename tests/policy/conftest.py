"""Makes `bench` importable (appended, not put first: the tree's `proto/` must not shadow a package); the driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from driving import Driver

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)


@pytest.fixture
def driver() -> Driver:
    """A policy that is driven in virtual time."""
    from driving import Driver  # importable only now

    return Driver()
