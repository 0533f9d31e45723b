"""The double holds what Kubernetes holds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from contract.connection import Connection
from contract.deletions import TestDeletions
from contract.events import TestEvents
from contract.evictions import TestEvictions
from contract.gates import TestGates
from contract.leases import TestLeases
from contract.lists import TestLists
from contract.patches import TestPatches
from contract.pods import TestPods
from contract.watches import TestWatches

from rig.cluster.apiserver import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from contract.there import Connected

__all__ = [
    "TestDeletions", "TestEvents", "TestEvictions", "TestGates", "TestLeases", "TestLists",
    "TestPatches", "TestPods", "TestWatches",
]  # fmt: skip


@contextlib.asynccontextmanager
async def double() -> AsyncIterator[Connection]:
    async with ApiServer() as server:

        async def compact() -> None:
            server.compact()

        address = server.address()
        yield Connection(address, compact=compact)


@pytest.fixture
def connected() -> Connected:
    return double
