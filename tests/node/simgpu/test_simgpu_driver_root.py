"""Test the command that lays out the simulated driver like an installed driver."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rig.gpu import MakeSimgpu, SimulatedGpu

CUT = "1xA10,1xH100:3g.40gb+4g.40gb"


def lay_out(gpu: SimulatedGpu, *arguments: object, within: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*within, sys.executable, "-m", "sharepod.simgpu.driver_root", *map(str, arguments)]
    return subprocess.run(command, env=gpu.env, capture_output=True, text=True, check=False)


def libraries(root: Path) -> Path:
    [folder] = (root / "usr/lib").iterdir()
    return folder


def test_the_names_of_the_libraries_lead_to_those_with_the_drivers_version(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    gpu = make_simgpu("2xL4", SIMGPU_DRIVER_RELEASE="615", SIMGPU_SEED="7")
    for _ in range(2):  # the second layout overwrites the first
        done = lay_out(gpu, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"driver 615.65.06 with 2 GPUs in {tmp_path}")
    for name in ("libcuda.so", "libnvidia-ml.so"):
        assert (libraries(tmp_path) / name).resolve() == libraries(tmp_path) / f"{name}.615.65.06"
    assert not (tmp_path / "proc").exists()
    # The file beside the libraries is enough: a program without an environment sees the same GPUs.
    text = """
import ctypes, sys
cuda, raw = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(16)
print(cuda.cuInit(0), cuda.cuDeviceGetUuid_v2(raw, 1), raw.raw.hex())
"""
    command = [sys.executable, "-c", text, libraries(tmp_path) / "libcuda.so.1"]
    found = subprocess.run(command, env={}, capture_output=True, text=True, check=True).stdout
    assert found == "0 0 53474750000000078000000000000001\n"
    listed = subprocess.run([tmp_path / "usr/bin/nvidia-smi"], capture_output=True, text=True, check=True).stdout
    assert listed.splitlines()[1] == "GPU 1: NVIDIA L4 (UUID: GPU-53474750-0000-0007-8000-000000000001)"


def test_gpus_that_are_cut_have_capabilities_with_the_drivers_minor_numbers(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    assert lay_out(make_simgpu(CUT), tmp_path).returncode == 0
    minors = (tmp_path / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert minors == [
        *("config 1", "monitor 2", "gpu1/gi1/access 147", "gpu1/gi1/ci0/access 148"),
        *("gpu1/gi2/access 156", "gpu1/gi2/ci0/access 157"),
    ]
    told = tmp_path / "proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access"
    assert told.read_text().splitlines()[0] == "DeviceFileMinor: 157"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make device nodes")
def test_root_makes_the_nodes_and_whoever_opens_them_is_told_that_there_is_no_driver(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    gpu = make_simgpu(CUT, SIMGPU_DEVICE_NODES=str(tmp_path / "dev"))
    assert lay_out(gpu, tmp_path).returncode == 0
    numbers = {}
    for path in (tmp_path / "dev").rglob("nvidia*"):
        if not path.is_dir():
            info = path.stat()
            assert stat.S_ISCHR(info.st_mode)
            assert stat.S_IMODE(info.st_mode) == 0o666
            numbers[path.name] = (os.major(info.st_rdev), os.minor(info.st_rdev))
    assert numbers["nvidia1"] == (195, 1)
    assert numbers["nvidiactl"] == (195, 255)
    assert numbers["nvidia-cap157"] == (236, 157)
    text = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    command = [sys.executable, "-c", text]
    assert subprocess.run(command, env=gpu.env, capture_output=True, text=True, check=True).stdout == "0\n"
    (tmp_path / "dev/nvidiactl").unlink()
    assert subprocess.run(command, env=gpu.env, capture_output=True, text=True, check=True).stdout == "100\n"


def test_without_the_right_to_make_nodes_all_else_is_there(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    within = ("setpriv", "--bounding-set=-mknod", "--inh-caps=-mknod") if os.geteuid() == 0 else ()
    done = lay_out(make_simgpu(), tmp_path, within=within)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(", without device nodes: only root may make them\n")
    assert (libraries(tmp_path) / "simgpu.conf").is_file()


def test_what_goes_wrong_is_one_line(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    done = lay_out(make_simgpu("1xNOTHING"), tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "driver_root: NVML does not start (code 2): see SIMGPU_DEVICES and SIMGPU_STATE"
    ]
    (tmp_path / "usr").write_text("a file in the way")
    done = lay_out(make_simgpu(), tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "usr" in done.stderr
    assert lay_out(make_simgpu()).returncode == 2
    assert "nvidia-ctk cdi generate --driver-root=DIR" in lay_out(make_simgpu(), "--help").stdout
