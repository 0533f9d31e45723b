"""Fixtures for a machine with simulated devices: a pynvml client, and programs that use the devices."""

from collections.abc import Callable
from typing import Any

import pytest
from simgpu_fixtures import ANSWER, MIB, Gpu, NewGpu, Program

Ask = Callable[[str], Any]
Use = Callable[..., Program]

USER = """
    device, busy_us, idle_us, size = (int(word) for word in sys.argv[1:])
    f = kernel(start(device), f"work_{busy_us}us")
    allocate(size)
    told = False
    while True:
        for _ in range(1 if idle_us else 4):
            ok(launch(f))
        ok(cuda.cuCtxSynchronize())
        if not told:
            print("ready", flush=True)
            told = True
        time.sleep(idle_us / 1e6)
    """


@pytest.fixture
def machine(new_gpu: NewGpu) -> Gpu:
    return new_gpu("2xH200,1xA10")


@pytest.fixture
def ask(machine: Gpu) -> Ask:
    """Ask a pynvml process one expression at a time; `gpu(n)` in it is the handle of device n."""
    return machine.ready(f"{ANSWER}\nnvmlInit()\ngpu = nvmlDeviceGetHandleByIndex\nanswer()").ask


@pytest.fixture
def use(machine: Gpu) -> Use:
    """Start programs that use a device until the test ends: `use(device, busy_us, idle_us, size)`.

    Further arguments go into the program's environment.
    """

    def start(device: int, busy_us: int, idle_us: int = 0, size: int = MIB, **environment: str) -> Program:
        return machine.ready(USER, device, busy_us, idle_us, size, **environment)

    return start
