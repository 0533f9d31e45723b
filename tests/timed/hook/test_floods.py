"""Test that a tenant that floods what it may write (locks, doorbell, file) harms only its own share."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from floods import GROWS, HOLDS, LOCKS, RINGS, running
from tenant import Tenant, until

from rig.arbiter import Arbiter

WORST_S = 0.1
"""The longest wait allowed. With the flood of locks it was 0.45 s; unless the machine is busy it is well below 1 ms."""
USUAL_S = 0.004
"""The longest median of the waits. With the flood of locks it was 7 ms; beside each of these floods below 1 ms."""
ASKS = 200


@pytest.fixture
def shares() -> Iterator[Path]:
    """Yield a directory on a tmpfs, as the agent's is."""
    with tempfile.TemporaryDirectory(prefix="sharepod-floods-", dir="/dev/shm") as directory:
        yield Path(directory)


def waits_s(tenant: Tenant) -> list[float]:
    """Ask for turns on an idle device; return how long each took to come."""
    found = []
    for _ in range(ASKS):
        began = time.monotonic()
        tenant.enter()
        found.append(time.monotonic() - began)
        for paused in (True, False):  # this ends the turn, and the share asks for no other
            tenant.share.arbiter.pause_share(tenant.share.handle, paused)
        until(lambda: tenant.word() % 2 == 0)
        time.sleep(0.005)
    return sorted(found)


@pytest.mark.parametrize("text", [LOCKS, RINGS, GROWS], ids=["locks", "rings", "length"])
def test_a_flood_costs_its_own_share_alone(arbiter: Arbiter, shares: Path, text: str) -> None:
    hostile = arbiter.share(shares / "hostile", [0])
    neighbour = Tenant(arbiter.share(shares / "neighbour", [1]))
    with running(HOLDS, neighbour.share.region), running(text, hostile.region):
        found = waits_s(neighbour)
    assert found[ASKS // 2] < USUAL_S, found[:: ASKS // 10]
    assert found[-1] < WORST_S, found[-5:]
