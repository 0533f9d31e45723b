"""Fixtures that start agents for the end-to-end tests; each agent must be gone after its test."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rig.agent import MakeAgent, RunningAgent
from rig.programs import build
from sharepod.proto import v1_pb2 as pb


def devices(agent: RunningAgent) -> list[pb.Device]:
    """Return the devices of the agent's node."""
    return list(agent.stub.GetNode(pb.GetNodeRequest()).devices)


def reasons(agent: RunningAgent) -> list[str]:
    """Return for each device of the agent's node why it is unhealthy."""
    return [device.health_reason for device in devices(agent)]


def failed_start(agent: RunningAgent, *flags: str) -> tuple[int, str]:
    """Start an agent that cannot start; return its exit code and the one line that it prints."""
    process = agent.spawn(*flags)
    _, said = process.communicate(timeout=10)
    assert said.count("\n") == 1
    return process.returncode, said


@contextmanager
def agents() -> Iterator[MakeAgent]:
    """Make agents; all of them are gone at the end."""
    made: list[RunningAgent] = []

    def make(*flags: str) -> RunningAgent:
        directory = Path(tempfile.mkdtemp(prefix="sharepod-test-", dir="/dev/shm")) / "runtime"
        made.append(RunningAgent(directory, "--simulate", "2xH200", "--metrics-listen", "off", *flags))
        return made[-1]

    try:
        yield make
    finally:
        for agent in made:
            agent.close()
            shutil.rmtree(agent.directory.parent)


@pytest.fixture
def make_agent() -> Iterator[MakeAgent]:
    """Make agents: ``make_agent("--overcommit")``; by default on two simulated H200 without metrics."""
    with agents() as make:
        yield make


@pytest.fixture(scope="module")
def common_agent() -> Iterator[RunningAgent]:
    """Yield a started agent on two simulated H200 for all tests of a file; each test gives back what it takes."""
    with agents() as make:
        yield make().start()


@pytest.fixture
def agent(make_agent: MakeAgent) -> RunningAgent:
    """Return a started agent on two simulated H200."""
    return make_agent().start()


@pytest.fixture(scope="session")
def bad_program() -> Path:
    """Return the path of the built program that meets bad input."""
    return build(str(Path(__file__).with_name("bad_program.c")), "bad_program")
