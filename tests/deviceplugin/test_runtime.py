"""Where devices may be picked when containers start: only where a CDI name surely reaches the container."""

from __future__ import annotations

from typing import Any

import pytest

from sharepod.deviceplugin.runtime import Runtime, read_runtime


@pytest.mark.parametrize(
    ("kubelet", "container_runtime", "has_cdi"),
    [
        ("v1.36.2", "containerd://2.1.9+unknown", True),
        ("v1.29.0", "containerd://2.0.0-rc.3", True),
        ("v1.30.4-gke.1348000", "containerd://v2.1.1", True),
        ("v1.31.1", "cri-o://1.31.0", True),
        ("v1.36.2", "containerd://1.7.28", False),  # off unless its configuration says enable_cdi
        ("v1.30.0+k3s1", "containerd://1.7.17-k3s1", False),
        ("v1.36.2", "containerd://1.6.20~ds1", False),
        ("v1.28.15", "containerd://2.1.9", False),
        ("v1.20.2", "containerd://1.6.20~ds1", False),
        ("v1.36.2", "docker://29.0.0", False),
        ("v1.36.2", "containerd://Unknown", False),
        ("v1.36.2", "", False),
        ("", "containerd://2.1.9", False),
    ],
)
def test_a_runtime_has_cdi_by_default_or_is_taken_to_have_none(
    kubelet: str, container_runtime: str, has_cdi: bool
) -> None:
    assert Runtime(kubelet, container_runtime).has_cdi is has_cdi


@pytest.mark.parametrize("node", [{}, {"status": None}, {"status": []}, {"status": {"nodeInfo": "x"}}])
def test_a_node_that_tells_nothing_is_none(node: dict[str, Any]) -> None:
    assert read_runtime(node) is None


def test_a_node_is_read() -> None:
    info = {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.9", "osImage": "x"}
    assert read_runtime({"status": {"nodeInfo": info}}) == Runtime("v1.36.2", "containerd://2.1.9")
    assert read_runtime({"status": {"nodeInfo": {}}}) == Runtime("", "")
