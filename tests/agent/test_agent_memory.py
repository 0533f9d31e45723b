"""The cap on a share's memory: every kind of it is charged with exactly what the device says that it takes.

The device is the judge: what it counts for the share's processes is compared with what the agent says, byte for byte.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from agent_process import metered, program, usage, wait_until

from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

if TYPE_CHECKING:
    from agent_process import RunningAgent

PROGRAM = Path(__file__).with_name("memory_program.py")
MIB = 1 << 20
CAP = 256 * MIB
OUT_OF_MEMORY = "2"
LINEAR = ("linear", "managed", "pitched", "array", "array_3d", "mipmap")
POOLED = ("stream_ordered", "pool", "graph_node")
PHYSICAL = ("physical", "released", "retained", "segments")
KINDS = (*LINEAR, *POOLED, *PHYSICAL, "external")


@dataclass(frozen=True)
class Taker:
    """A run of memory_program.py."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> None:
        """Send a line, whose answer is read later."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Read an answer."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __call__(self, line: str) -> str:
        self.say(line)
        return self.hear()


@dataclass(frozen=True)
class CappedShare:
    """A share with a cap, on a device of its own."""

    agent: RunningAgent
    environment: dict[str, str]
    takers: list[Taker] = field(default_factory=list)

    @contextmanager
    def taker(self) -> Iterator[Taker]:
        """Run the program in the share."""
        with program(self.environment, of=PROGRAM) as process:
            self.takers.append(Taker(process))
            yield self.takers[-1]

    def on_the_device(self) -> int:
        """Return what the device counts for the share's programs."""
        pids = {taker.pid for taker in self.takers}
        with Truth(f"{self.agent.directory}/simgpu") as truth:
            return sum(process.memory_bytes for process in truth.processes(0) if process.pid in pids)

    def holds(self) -> int:
        """Return what the share holds, of which the device and the agent say the same."""
        there = self.on_the_device()
        assert usage(self.agent, "capped").memory_used_bytes == there
        return there

    def set_cap(self, cap: int) -> None:
        """Change the cap while programs run."""
        change = pb.DeviceChange(memory_limit_bytes=cap)
        self.agent.stub.UpdateShare(pb.UpdateShareRequest(share="capped", devices=[change]))


@pytest.fixture
def share(agent: RunningAgent) -> CappedShare:
    """A share of the first device."""
    answer = agent.register(50, name="capped", device="0", memory=CAP)
    return CappedShare(agent, metered(answer))


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
        assert take(f"take {kind} {128 * MIB}") == "0"  # nothing is lost to a refusal
        assert share.holds() >= 128 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_program_gives_every_kind_back(share: CappedShare, kind: str) -> None:
    with share.taker() as take, share.taker() as other:
        assert take(f"take {kind} {64 * MIB}") == other(f"take {kind} {32 * MIB}") == "0"
        assert share.holds() >= 96 * MIB
        take.process.kill()
        take.process.wait()
        wait_until(lambda: usage(share.agent, "capped").processes == 1)
        wait_until(lambda: share.on_the_device() < 64 * MIB)
        wait_until(lambda: usage(share.agent, "capped").memory_used_bytes == share.on_the_device(), 2)
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
        wait_until(lambda: share.on_the_device() == 0)


@pytest.mark.realtime
@pytest.mark.parametrize("kind", ["linear", "physical", "array", "external"])
def test_two_processes_of_eight_threads_share_the_last_bytes_and_never_pass_the_cap(
    share: CappedShare, kind: str
) -> None:
    with share.taker() as one, share.taker() as other:
        for take in (one, other):
            take.say(f"race {kind} {2 * MIB} 8")
        seen = [share.on_the_device()]
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            seen.append(share.on_the_device())
        got = [int(take.hear()) for take in (one, other)]
        assert max(seen) <= CAP
        assert share.holds() == sum(got) * 2 * MIB
        while share.holds() < CAP:  # the last of two that refuse each other: alone it gets what is left
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
        share.set_cap(64 * MIB)
        assert share.holds() == 2 * CAP
        for kind in KINDS:
            assert take(f"take {kind} {4 * MIB}") == OUT_OF_MEMORY
        assert take("free") == "0"
        assert share.holds() == 2 * CAP
        assert take("give") == take("give") == "0"
        assert take(f"take linear {64 * MIB}") == "0"
        assert share.holds() == 64 * MIB


def test_pinned_memory_of_the_host_is_not_charged(share: CappedShare) -> None:
    with share.taker() as take:
        assert take(f"take host {2 * CAP}") == "0"
        assert share.holds() == 0
        assert take(f"take linear {CAP}") == "0"
