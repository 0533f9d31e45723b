"""Test the cap on a share's memory: each kind of memory is charged exactly, on the device that holds it.

The simulated device is the judge: what it counts for the share's processes must equal what the agent says, to the byte.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bad_input import CLAIMS_BYTES, overwrite
from capped_share import MIB, OUT_OF_MEMORY, CappedShare

from rig.agent import RunningAgent, metered
from rig.until import until
from sharepod.proto import v1_pb2 as pb

CAP = 256 * MIB
EVERYTHING = 2**64 - 1
MEMORY_AT, SEQUENCE_AT = CLAIMS_BYTES + 64 + 16, CLAIMS_BYTES + 64 + 64
"""The places in the first slot: behind its head and the words before them."""
LINEAR = ("linear", "managed", "pitched", "array", "array_3d", "array_v1", "array_3d_v1", "mipmap")
GRAPHS = (
    "graph_node",
    "graph_captured",
    "graph_generic",
    "graph_generic_v2",
    "graph_with_params",
    "graph_with_log",
    "graph_with_log_v2",
)
POOLED = ("stream_ordered", "stream_ordered_ptsz", "default_pool", "default_pool_ptsz", "pool", *GRAPHS)
PHYSICAL = ("physical", "released", "retained", "segments")
UPLOADED = ("graph_uploaded", "graph_uploaded_at_once")  # the driver may free this memory until the graph is launched
KINDS = (*LINEAR, *POOLED, *PHYSICAL, "external")


@contextmanager
def capped(agent: RunningAgent, *devices: str) -> Iterator[CappedShare]:
    """Make a share of some devices; at the end its programs must hold nothing on them."""
    asks = [pb.DeviceAsk(device=n, request_millipercent=50_000, memory_limit_bytes=CAP) for n in devices]
    answer = agent.stub.RegisterShare(pb.RegisterShareRequest(devices=asks, name="capped"))
    share = CappedShare(agent, metered(answer))
    try:
        yield share
        until(lambda: share.on_the_device(0) == share.on_the_device(1) == 0)
    finally:  # the next test makes a share with this name
        agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="capped"))


@pytest.fixture
def share(common_agent: RunningAgent) -> Iterator[CappedShare]:
    """Yield a share of the first device."""
    with capped(common_agent, "0") as share:
        yield share


@pytest.fixture
def wide(common_agent: RunningAgent) -> Iterator[CappedShare]:
    """Yield a share of two devices; its programs have a context on the first."""
    with capped(common_agent, "0", "1") as share:
        yield share


@pytest.fixture
def alone(agent: RunningAgent) -> Iterator[CappedShare]:
    """Yield a share of an agent of its own."""
    with capped(agent, "0") as share:
        yield share


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_charged_to_the_byte_and_refused_over_the_cap(share: CappedShare, kind: str) -> None:
    with share.taker() as take:
        assert share.holds() == 0
        for megabytes in (48, 32, 16):
            before = share.holds()
            assert take(f"take {kind} {megabytes * MIB}") == "0"
            assert share.holds() >= before + (0 if kind in POOLED else megabytes * MIB)
        held = share.holds()
        assert 96 * MIB <= held <= CAP
        assert int(take("free")) == CAP - held
        assert take(f"take {kind} {CAP - held + 4 * MIB}") == OUT_OF_MEMORY
        assert share.holds() == held
        for _ in range(3):
            assert take("give") == "0"
        assert share.holds() == 0
        assert take(f"take {kind} {128 * MIB}") == "0"  # refusals must not use up any of the cap
        assert share.holds() >= 128 * MIB


@pytest.mark.parametrize("kind", UPLOADED)
def test_a_graph_is_charged_when_it_is_uploaded_and_refused_over_the_cap(share: CappedShare, kind: str) -> None:
    with share.taker() as take:
        assert take(f"take {kind} {64 * MIB}") == "0"
        assert share.holds() >= 64 * MIB
        assert take(f"take {kind} {CAP + 4 * MIB}") == OUT_OF_MEMORY
        assert share.holds() <= CAP
        assert take("give") == "0"
        assert share.holds() == 0


@pytest.mark.parametrize("kind", [*KINDS, *UPLOADED])
def test_a_killed_program_gives_every_kind_back(share: CappedShare, kind: str) -> None:
    with share.taker() as take, share.taker() as other:
        assert take(f"take {kind} {64 * MIB}") == other(f"take {kind} {32 * MIB}") == "0"
        assert share.holds() >= 96 * MIB
        take.process.kill()
        take.process.wait()
        until(lambda: share.usage().processes == 1)
        until(lambda: share.on_the_device() < 64 * MIB)
        until(lambda: share.usage().memory_used_bytes == share.on_the_device(), timeout_s=2)
        assert other(f"take {kind} {160 * MIB}") == "0"
        assert share.holds() >= 192 * MIB


@pytest.mark.parametrize("kind", ["linear", "physical", "pool"])
def test_what_another_process_of_the_share_opens_is_charged_once(share: CappedShare, kind: str) -> None:
    with share.taker() as owner, share.taker() as guest:
        assert owner(f"take {kind} {64 * MIB}") == "0"
        held = share.holds()
        shown = owner("show")
        assert guest(f"open {kind} {owner.pid} {shown}") == "0"
        assert share.holds() == held
        assert guest("give") == "0"
        assert share.holds() == held
        assert owner("give") == "0"
        until(lambda: share.on_the_device() == 0)


@pytest.mark.parametrize("kind", ["linear", "physical", "pool"])
def test_what_outlives_its_owner_is_charged_to_who_holds_it(alone: CappedShare, kind: str) -> None:
    share = alone  # the agent takes the dead owner's memory for a context's, and reserves as much for later programs
    with share.taker() as owner, share.taker() as guest:
        assert owner(f"take {kind} {64 * MIB}") == "0"
        assert guest(f"open {kind} {owner.pid} {owner('show')}") == "0"
        owner.process.kill()
        owner.process.wait()
        left = 64 * MIB if kind == "physical" else 0
        until(lambda: share.on_the_device() == left)
        until(lambda: share.usage().memory_used_bytes == left and share.usage().processes == 1, timeout_s=20)
        assert share.on_the_device() == left
        assert guest("give") == "0"
        until(lambda: share.usage().memory_used_bytes == share.on_the_device() == 0, timeout_s=20)


def test_external_memory_is_charged_for_each_import(share: CappedShare) -> None:
    with share.taker() as take:
        assert take(f"take external {64 * MIB}") == "0"
        assert take("again") == "0"
        assert share.usage().memory_used_bytes == 128 * MIB
        assert take("give") == "0"
        assert share.usage().memory_used_bytes == 64 * MIB
        assert take("give") == "0"
        assert share.holds() == 0


def test_what_a_process_takes_first_is_told_at_once_although_its_ring_is_not_heard(share: CappedShare) -> None:
    bell = Path(share.environment["SHAREPOD_REGION"], "bell")
    bell.unlink()
    os.mkfifo(bell)  # the agent still reads the old one
    with share.taker() as take:
        assert take(f"take linear {2 * MIB}") == "0"
        usage = share.usage()
        assert (usage.memory_used_bytes, usage.processes) == (2 * MIB, 1)


@pytest.mark.parametrize("kind", ["linear", "physical", "array", "external"])
def test_two_processes_of_eight_threads_share_the_last_bytes_and_never_pass_the_cap(
    share: CappedShare, kind: str
) -> None:
    with share.taker() as one, share.taker() as other:
        for take in (one, other):
            take.tell(f"race {kind} {2 * MIB} 8")
        seen = [share.on_the_device()]
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            seen.append(share.on_the_device())
        got = [int(take.line()) for take in (one, other)]
        assert max(seen) <= CAP
        assert share.holds() == sum(got) * 2 * MIB
        while share.holds() < CAP:  # the two may refuse each other the last piece; one alone gets it
            assert one(f"take {kind} {2 * MIB}") == "0"
        assert other(f"take {kind} {2 * MIB}") == OUT_OF_MEMORY
        assert share.holds() == CAP


def test_a_higher_cap_counts_at_once_and_a_lower_one_refuses_only_what_is_new(share: CappedShare) -> None:
    with share.taker() as take:
        assert take(f"take linear {CAP}") == "0"
        assert take(f"take linear {MIB}") == OUT_OF_MEMORY
        share.set_cap(2 * CAP)
        assert take(f"take linear {CAP}") == "0"
        assert share.holds() == 2 * CAP
        assert not any("above its cap" in fact for fact in share.facts())
        share.set_cap(64 * MIB)
        assert share.holds() == 2 * CAP
        above = "its memory is 448 MiB above its cap: new allocations are refused until it has freed that"
        assert above in share.facts()
        for kind in (*KINDS, *UPLOADED):
            assert take(f"take {kind} {4 * MIB}") == OUT_OF_MEMORY
        assert take("free") == "0"
        assert share.holds() == 2 * CAP
        assert take("give") == take("give") == "0"
        assert take(f"take linear {64 * MIB}") == "0"
        assert share.holds() == 64 * MIB
        assert not any("above its cap" in fact for fact in share.facts())


def test_a_program_that_is_stopped_as_it_reports_keeps_its_memory_in_the_account(share: CappedShare) -> None:
    with share.taker() as take:
        assert take(f"take linear {64 * MIB}") == "0"
        assert share.holds() == 64 * MIB
        overwrite(Path(share.environment["SHAREPOD_REGION"], "slots"), SEQUENCE_AT, b"\1")  # odd: a write is under way
        assert share.holds() == 64 * MIB
        assert take(f"take linear {32 * MIB}") == "0"
        assert share.holds() == 96 * MIB


def test_what_is_freed_after_its_account_was_lost_leaves_no_debt_that_refuses(share: CappedShare) -> None:
    with share.taker() as take, share.taker() as other:
        assert take(f"take linear {64 * MIB}") == "0"
        overwrite(Path(share.environment["SHAREPOD_REGION"], "slots"), MEMORY_AT, bytes(8))
        assert take("give") == "0"
        assert take(f"take linear {32 * MIB}") == other(f"take linear {32 * MIB}") == "0"


def test_what_the_default_pool_keeps_is_charged_until_it_is_trimmed_or_may_keep_less(share: CappedShare) -> None:
    with share.taker() as take:
        assert take(f"keep {EVERYTHING}") == "0"
        for _ in range(3):
            assert take(f"take stream_ordered {64 * MIB}") == "0"
        for _ in range(3):
            assert take("give") == "0"
        assert share.holds() == 192 * MIB
        assert int(take("free")) == CAP - 192 * MIB
        assert take(f"take stream_ordered {64 * MIB}") == "0"  # from the kept memory: nothing more is charged
        assert share.holds() == 192 * MIB
        assert take("give") == "0"
        assert take(f"trim {64 * MIB}") == "0"
        assert share.holds() == 64 * MIB
        assert take("trim 0") == "0"
        assert share.holds() == 0
        assert take(f"take stream_ordered {192 * MIB}") == take("give") == "0"
        assert take("keep 0") == "0"  # this takes effect at the next wait
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
        assert take(f"take {kind} {64 * MIB}") == OUT_OF_MEMORY  # memory in use is not given away


@pytest.mark.parametrize("kind", ["linear", "physical", "segments", "pool"])
def test_an_allocator_that_empties_its_cache_when_it_is_refused_gets_what_it_asks_for(
    share: CappedShare, kind: str
) -> None:
    with share.taker() as take:
        for _ in range(4):
            assert take(f"take {kind} {64 * MIB}") == "0"
        assert (share.holds(), share.usage().memory_refusals) == (CAP, 0)
        assert take(f"take {kind} {128 * MIB}") == OUT_OF_MEMORY
        assert share.usage().memory_refusals == 1
        for _ in range(4):
            assert take("give") == "0"
        assert take(f"take {kind} {128 * MIB}") == "0"
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


@pytest.mark.parametrize("kind", ["host", "physical_of_host", "physical_of_node", "physical_near", "pool_of_node"])
def test_memory_that_lies_on_the_host_is_not_charged(wide: CappedShare, kind: str) -> None:
    with wide.taker() as take:
        assert take(f"take {kind} {2 * CAP}") == "0"
        assert wide.holds(0) == wide.holds(1) == 0
        assert take("give") == "0"
        assert wide.holds(0) == wide.holds(1) == 0
