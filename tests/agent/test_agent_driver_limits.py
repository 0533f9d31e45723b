"""The driver's own memory limits beside the hook's cap: real agents, real cgroups, a simulated driver of r615.

NVML is asked past the agent what stands; a program without the hook finds out whether it holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rig.agent import free_port, metered, program, scrape
from rig.containers import Container, container
from rig.until import until
from sharepod import simgpu
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from rig.agent import MakeAgent, RunningAgent

MEMORY_PROGRAM = Path(__file__).with_name("memory_program.py")
ASK_LIMIT = """
import json, sys, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(int(sys.argv[1]))
if len(sys.argv) > 3:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace, limits.softLimit, limits.hardLimit = sys.argv[2].encode(), 0, int(sys.argv[3])
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
limits.nameSpace = sys.argv[2].encode()
try:
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    print(json.dumps([limits.softLimit, limits.hardLimit]))
except pynvml.NVMLError_NotFound:
    print("null")
"""
MIB = 1 << 20
CAP = 256 * MIB
OUT_OF_MEMORY = "2"
LOOKS_S = 20.0
"""Time for some looks of 2.4 s, on a machine that does other things too."""


@pytest.fixture(autouse=True)
def new_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the agents here make machines with a driver that has limits of its own."""
    monkeypatch.setenv("SIMGPU_DRIVER_RELEASE", "615")


@pytest.fixture
def box() -> Iterator[Container]:
    with container() as made:
        yield made


def ask(agent: RunningAgent, where: Container, *hard_bytes: int, device: int = 0) -> list[int] | None:
    """Return the soft and the hard limit that stand on a cgroup, past the agent; or set the hard one first."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(Path(simgpu.__file__).parent / "lib"),
        "SIMGPU_STATE": f"{agent.directory}/simgpu",
    }
    command = [sys.executable, "-c", ASK_LIMIT, str(device), str(where.directory), *map(str, hard_bytes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    found: list[int] | None = json.loads(done.stdout)
    return found


def on_device(agent: RunningAgent, share: str) -> pb.DeviceShare:
    """Return the share on its first device."""
    return agent.stub.ListShares(pb.ListSharesRequest(shares=[share])).shares[0].devices[0]


def facts(agent: RunningAgent, share: str) -> str:
    """Return the facts of `sharepod explain` on the first device."""
    return "\n".join(agent.stub.ExplainShare(pb.ExplainShareRequest(share=share)).devices[0].facts)


def set_cap(agent: RunningAgent, share: str, memory: int) -> None:
    change = pb.DeviceChange(memory_limit_bytes=memory)
    agent.stub.UpdateShare(pb.UpdateShareRequest(share=share, devices=[change]))


@contextlib.contextmanager
def running(where: Container | None, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run the memory program in a container, or beside this test."""
    with contextlib.ExitStack() as stack:
        with where.inside() if where else contextlib.nullcontext():
            process = stack.enter_context(program(environment, of=MEMORY_PROGRAM))
        yield process


def say(process: subprocess.Popen[str], line: str) -> str:
    """Have the program do what a line says; return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def hookless(answer: pb.RegisterShareResponse) -> dict[str, str]:
    """Return what a program needs to find the devices, and nothing of the share."""
    return {key: value for key, value in answer.environment.items() if key != "SHAREPOD_REGION"}


def events(agent: RunningAgent, event: str) -> list[str]:
    return [line for line in agent.log().splitlines() if event in line]


def test_a_share_with_a_container_to_itself_gets_the_drivers_limit_too(agent: RunningAgent, box: Container) -> None:
    answer = agent.register(memory=CAP, device="0", name="boxed")
    assert "memory enforced by: hook (no process has attached yet)" in facts(agent, "boxed")
    with running(box, metered(answer)) as inside:
        until(lambda: on_device(agent, "boxed").driver_limit_cgroup, LOOKS_S)
        assert on_device(agent, "boxed").driver_limit_cgroup == str(box.directory)
        assert ask(agent, box) == [0, CAP]
        assert ask(agent, box, device=1) is None
        assert f"memory enforced by: hook and driver (cgroup {box.directory})" in facts(agent, "boxed")
        [line] = events(agent, "driver limits memory too")
        assert str(CAP) in line

        # Past the hook, in the same container: the driver refuses what is over the cap, beside what the share has.
        assert say(inside, f"take linear {CAP // 2}") == "0"
        with running(box, hookless(answer)) as stray, running(None, hookless(answer)) as elsewhere:
            assert say(stray, f"take linear {CAP // 2 + MIB}") == OUT_OF_MEMORY
            assert say(stray, f"take stream_ordered {CAP // 2 + MIB}") == OUT_OF_MEMORY
            assert say(stray, f"take physical {CAP // 2 + 2 * MIB}") == OUT_OF_MEMORY
            assert say(stray, f"take managed {CAP}") == "0"  # which the driver does not count
            assert say(stray, f"take linear {CAP // 4}") == "0"
            assert int(say(stray, "free")) <= CAP // 4
            assert say(elsewhere, f"take linear {CAP}") == "0"

        set_cap(agent, "boxed", 2 * CAP)
        until(lambda: ask(agent, box) == [0, 2 * CAP], LOOKS_S)
        assert say(inside, f"take linear {CAP}") == "0"
        set_cap(agent, "boxed", 0)
        until(lambda: ask(agent, box) is None, LOOKS_S)
        assert not on_device(agent, "boxed").driver_limit_cgroup
        assert "memory enforced by" not in facts(agent, "boxed")
        set_cap(agent, "boxed", 3 * CAP)
        until(lambda: ask(agent, box) == [0, 3 * CAP], LOOKS_S)
        agent.register(device="0")  # the devices stay as long as there is a share
        agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="boxed"))
        assert agent.stop() == 0
        assert ask(agent, box) is None  # an agent that stops has done what was ordered


def test_a_limit_stays_between_two_programs_and_moves_with_the_container(agent: RunningAgent) -> None:
    answer = agent.register(memory=CAP, device="0", name="moved")
    with container() as first, container("crio-{}.scope") as second:
        with running(first, metered(answer)):
            until(lambda: on_device(agent, "moved").driver_limit_cgroup, LOOKS_S)
        until(lambda: not on_device(agent, "moved").usage.processes)
        assert ask(agent, first) == [0, CAP]
        with running(second, metered(answer)):
            until(lambda: on_device(agent, "moved").driver_limit_cgroup == str(second.directory), LOOKS_S)
            assert ask(agent, second) == [0, CAP]
            assert ask(agent, first) is None
    # With its container a limit is gone: nothing is left to be told but that.
    until(lambda: not on_device(agent, "moved").driver_limit_cgroup, LOOKS_S)
    assert not events(agent, "driver does not limit memory")


def test_two_shares_in_one_container_have_none(agent: RunningAgent, box: Container) -> None:
    answers = [agent.register(memory=CAP, device="0", name=name) for name in ("one", "two")]
    with running(box, metered(answers[0])):
        until(lambda: ask(agent, box) == [0, CAP], LOOKS_S)
        with running(box, metered(answers[1])):
            until(lambda: ask(agent, box) is None, LOOKS_S)
            until(lambda: "another share" in on_device(agent, "two").driver_limit_cause, LOOKS_S)
            assert "another share has processes in its container" in facts(agent, "one")
        until(lambda: ask(agent, box) == [0, CAP], LOOKS_S)  # the other one has ended


def test_a_session_of_the_host_is_no_container(agent: RunningAgent) -> None:
    answer = agent.register(memory=CAP, device="0", name="plain")
    with container("session-{}.scope".replace("{}", "c1")) as session, running(session, metered(answer)):
        until(lambda: "not in a container" in on_device(agent, "plain").driver_limit_cause, LOOKS_S)
        assert ask(agent, session) is None
    assert "memory enforced by: hook (it is not in a container" in facts(agent, "plain")
    assert not events(agent, "driver does not limit memory")  # it is how single hosts are


def test_a_container_with_the_agent_in_it_has_none(make_agent: MakeAgent, box: Container) -> None:
    agent = make_agent()
    with box.inside():
        agent.start()
    answer = agent.register(memory=CAP, device="0", name="near")
    with running(box, metered(answer)):
        until(lambda: "the agent runs in" in on_device(agent, "near").driver_limit_cause, LOOKS_S)
        assert ask(agent, box) is None
    agent.stop()


def test_a_limit_that_somebody_else_set_is_left_alone(agent: RunningAgent, box: Container) -> None:
    ask(agent, box, 5 * CAP)
    answer = agent.register(memory=CAP, device="0", name="late")
    with running(box, metered(answer)) as inside:
        until(lambda: "somebody else" in on_device(agent, "late").driver_limit_cause, LOOKS_S)
        assert say(inside, f"take linear {CAP + MIB}") == OUT_OF_MEMORY
        set_cap(agent, "late", 2 * CAP)
        assert say(inside, f"take linear {CAP + MIB}") == "0"
        agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="late"))
    agent.register(memory=CAP, device="0")  # the devices stay as long as there is a share
    assert agent.stop() == 0  # what was ordered has been done
    assert ask(agent, box) == [0, 5 * CAP]
    assert len(events(agent, "driver does not limit memory")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_new_agent_knows_what_the_last_one_set(agent: RunningAgent, box: Container, number: int) -> None:
    answer = agent.register(memory=CAP, device="0", name="kept")
    with running(box, metered(answer)):
        until(lambda: ask(agent, box) == [0, CAP], LOOKS_S)
        until(lambda: on_device(agent, "kept").driver_limit_cgroup)
        agent.stop(number)
        assert ask(agent, box) == [0, CAP]
        ask(agent, box, 2**64 - 1)  # and what is lost meanwhile is set again
        agent.start()
        assert on_device(agent, "kept").driver_limit_cgroup == str(box.directory)
        until(lambda: ask(agent, box) == [0, CAP], LOOKS_S)
        set_cap(agent, "kept", 2 * CAP)
        until(lambda: ask(agent, box) == [0, 2 * CAP], LOOKS_S)
    # Nothing is attached any more: what is to be cleared is known from the checkpoint.
    agent.stop()
    agent.start()
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="kept"))
    until(lambda: ask(agent, box) is None, LOOKS_S)
    assert not events(agent, "driver does not limit memory")


def test_an_older_driver_is_not_asked(make_agent: MakeAgent, box: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMGPU_DRIVER_RELEASE", "610")
    agent = make_agent().start()
    answer = agent.register(memory=CAP, device="0", name="old")
    with running(box, metered(answer)) as inside:
        until(lambda: on_device(agent, "old").usage.processes)
        assert say(inside, f"take linear {CAP + MIB}") == OUT_OF_MEMORY
    assert "memory enforced by: hook\n" in facts(agent, "old")
    assert not [one for one in agent.stub.GetNode(pb.GetNodeRequest()).features if one.startswith("driver-memory")]


def test_the_metric_says_who_enforces(make_agent: MakeAgent, box: Container) -> None:
    address = f"127.0.0.1:{free_port()}"
    agent = make_agent("--metrics-listen", address).start()
    answer = agent.register(memory=CAP, device="0", name="counted")

    def shown() -> str:
        [value] = re.findall(r"^sharepod_share_memory_driver_limited{.*} (.*)$", scrape(address), re.MULTILINE)
        return str(value)

    assert shown() == "0.0"
    with running(box, metered(answer)):
        until(lambda: shown() == "1.0", LOOKS_S)


def test_an_agent_without_permission_says_so_once_and_the_hook_enforces_alone(
    make_agent: MakeAgent, box: Container
) -> None:
    agent = make_agent()
    # Another user, who can still read an interpreter that root keeps to itself.
    agent.wrapper = ("setpriv", "--reuid=65534", "--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    os.chown(agent.directory.parent, 65534, -1)
    agent.start()
    answer = agent.register(memory=CAP, device="0", name="poor")
    with running(box, metered(answer)) as inside:
        until(lambda: "Insufficient Permissions" in on_device(agent, "poor").driver_limit_cause, LOOKS_S)
        assert ask(agent, box) is None
        assert say(inside, f"take linear {CAP + MIB}") == OUT_OF_MEMORY
        assert say(inside, f"take linear {CAP}") == "0"
        set_cap(agent, "poor", 2 * CAP)  # asked for anew, refused again
        until(lambda: len(events(agent, "allocations did not fit")), LOOKS_S)
        assert "memory enforced by: hook (the driver refuses" in facts(agent, "poor")
    [line] = events(agent, "driver does not limit memory")
    assert "run the agent as root: the hook enforces alone" in line
    assert "driver-memory-limits-for-root" in agent.stub.GetNode(pb.GetNodeRequest()).features


def test_an_instance_has_no_limit_of_the_driver(make_agent: MakeAgent, box: Container) -> None:
    agent = make_agent("--simulate", "1xH100:3g.40gb+4g.40gb").start()
    answer = agent.register(memory=CAP, device="0", name="part")
    with running(box, metered(answer)):
        until(lambda: on_device(agent, "part").usage.processes)
        assert "memory enforced by: hook (the driver has no limits for MIG instances)" in facts(agent, "part")
