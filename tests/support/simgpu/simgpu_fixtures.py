"""Programs on the simulated GPU: text in, finished process out."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rig.gpu import SimulatedGpu
from rig.script import script

HERE = Path(__file__).parent
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program whose text follows `from rig.driver import *`; what still runs at the end is killed.

    `within` are words before the command, such as those of `pid_namespaces.alone`.
    """
    started: list[subprocess.Popen[str]] = []

    def begin(gpu: SimulatedGpu, text: str, *arguments: str, within: Sequence[str] = ()) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*within, *script(text), *arguments],
            env=gpu.env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run(start: Start) -> Callable[..., str]:
    """Run a program to its end and return what it printed; it must succeed."""

    def complete(gpu: SimulatedGpu, text: str, *arguments: str) -> str:
        process = start(gpu, text, *arguments)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return output

    return complete
