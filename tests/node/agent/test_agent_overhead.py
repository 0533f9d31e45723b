"""Test that memory of contexts and modules counts: learned from NVML, reserved before a context, settled after it."""

import os
import subprocess
import sys
from pathlib import Path

import capped_share
import pytest

from rig.agent import PROGRAM, MakeAgent, metered, program, usage
from rig.until import until
from sharepod.agent.shares.overhead import Held, Overheads, Settled
from sharepod.agent.shares.share import DeviceUuid, Handle, Holding
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

MIB = 1 << 20
GPU = DeviceUuid("GPU-1")
CONTEXT_MIB = 300


def held(pid: int, used_bytes: int, context_bytes: int = 0) -> Held:
    return Held(Handle(1), 0, Holding(pid, 0, used_bytes, context_bytes))


LOOKS = {
    "a difference is believed when two looks find it": ([([held(7, 1000)], {7: 1500})] * 2, [{}, {7: 500}], 500),
    "a program that allocates between the readings is settled when it has the same overhead whatever it holds": (
        [([held(7, used)], {7: nvml}) for used, nvml in ((1000, 1500), (2000, 1500), (2000, 2700), (1000, 1400))]
        + [([held(7, 5000)], {7: 5400})],
        [{}, {}, {}, {}, {7: 400}],
        400,
    ),
    "less than was reserved is given back, and allocations never are": (
        [([held(7, 900, 300), held(8, 900, 300)], {7: 700, 8: 100})] * 2,
        [{}, {7: -200, 8: -300}],
        100,
    ),
    "another process in the slot is another account": ([([held(n, 0)], {n: 500}) for n in (7, 8)], [{}, {}], 0),
    "a process that NVML does not list or tell of is left alone": (
        [([held(7, 1000), held(8, 1000)], {7: 0})] * 3,
        [{}] * 3,
        0,
    ),
    "a process that has given everything back and is no longer listed takes nothing": (
        [([held(7, 0)], nvml) for nvml in ({7: 300}, {7: 300}, {}, {})],
        [{}, {7: 300}, {}, {7: 0}],
        300,
    ),
    "the least overhead seen is what a context takes": (
        [([held(7, 100), held(8, 100)], {7: nvml, 8: 400}) for nvml in (900, 900, 950, 950)],
        [{}, {7: 800, 8: 300}, {8: 300}, {7: 850, 8: 300}],
        300,
    ),
}
"""Each case: at each look what processes hold and NVML's bytes; what each look settles, by pid; a context's bytes."""


@pytest.mark.parametrize("case", LOOKS)
def test_an_overhead_is_what_two_looks_find(case: str) -> None:
    overheads = Overheads()
    looks, settled, context_bytes = LOOKS[case]
    for (there, nvml_bytes), by_pid in zip(looks, settled, strict=True):
        found = overheads.step(GPU, there, nvml_bytes)
        assert found == [Settled(one, by_pid[one.holding.pid]) for one in there if one.holding.pid in by_pid]
    assert overheads.context_bytes(GPU) == context_bytes


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
            # The memory was reserved before the context was made, without waiting for a look at NVML.
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
        Path(metered(small)["SIMGPU_STATE"]).unlink()  # as after a driver upgrade, which loads the driver anew
        monkeypatch.setenv("SIMGPU_DRIVER_RELEASE", release)
        agent.start()
        assert "share adopted" in agent.log()
        command, environment = [capped_share.memory_program()], {**os.environ, **metered(small)}
        done = subprocess.run(command, env=environment, input="", capture_output=True, text=True, check=False)
        assert (done.stdout == "ready\n") == runs, done.stderr
