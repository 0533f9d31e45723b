"""The driver's memory limits per cgroup, as pynvml sets and reads them, and as programs in a cgroup meet them."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from nvml_programs import HERE, Ask, Use

from rig.containers import Container, container
from rig.gpu import MakeSimgpu, SimulatedGpu

MIB = 1 << 20
ALL = 2**64 - 1


@pytest.fixture
def machine(make_simgpu: MakeSimgpu) -> SimulatedGpu:
    return make_simgpu("2xH200", SIMGPU_DRIVER_RELEASE="615", SIMGPU_CONTEXT_MIB="8")


@pytest.fixture
def box() -> Iterator[Container]:
    with container() as made:
        yield made


def put(ask: Ask, where: object, hard_bytes: int, device: str = "gpu(0)", soft_bytes: int = 0) -> Any:
    """Set a limit; return None, or the name of the error."""
    limits = f"c_nvmlSetMemoryLimits_v1_t({str(where).encode()!r}, {soft_bytes}, {hard_bytes})"
    return ask(f"nvmlDeviceSetMemoryLimits_v1({device}, {limits})")


def got(ask: Ask, where: object, device: str = "gpu(0)") -> Any:
    """Return the soft limit, the hard one and what is used; or the name of the error."""
    read = f"[nvmlDeviceGetMemoryLimits_v1({device}, l), l.softLimit, l.hardLimit, l.currentUsed][1:]"
    return ask(f"(lambda l: {read})(c_nvmlGetMemoryLimits_v1_t({str(where).encode()!r}))")


def starts(machine: SimulatedGpu, where: Container, size: int, device: int = 0) -> bool:
    """Tell whether a program in the cgroup gets so much memory, beside its context."""
    with where.inside():
        command = [sys.executable, str(HERE / "device_user.py"), str(device), "100", "0", str(size)]
        done = subprocess.run(command, env=machine.env, input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or done.stderr.endswith(": 2\n"), done.stderr
    return done.returncode == 0


def test_a_limit_holds_for_the_programs_of_its_cgroup_together(
    machine: SimulatedGpu, ask: Ask, use: Use, box: Container
) -> None:
    assert got(ask, box.directory) == "NVMLError_NotFound"
    with box.inside():
        use(0, 100, size=100 * MIB)
    assert put(ask, box.directory, 256 * MIB) is None  # what is there already counts
    assert got(ask, box.directory) == [0, 256 * MIB, 108 * MIB]
    assert got(ask, box.directory, "gpu(1)") == "NVMLError_NotFound"
    assert starts(machine, box, 140 * MIB)  # and a context of 8 MiB: all of it
    assert not starts(machine, box, 141 * MIB)
    assert starts(machine, box, 1000 * MIB, device=1)
    use(0, 100, size=1000 * MIB)  # elsewhere
    assert put(ask, box.directory, 110 * MIB) is None
    assert not starts(machine, box, 1)  # no room for a context
    assert put(ask, box.directory, ALL) is None
    assert got(ask, box.directory) == "NVMLError_NotFound"
    assert starts(machine, box, 141 * MIB)


def test_the_nearest_limit_above_a_cgroup_holds(machine: SimulatedGpu, ask: Ask, box: Container) -> None:
    with container("{}", within=box) as inner:
        put(ask, box.directory, 100 * MIB)
        assert starts(machine, inner, 92 * MIB)
        assert not starts(machine, inner, 93 * MIB)
        put(ask, inner.directory, 50 * MIB)
        assert not starts(machine, inner, 43 * MIB)
        assert starts(machine, box, 92 * MIB)


def test_a_limit_goes_with_its_cgroup(ask: Ask) -> None:
    for _ in range(150):  # more than there is room for
        with container() as short:
            assert put(ask, short.directory, MIB) is None
        assert got(ask, short.directory) == "NVMLError_NotFound"


def test_what_is_no_limit_is_refused(ask: Ask, box: Container) -> None:
    assert put(ask, "/nowhere", MIB) == "NVMLError_NotFound"
    assert put(ask, "/tmp", MIB) == "NVMLError_InvalidArgument"
    assert put(ask, box.directory, MIB, soft_bytes=2 * MIB) == "NVMLError_InvalidArgument"
    ask("__import__('os').seteuid(65534)")
    assert put(ask, box.directory, MIB) == "NVMLError_NoPermission"
    assert got(ask, box.directory) == "NVMLError_NotFound"  # everybody may ask


class TestInstances:
    @pytest.fixture
    def machine(self, make_simgpu: MakeSimgpu) -> SimulatedGpu:
        return make_simgpu("1xH100:3g.40gb+4g.40gb", SIMGPU_DRIVER_RELEASE="615")

    def test_they_have_no_limits_nor_has_their_gpu(self, ask: Ask, box: Container) -> None:
        for device in ("gpu(0)", "nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0)"):
            assert put(ask, box.directory, MIB, device) == "NVMLError_NotSupported"


class TestAnOlderDriver:
    @pytest.fixture
    def machine(self, make_simgpu: MakeSimgpu) -> SimulatedGpu:
        return make_simgpu()

    def test_it_has_no_limits(self, ask: Ask, box: Container) -> None:
        assert ask("nvmlSystemGetDriverVersion()") == "580.00.00"
        assert put(ask, box.directory, MIB) == "NVMLError_NotSupported"
        assert got(ask, box.directory) == "NVMLError_NotSupported"
