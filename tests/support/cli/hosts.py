"""A host of one test's own on which the command runs."""

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rig.gpu import SimulatedGpu
from rig.until import until
from sharepod.agent.devices.lock import NAME as LOCK

SHAREPOD = [sys.executable, "-m", "sharepod.cli"]


def has_agent(directory: Path) -> bool:
    """Tell whether an agent holds the directory's lock: it keeps it to its very end, while it removes its files."""
    try:
        with (directory / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@dataclass(frozen=True)
class Host:
    """A directory for an agent, and an environment in which commands find that agent."""

    directory: Path
    env: dict[str, str]
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        return [*SHAREPOD, *arguments]

    def sharepod(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.env, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            self.command(*arguments), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.children.append(child)
        return child

    def end_children(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            if child.stdout and not child.stdout.closed:
                child.communicate()

    def shares(self) -> list[str]:
        return [share["name"] for share in json.loads(self.sharepod("ps", "-o", "json").stdout)["shares"]]

    def left(self) -> list[str]:
        """Return the directories of shares that still exist."""
        return [path.name for path in (self.directory / "shares").glob("*")]


@pytest.fixture
def host(make_simgpu: Callable[..., SimulatedGpu]) -> Iterator[Host]:
    """Yield a host without an agent."""
    gpu = make_simgpu()
    directory = gpu.state.parent / "agent"
    env = {key: value for key, value in gpu.env.items() if key not in ("LD_LIBRARY_PATH", "SIMGPU_DEVICES")}
    host = Host(directory, {**env, "SHAREPOD_RUNTIME_DIRECTORY": str(directory), "SHAREPOD_METRICS_LISTEN": "off"})
    yield host
    host.end_children()
    until(lambda: not (directory / "agent.sock").exists() and not has_agent(directory))
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if directory.exists():
        directory.rmdir()
