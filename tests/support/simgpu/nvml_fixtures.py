"""One machine with simulated devices, a pynvml client of it and programs that use its devices."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from nvml_programs import HERE, Ask, Use, talking

from rig.gpu import MakeSimgpu, SimulatedGpu

MIB = 1 << 20


@pytest.fixture
def machine(make_simgpu: MakeSimgpu) -> SimulatedGpu:
    return make_simgpu("2xH200,1xA10")


@pytest.fixture
def ask(machine: SimulatedGpu) -> Iterator[Ask]:
    """Ask a pynvml process one expression at a time."""
    with talking([sys.executable, str(HERE / "ask_nvml.py")], machine.env) as process:

        def ask_one(expression: str) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(expression + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask_one


@pytest.fixture
def use(machine: SimulatedGpu) -> Iterator[Use]:
    """Start programs that use a device: `use(device, busy_us, idle_us, size)`; they end with the test.

    Further arguments go into the program's environment.
    """
    with ExitStack() as running:

        def start(
            device: int, busy_us: int, idle_us: int = 0, size: int = MIB, **environment: str
        ) -> "subprocess.Popen[str]":
            numbers = [str(number) for number in (device, busy_us, idle_us, size)]
            command = [sys.executable, str(HERE / "device_user.py"), *numbers]
            process = running.enter_context(talking(command, machine.env | environment))
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process

        yield start
