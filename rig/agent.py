"""Runs a real agent as a process, on simulated GPUs, in a directory of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import grpc

from rig.gpu import inherited
from rig.until import until
from sharepod.cli.ending import command_that_ends_with_us
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

PROGRAM = Path(__file__).with_name("spin.py")


def free_port() -> int:
    """Return a port of the loopback on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape(address: str) -> str:
    """Return the metrics that are served on `address`."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


class RunningAgent:
    """One agent after another in the same directory."""

    def __init__(
        self, directory: Path, *flags: str, environment: Mapping[str, str] | None = None, ends_with_us: bool = False
    ) -> None:
        """Start no agent yet. `directory` is the runtime directory of every agent.

        `environment` defaults to this process's without SHAREPOD_* settings. With `ends_with_us` the kernel ends an
        agent when this process dies.
        """
        self.directory = directory
        self.flags = flags
        self.environment = environment
        main = [sys.executable, "-m", "sharepod.agent.main"]
        self.command = [*command_that_ends_with_us(), "agent"] if ends_with_us else main
        self.wrapper: Sequence[str] = ()  # words in front of the command
        self.process: subprocess.Popen[str] | None = None
        self._channel: grpc.Channel | None = None
        self._log_path = directory.parent / "log"

    def start(self) -> RunningAgent:
        """Start an agent and wait until it answers."""
        with self._log_path.open("a") as log:
            self.process = self._spawn(self.flags, log)
        until(lambda: self.ready() or self._last().poll() is not None)
        assert self._last().poll() is None, self.log()
        self._channel = grpc.insecure_channel(f"unix:{self.directory}/agent.sock")
        return self

    def spawn(self, *flags: str) -> subprocess.Popen[str]:
        """Start an agent that should end by itself. Read its output with `communicate`."""
        return self._spawn(flags or self.flags, subprocess.PIPE)

    def _spawn(self, flags: Sequence[str], stderr: int | IO[str]) -> subprocess.Popen[str]:
        """Start an agent with these flags on the directory. Return its process at once."""
        command = [*self.command, "--runtime-directory", str(self.directory), *flags]
        environment = self.environment or {k: v for k, v in os.environ.items() if not k.startswith("SHAREPOD_")}
        return subprocess.Popen([*self.wrapper, *command], stderr=stderr, text=True, env=environment)

    def ready(self) -> bool:
        """Tell whether the agent accepts connections."""
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(f"{self.directory}/agent.sock")
            return True
        return False

    def _last(self) -> subprocess.Popen[str]:
        """Return the process of the last agent, which may have ended."""
        assert self.process is not None
        return self.process

    @property
    def pid(self) -> int:
        """Return the process id of the last agent."""
        return self._last().pid

    @property
    def stub(self) -> rpc.NodeServiceStub:
        """Return the API of the running agent."""
        assert self._channel is not None
        return rpc.NodeServiceStub(self._channel)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the agent; return its exit code."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        process = self._last()
        process.send_signal(number)
        return process.wait(10)

    def log(self) -> str:
        """Return the log of all agents so far."""
        return self._log_path.read_text()

    def end(self) -> None:
        """End an agent that still runs: ask it first, and kill it if it does not end."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
            self.close()

    def close(self) -> None:
        """Kill an agent that still runs."""
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)

    def register(
        self, request: int = 30, limit: int = 0, memory: int = 0, device: str = "", **fields: object
    ) -> pb.RegisterShareResponse:
        """Register a share on one device, in whole per cents."""
        item = pb.DeviceAsk(
            device=device,
            request_millipercent=request * 1000,
            limit_millipercent=limit * 1000,
            memory_limit_bytes=memory,
        )
        return self.stub.RegisterShare(pb.RegisterShareRequest(devices=[item], **fields))  # type: ignore[arg-type]

    def shares(self) -> list[pb.Share]:
        """Return all shares."""
        return list(self.stub.ListShares(pb.ListSharesRequest()).shares)

    def directories(self) -> set[str]:
        """Return the names in the shares' directory."""
        return {path.name for path in (self.directory / "shares").iterdir()}


MakeAgent = Callable[..., RunningAgent]


@contextlib.contextmanager
def python(
    environment: dict[str, str], *arguments: str, within: Sequence[str] = (), of: str = sys.executable
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run Python, or the command `of`, and yield it with its first line of output; then kill it.

    `within` are words in front of the command, such as those of `pid_namespaces.alone`.
    """
    with subprocess.Popen(
        [*within, of, *arguments],
        env={**inherited(), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, line
        finally:
            process.kill()


@contextlib.contextmanager
def program(environment: dict[str, str], *arguments: str, of: Path = PROGRAM) -> Iterator[subprocess.Popen[str]]:
    """Run the GPU program, or the program `of`; yield it once it has printed its first line ("ready"), then kill it."""
    with python(environment, str(of), *arguments) as (process, line):
        assert line == "ready\n"
        yield process


def metered(answer: pb.RegisterShareResponse) -> dict[str, str]:
    """Return the environment that a program needs to run in a share."""
    return {**answer.environment, "LD_PRELOAD": answer.hook_path}


def usage(agent: RunningAgent, name: str) -> pb.Usage:
    """Return the usage of a share on its first device."""
    return agent.stub.ListShares(pb.ListSharesRequest(shares=[name])).shares[0].devices[0].usage
