"""What contexts and modules take counts as well: learned from NVML, reserved before a context, settled after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import capped_share

from rig.agent import PROGRAM, metered, program, usage
from rig.until import until
from sharepod.agent.overhead import Held, Overheads, Settled
from sharepod.agent.share import DeviceUuid, Handle, Holding
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

if TYPE_CHECKING:
    import pytest

    from rig.agent import MakeAgent

MIB = 1 << 20
GPU = DeviceUuid("GPU-1")
CONTEXT_MIB = 300


def held(pid: int, used_bytes: int, context_bytes: int = 0) -> Held:
    return Held(Handle(1), 0, Holding(pid, 0, used_bytes, context_bytes))


def test_a_difference_is_believed_when_two_looks_find_it() -> None:
    overheads = Overheads()
    assert overheads.step(GPU, [held(7, 1000)], {7: 1500}) == []
    assert overheads.step(GPU, [held(7, 1000)], {7: 1500}) == [Settled(held(7, 1000), 500)]
    assert overheads.context_bytes(GPU) == 500


def test_a_program_that_allocates_between_the_two_readings_changes_nothing() -> None:
    overheads = Overheads()
    for used_bytes, nvml_bytes in ((1000, 1500), (2000, 1500), (2000, 2700), (1000, 1400)):
        assert overheads.step(GPU, [held(7, used_bytes)], {7: nvml_bytes}) == []
    # But one that has the same overhead whatever it holds is settled.
    assert overheads.step(GPU, [held(7, 5000)], {7: 5400}) == [Settled(held(7, 5000), 400)]


def test_less_than_was_reserved_is_given_back_and_allocations_never_are() -> None:
    overheads = Overheads()
    for _ in range(2):
        found = overheads.step(GPU, [held(7, 900, 300), held(8, 900, 300)], {7: 700, 8: 100})
    assert [settled.overhead_bytes for settled in found] == [-200, -300]


def test_another_process_in_the_slot_is_another_account() -> None:
    overheads = Overheads()
    overheads.step(GPU, [held(7, 0)], {7: 500})
    assert overheads.step(GPU, [held(8, 0)], {8: 500}) == []


def test_who_nvml_does_not_list_or_tell_of_is_left_alone() -> None:
    overheads = Overheads()
    for _ in range(3):
        assert overheads.step(GPU, [held(7, 1000), held(8, 1000)], {7: 0}) == []


def test_who_has_given_everything_back_and_is_no_longer_listed_takes_nothing() -> None:
    overheads = Overheads()
    for _ in range(2):
        overheads.step(GPU, [held(7, 0)], {7: 300})
    assert overheads.step(GPU, [held(7, 0)], {}) == []
    assert overheads.step(GPU, [held(7, 0)], {}) == [Settled(held(7, 0), 0)]
    assert overheads.context_bytes(GPU) == 300


def test_the_least_overhead_seen_is_what_a_context_takes() -> None:
    overheads = Overheads()
    for nvml in ({7: 900, 8: 400}, {7: 900, 8: 400}, {7: 950, 8: 400}, {7: 950, 8: 400}):
        overheads.step(GPU, [held(7, 100), held(8, 100)], nvml)
    assert overheads.context_bytes(GPU) == 300


def test_a_context_is_charged_as_soon_as_nvml_shows_it_and_reserved_from_then_on_under_the_next_agent_too(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMGPU_CONTEXT_MIB", str(CONTEXT_MIB))
    agent = make_agent().start()
    first = agent.register(30, memory=1 << 30, name="first", device="0")
    second = agent.register(30, memory=1 << 30, name="second", device="0")
    small = agent.register(30, memory=(CONTEXT_MIB - 1) * MIB, name="small", device="0")
    with program(metered(first), "idle"):
        until(lambda: usage(agent, "first").memory_used_bytes == CONTEXT_MIB * MIB, timeout_s=15)
        assert usage(agent, "first").memory_overhead_bytes == CONTEXT_MIB * MIB
        with program(metered(second), "idle"), Truth(f"{agent.directory}/simgpu") as truth:
            # Reserved before it was made: no look at NVML is waited for.
            assert usage(agent, "second").memory_used_bytes == CONTEXT_MIB * MIB
            assert truth.devices()[0].memory_used_bytes == 2 * CONTEXT_MIB * MIB
            refused = subprocess.run(
                [sys.executable, PROGRAM], env=metered(small), capture_output=True, text=True, timeout=20, check=False
            )
            assert (refused.returncode, refused.stderr) == (1, "CUDA error 2\n")
            assert truth.devices()[0].memory_used_bytes == 2 * CONTEXT_MIB * MIB
        until(lambda: "allocations did not fit under the cap" in agent.log(), timeout_s=15)
        facts = agent.stub.ExplainShare(pb.ExplainShareRequest(share="small")).devices[0].facts
        assert f"an allocation did not fit under its memory cap, of {CONTEXT_MIB} MiB" in facts
        agent.stop()
        agent.start()
        assert usage(agent, "first").memory_used_bytes == CONTEXT_MIB * MIB
        with program(metered(agent.register(10, name="third", device="0")), "idle"):
            assert usage(agent, "third").memory_used_bytes == CONTEXT_MIB * MIB
    until(lambda: usage(agent, "first").memory_used_bytes == 0)
    assert usage(agent, "first").memory_overhead_bytes == 0


def test_what_was_learned_of_another_driver_is_forgotten(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMGPU_CONTEXT_MIB", str(CONTEXT_MIB))
    monkeypatch.setenv("SIMGPU_DRIVER_RELEASE", "550")
    agent = make_agent().start()
    small = agent.register(30, memory=(CONTEXT_MIB - 1) * MIB, name="small", device="0")
    with program(metered(agent.register(30, name="first", device="0")), "idle"):
        until(lambda: usage(agent, "first").memory_overhead_bytes == CONTEXT_MIB * MIB, timeout_s=15)
    for release, runs in (("550", False), ("580", True)):
        agent.stop()
        Path(metered(small)["SIMGPU_STATE"]).unlink()  # an upgrade loads the driver anew
        monkeypatch.setenv("SIMGPU_DRIVER_RELEASE", release)
        agent.start()
        assert "share adopted" in agent.log()
        command, environment = [capped_share.memory_program()], {**os.environ, **metered(small)}
        done = subprocess.run(command, env=environment, input="", capture_output=True, text=True, check=False)
        assert (done.stdout == "ready\n") == runs, done.stderr
