"""The double, when it plays Kubernetes 1.20, holds what that holds: no gates, no policy/v1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract.evictions import TestEvictions
from contract.old_release import TestOldRelease
from contract.pods import TestPods
from test_contract_of_the_double import double

if TYPE_CHECKING:
    from contract.there import Connected

__all__ = ["TestEvictions", "TestOldRelease", "TestPods"]


@pytest.fixture
def connected() -> Connected:
    return lambda: double(20)
