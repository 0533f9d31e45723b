"""Fixtures for the program that calls every symbol: the program, built once per module, and its node."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from every_symbol import EVERY, LINKED, Node, Programs
from hooklab import compile_c

from rig.agent import RunningAgent
from rig.gpu import SimulatedGpu


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Build the program."""
    directory = tmp_path_factory.mktemp("every")
    return Programs(
        compile_c(directory / "linked", *LINKED),
        compile_c(directory / "unlinked", *EVERY),
        compile_c(directory / "plugin.so", "-shared", *LINKED),
    )


@pytest.fixture(scope="module")
def node(programs: Programs) -> Iterator[Node]:
    """Start an agent on a simulated device that remembers its work; run the program once without the hook."""
    with tempfile.TemporaryDirectory(prefix="sharepod-every-", dir="/dev/shm") as directory:
        gpu = SimulatedGpu(Path(directory, "state"), "1xH200", {"SIMGPU_LOG_KERNELS": "4096"})
        env = {name: value for name, value in gpu.env.items() if name not in ("LD_LIBRARY_PATH", "SIMGPU_DEVICES")}
        flags = ("--simulate", "1xH200", "--metrics-listen", "off")
        agent = RunningAgent(Path(directory, "agent"), *flags, environment=env)
        try:
            running = Node(agent.start(), gpu)
            running.run_without_the_hook(programs.unlinked)
            yield running
        finally:
            agent.end()
