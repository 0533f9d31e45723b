"""The policy, driven in virtual time."""

import pytest
from driving import Driver


@pytest.fixture
def driver() -> Driver:
    """A policy that is driven in virtual time."""
    return Driver()
