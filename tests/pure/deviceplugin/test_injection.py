"""Test what a container gets injected, and what the CDI file of its share says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sharepod.deviceplugin.cdi.files import CdiDirectory, name_of, nvidia_edits
from sharepod.deviceplugin.cdi.injection import (
    HOOK_PATH,
    PRELOAD_PATH,
    PRELOAD_TEXT,
    SHARE_PATH,
    ContainerEdits,
    Mount,
    Place,
    Simulated,
    edits_of,
)
from sharepod.deviceplugin.errors import PluginError

PLACE = Place("/run/sharepod/shares", "/run/sharepod/hook/libsharepod-1.so", "/var/lib/sharepod/ld.so.preload")


def test_the_agents_files_are_read_only_and_the_slots_alone_are_not() -> None:
    edits = edits_of(PLACE, "abc", ("GPU-1",))
    writable = [mount for mount in edits.mounts if not mount.read_only]
    assert writable == [Mount("/run/sharepod/shares/abc/slots", f"{SHARE_PATH}/slots", read_only=False)]
    places = [mount.container for mount in edits.mounts]
    assert places.index(SHARE_PATH) < places.index(f"{SHARE_PATH}/slots")  # the second lies on top of the first
    assert Mount(PLACE.hook, HOOK_PATH) in edits.mounts
    assert edits.variables == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}


def test_the_hook_comes_by_the_preload_file_unless_the_operator_wants_a_variable() -> None:
    assert Mount(PLACE.preload_file, PRELOAD_PATH) in edits_of(PLACE, "abc", ()).mounts
    assert f"{HOOK_PATH}\n" == PRELOAD_TEXT
    other = edits_of(replace(PLACE, injection="environment"), "abc", ())
    assert other.variables == {"LD_PRELOAD": HOOK_PATH}
    assert PRELOAD_PATH not in [mount.container for mount in other.mounts]


def test_a_closed_node_and_simulated_devices_tell_the_program() -> None:
    simulated = Simulated("2xH200", "/run/gpus/state", "/var/lib/sharepod/simgpu")
    edits = edits_of(replace(PLACE, closed=True, simulated=simulated), "abc", ("GPU-1", "GPU-2"))
    assert edits.variables == {
        "SHAREPOD_POLICY": "closed",
        "SIMGPU_DEVICES": "2xH200",
        "SIMGPU_STATE": "/run/sharepod/simgpu-state/state",
        "LD_LIBRARY_PATH": "/run/sharepod/simgpu",
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    }
    assert Mount("/run/gpus", "/run/sharepod/simgpu-state", read_only=False) in edits.mounts


def test_a_cdi_file_says_the_edits_and_goes_with_its_share(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path / "cdi")
    directory.write("abc", edits_of(PLACE, "abc", ("GPU-1",)))
    directory.write("def", ContainerEdits())
    (file,) = (path for path in (tmp_path / "cdi").iterdir() if "abc" in path.name)
    content = json.loads(file.read_text())
    assert f"{content['kind']}={content['devices'][0]['name']}" == name_of("abc")
    edits = content["devices"][0]["containerEdits"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=GPU-1"]
    assert edits["mounts"][0] == {
        "hostPath": "/run/sharepod/shares/abc",
        "containerPath": SHARE_PATH,
        "options": ["ro", "nosuid", "nodev", "bind"],
    }
    assert edits["mounts"][1]["options"][0] == "rw"
    directory.remove("abc")
    directory.remove("abc")
    (tmp_path / "cdi" / "sharepod.io-share-xyz.json.tmp").write_text("{")
    (tmp_path / "cdi" / "other.json").write_text("{}")
    directory.remove_others({"def"})
    assert sorted(path.name for path in (tmp_path / "cdi").iterdir()) == ["other.json", "sharepod.io-share-def.json"]


NVIDIA = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
    },
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "GPU-b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}},
    ],
}


def test_the_devices_of_nvidias_own_files_are_copied(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("{")
    (tmp_path / "nvidia.yaml").write_text(yaml.safe_dump(NVIDIA))
    found = nvidia_edits([("GPU-a", 0), ("GPU-b", 1)], [tmp_path])
    CdiDirectory(tmp_path / "out").write("abc", edits_of(PLACE, "abc", ()), found)
    (file,) = (tmp_path / "out").iterdir()
    edits = json.loads(file.read_text())["devices"][0]["containerEdits"]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]
    assert [mount["containerPath"] for mount in edits["mounts"]][:2] == ["/lib/libcuda.so.1", SHARE_PATH]
    assert edits["hooks"] == NVIDIA["containerEdits"]["hooks"]  # type: ignore[index]
    with pytest.raises(PluginError, match=r"no CDI file of kind nvidia.com/gpu in .* has device GPU-c: run"):
        nvidia_edits([("GPU-c", 2)], [tmp_path])
