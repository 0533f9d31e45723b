"""Test that settings come from the environment, and missing ones from a file beside the library."""

import shutil
from pathlib import Path

import pytest
from simgpu_fixtures import ANSWER, Gpu, NewGpu

from rig.gpu import LIBRARIES


@pytest.fixture
def copied(new_gpu: NewGpu, tmp_path: Path) -> Gpu:
    """Return a machine with links to copies of the libraries for its programs; beside the links is a settings file."""
    gpu = new_gpu("", LD_LIBRARY_PATH=str(tmp_path), SIMGPU_STATE="", SIMGPU_LOG_KERNELS="")
    (tmp_path / "copies").mkdir()  # the file lies where the loader finds the library, not where the link leads
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(LIBRARIES / name, tmp_path / "copies" / name)
        (tmp_path / name).symlink_to(f"copies/{name}")
    lines = ["# SIMGPU_SEED=9", f"SIMGPU_STATE={gpu.simulated.state}", "SIMGPU_DEVICES=2xT4", "SIMGPU_MEMORY_MIB=0x400"]
    lines += ["SIMGPU_DEVICES=1xA10", "SIMGPU_DRIVER_VERSION=12080"]
    (tmp_path / "simgpu.conf").write_bytes("\r\n".join(lines).encode())  # the last line has no line end
    return gpu


def test_both_libraries_read_the_file_and_its_first_line_with_a_name_counts(copied: Gpu) -> None:
    lines = copied.play("""
        version = c_int()
        ok(cuda.cuInit(0))
        ok(cuda.cuDriverGetVersion(byref(version)))
        print(version.value)
        """)
    assert lines == ["12080"]
    program = copied.ready(f"{ANSWER}\nnvmlInit()\nanswer()")
    assert program.ask("nvmlDeviceGetCount()") == 2
    assert program.ask("nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(1))")[4:22] == "53474750-0000-0000"
    with copied.truth() as truth:  # the first program has made the state file that the settings name
        assert [(device.name, device.memory_total_bytes) for device in truth.devices()] == [("Tesla T4", 1 << 30)] * 2


def test_the_environment_comes_first(copied: Gpu) -> None:
    assert copied.play("ok(cuda.cuInit(0))", SIMGPU_DEVICES="1xL4", SIMGPU_MEMORY_MIB="2048") == []
    with copied.truth() as truth:
        assert [(device.name, device.memory_total_bytes) for device in truth.devices()] == [("NVIDIA L4", 2 << 30)]
