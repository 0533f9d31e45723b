"""What a pool keeps, what an allocator keeps, and where memory lies: it is charged where it is, as long as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from capped_share import MIB, OUT_OF_MEMORY, CappedShare

from rig.agent import metered
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from rig.agent import MakeAgent, RunningAgent

CAP = 256 * MIB
EVERYTHING = 2**64 - 1


@pytest.fixture
def share(agent: RunningAgent) -> CappedShare:
    """A share of the first device."""
    return CappedShare(agent, metered(agent.register(50, name="capped", device="0", memory=CAP)))


@pytest.fixture
def wide(make_agent: MakeAgent) -> CappedShare:
    """A share of two devices, whose programs have a context on the first."""
    agent = make_agent("--simulate", "2xH200").start()
    asks = [pb.DeviceAsk(device=n, request_millipercent=50_000, memory_limit_bytes=CAP) for n in ("0", "1")]
    return CappedShare(agent, metered(agent.stub.RegisterShare(pb.RegisterShareRequest(devices=asks, name="capped"))))


def test_what_the_default_pool_keeps_is_charged_until_it_is_trimmed(share: CappedShare) -> None:
    with share.taker() as take:
        assert take(f"keep {EVERYTHING}") == "0"
        for _ in range(3):
            assert take(f"take stream_ordered {64 * MIB}") == "0"
        for _ in range(3):
            assert take("give") == "0"
        assert share.holds() == 192 * MIB
        assert int(take("free")) == CAP - 192 * MIB
        assert take(f"take stream_ordered {64 * MIB}") == "0"  # of what is kept: nothing more is charged
        assert share.holds() == 192 * MIB
        assert take("give") == "0"
        assert take(f"trim {64 * MIB}") == "0"
        assert share.holds() == 64 * MIB
        assert take("trim 0") == "0"
        assert share.holds() == 0


def test_another_threshold_takes_effect_at_the_next_wait(share: CappedShare) -> None:
    with share.taker() as take:
        assert take(f"keep {EVERYTHING}") == take(f"take stream_ordered {192 * MIB}") == take("give") == "0"
        assert take("keep 0") == "0"
        assert share.holds() == 192 * MIB
        assert take("sync") == "0"
        assert share.holds() == 0


@pytest.mark.parametrize("kind", ["linear", "managed", "array", "pitched", "physical", "external", "graph_node"])
def test_what_a_pool_keeps_is_given_back_before_anything_is_refused(share: CappedShare, kind: str) -> None:
    with share.taker() as take:
        assert take(f"keep {EVERYTHING}") == "0"
        for _ in range(3):
            assert take(f"take stream_ordered {64 * MIB}") == "0"
        for _ in range(2):
            assert take("give") == "0"
        assert share.holds() == 192 * MIB
        assert take(f"take {kind} {160 * MIB}") == "0"
        assert share.on_the_device() >= 224 * MIB
        assert share.holds() <= CAP
        assert take(f"take {kind} {64 * MIB}") == OUT_OF_MEMORY  # what is in use is nobody else's


@pytest.mark.parametrize("kind", ["linear", "physical", "segments", "pool"])
def test_an_allocator_that_empties_its_cache_when_it_is_refused_gets_what_it_asks_for(
    share: CappedShare, kind: str
) -> None:
    with share.taker() as take:
        for _ in range(4):
            assert take(f"cached {kind} {64 * MIB}") == "0"
        for _ in range(4):
            assert take("give") == "0"
        assert share.holds() == CAP
        assert take(f"cached {kind} {64 * MIB}") == take("give") == "0"  # from the cache
        assert (share.holds(), share.usage().memory_refusals) == (CAP, 0)
        assert take(f"cached {kind} {128 * MIB}") == "0"
        assert share.usage().memory_refusals == 1
        assert share.holds() == 128 * MIB
        assert take(f"cached {kind} {256 * MIB}") == OUT_OF_MEMORY  # nothing is kept that could go
        assert share.holds() == 128 * MIB


@pytest.mark.parametrize("kind", ["physical_elsewhere", "pool_elsewhere", "graph_elsewhere"])
def test_memory_is_charged_to_the_device_that_it_lies_on(wide: CappedShare, kind: str) -> None:
    with wide.taker() as take:
        assert take(f"take linear {32 * MIB}") == take(f"take {kind} {64 * MIB}") == "0"
        assert wide.holds(0) == 32 * MIB
        assert wide.holds(1) >= 64 * MIB
        assert take(f"take {kind} {CAP}") == OUT_OF_MEMORY
        assert take(f"take linear {CAP - 32 * MIB}") == "0"
        assert wide.holds(0) == CAP
        assert take("give") == take("give") == "0"
        assert (wide.holds(0), wide.holds(1)) == (32 * MIB, 0)


@pytest.mark.parametrize("kind", ["physical_of_host", "physical_of_node", "physical_near", "pool_of_node"])
def test_memory_that_lies_on_the_host_is_not_charged(wide: CappedShare, kind: str) -> None:
    with wide.taker() as take:
        assert take(f"take {kind} {2 * CAP}") == "0"
        assert wide.holds(0) == wide.holds(1) == 0
        assert take("give") == "0"
        assert wide.holds(0) == wide.holds(1) == 0
