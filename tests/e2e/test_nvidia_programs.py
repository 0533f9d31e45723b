"""Test NVIDIA's own programs on a laid-out simulated driver; they need neither a cluster nor our environment."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rig.gpu import LIBRARIES, MakeSimgpu, SimulatedGpu
from sharepod.simgpu.truth import Truth

WHOLE, CUT = "2xH200,1xT4", "1xA10,1xH100:3g.40gb+4g.40gb,1xA100:1g.10gb"
VERSION = "580.65.06"


def lay_out(gpu: SimulatedGpu, root: Path) -> None:
    subprocess.run([sys.executable, "-m", "sharepod.simgpu.driver_root", root], env=gpu.env, check=True)


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_function_that_nvidias_bindings_call_is_exported(nvidia_folder: Path) -> None:
    def names(kind: str, *files: Path) -> set[str]:
        lines = run("nm", "-D", *files).splitlines()
        return {line.split()[-1] for line in lines if line.split()[-2] in kind and line.split()[-1].startswith("nvml")}

    called = names("U", nvidia_folder / "nvml-list")
    assert len(called) > 400
    assert called - names("TW", LIBRARIES / "libnvidia-ml.so.1") == set()


@pytest.mark.parametrize("devices", [WHOLE, CUT])
def test_nvidias_bindings_tell_what_is_true(
    nvidia_folder: Path, make_simgpu: MakeSimgpu, tmp_path: Path, devices: str
) -> None:
    gpu = make_simgpu(devices)
    lay_out(gpu, tmp_path)
    [libraries] = (tmp_path / "usr/lib").iterdir()
    told = json.loads(run(nvidia_folder / "nvml-list", LD_LIBRARY_PATH=str(libraries)))
    assert told["driver"] == VERSION
    with Truth(gpu.state) as truth:
        true = truth.devices()
    seen = []
    for found in told["gpus"]:
        seen.append((found["uuid"], found["memory_bytes"]))
        seen += [(part["uuid"], part["memory_mib"] << 20) for part in found["instances"] or ()]
    assert seen == [(device.uuid, device.memory_total_bytes) for device in true]
    assert [found["minor"] for found in told["gpus"]] == [0, 1, 2]
    assert [found["brand"] for found in told["gpus"]] == [14] * 3
    if devices == WHOLE:
        assert [found["name"] for found in told["gpus"]] == ["NVIDIA H200", "NVIDIA H200", "Tesla T4"]
        assert [(found["power_limit_mw"], found["active_links"]) for found in told["gpus"]] == [
            *[(700_000, 18)] * 2,
            (70_000, 0),
        ]
        return
    places = [(part["profile"], part["start"], part["size"], part["sms"]) for part in told["gpus"][1]["instances"]]
    assert places == [(9, 4, 4, 60), (5, 0, 4, 64)]
    assert [part["sms"] for part in told["gpus"][2]["instances"]] == [14]


def generate(nvidia_folder: Path, root: Path) -> dict[str, Any]:
    """Return the CDI specification for a driver's root; with MIG instances, the root's /proc/driver is mounted."""
    command = [nvidia_folder / "nvidia-ctk", "cdi", "generate", f"--driver-root={root}", "--format=json"]
    if (root / "proc/driver").is_dir():
        bind = 'mount --bind "$0/proc/driver" /proc/driver && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", bind, root, *command]
    found: dict[str, Any] = json.loads(run(*command))
    return found


def numbers(device: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the device nodes in the container with their major and minor numbers."""
    nodes = device["containerEdits"]["deviceNodes"]
    return {node["path"]: (node["major"], node.get("minor", 0)) for node in nodes}


@pytest.mark.parametrize("devices", [WHOLE, CUT])
def test_the_specification_of_nvidia_ctk_has_each_gpu_and_instance(
    nvidia_folder: Path, make_simgpu: MakeSimgpu, tmp_path: Path, devices: str
) -> None:
    gpu = make_simgpu(devices)
    lay_out(gpu, tmp_path)
    made = generate(nvidia_folder, tmp_path)
    found = {device["name"]: numbers(device) for device in made["devices"]}
    with Truth(gpu.state) as truth:
        true = truth.devices()
    cut = {1, 4} if devices == CUT else set()
    assert {name for name in found if "-" in name} == {device.uuid for device in true if device.index not in cut}
    if devices == WHOLE:
        assert found.keys() - {device.uuid for device in true} == {"0", "1", "2", "all"}
        assert found["1"] == found[true[1].uuid] == {"/dev/nvidia1": (195, 1)}
        assert found["all"] == {f"/dev/nvidia{n}": (195, n) for n in range(3)}
    else:
        assert found.keys() - {device.uuid for device in true} == {"0", "1:0", "1:1", "2:0", "all"}
        caps = {f"/dev/nvidia-caps/nvidia-cap{minor}": (236, minor) for minor in (156, 157)}
        assert found["1:1"] == found[true[3].uuid] == {"/dev/nvidia1": (195, 1), **caps}
    edits = made["containerEdits"]
    assert {node["path"] for node in edits["deviceNodes"]} == {
        *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
    }
    mounted = {Path(mount["containerPath"]).name for mount in edits["mounts"]}
    assert mounted == {f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}", "nvidia-smi"}
