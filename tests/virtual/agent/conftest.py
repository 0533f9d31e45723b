"""The fixtures of this room."""

import pytest
from driving import Driver


@pytest.fixture
def driver() -> Driver:
    """Return a policy that is driven in virtual time."""
    return Driver()
