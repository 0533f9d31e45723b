"""Test that kubelet's checkpoint is read as kubelet writes it, and that any other shape counts as absent."""

import json
from pathlib import Path
from typing import Any

import pytest

from sharepod.deviceplugin.v1beta1 import kubelet_checkpoint
from sharepod.deviceplugin.v1beta1.kubelet_checkpoint import NAME, Recorded, read_checkpoint

OURS = "sharepod.io/gpu"


def entry(container: str, ids: Any, resource: str = OURS) -> dict[str, Any]:
    answer = {"AllocResp": "Cgs="}
    return {"PodUID": "uid-a", "ContainerName": container, "ResourceName": resource, "DeviceIDs": ids, **answer}


def written(directory: Path, content: object) -> tuple[Recorded, ...]:
    (directory / NAME).write_text(content if isinstance(content, str) else json.dumps(content))
    return read_checkpoint(directory, OURS)


def whole(*entries: Any) -> dict[str, Any]:
    devices = {OURS: ["u0001", "u0002", "u0003"]}
    return {"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": devices}, "Checksum": 7}


def test_init_containers_are_there_and_ids_of_all_numa_nodes_are_one_set(tmp_path: Path) -> None:
    warm = entry("warm", {"-1": ["u0001"], "0": ["u0002"]})
    nvidias = entry("main", {"-1": ["GPU-1"]}, "nvidia.com/gpu")
    assert written(tmp_path, whole(warm, nvidias)) == (Recorded("uid-a", "warm", frozenset({"u0001", "u0002"})),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "7", "[" * 100_000,
        {"Data": None}, {"Data": {"PodDeviceEntries": None}}, {"Data": {"PodDeviceEntries": {"PodUID": "a"}}},
        whole(None, 7, [], {}, {"ResourceName": 7}),
    ],
    ids=lambda content: str(content)[:40],
)  # fmt: skip
def test_what_is_no_checkpoint_says_nothing(tmp_path: Path, content: object) -> None:
    assert written(tmp_path, content) == ()
    for ids in (None, ["u0001"], {"0": "u0001"}, {"0": None}, {"0": [7, None]}):
        assert [item.units for item in written(tmp_path, whole(entry("warm", ids)))] == [frozenset()]


def test_a_file_that_is_too_large_or_missing_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_checkpoint(tmp_path, OURS) == ()
    content = json.dumps(whole(entry("warm", {"-1": ["u0001"]})))
    monkeypatch.setattr(kubelet_checkpoint, "SIZE_MAX", len(content))
    assert len(written(tmp_path, content)) == 1
    assert written(tmp_path, content + " ") == ()
