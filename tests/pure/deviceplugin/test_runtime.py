"""Which nodes are served: those where a share surely reaches its container. Others are told what they lack."""

from __future__ import annotations

from typing import Any

import pytest

from sharepod.deviceplugin.runtime import Runtime, read_runtime

KUBELET = "1.31 or later is needed: upgrade the node"
CDI = "no CDI by default: use containerd 2.0 or CRI-O 1.23 or later, or turn CDI on"


@pytest.mark.parametrize(
    ("kubelet", "container_runtime"),
    [
        ("v1.36.2", "containerd://2.1.9+unknown"),
        ("v1.31.0", "containerd://2.0.0-rc.3"),
        ("v1.32.4-gke.1348000", "containerd://v2.1.1"),
        ("v1.31.1", "cri-o://1.31.0"),
    ],
)
def test_where_cdi_is_on_by_default_nothing_is_lacking(kubelet: str, container_runtime: str) -> None:
    assert Runtime(kubelet, container_runtime).lack(cdi_is_on=False) is None


@pytest.mark.parametrize(
    "container_runtime",
    ["containerd://1.7.28", "containerd://1.6.20~ds1", "docker://29.0.0", "containerd://Unknown", ""],
)
def test_a_runtime_without_cdi_by_default_is_not_served_unless_the_operator_says_that_it_is_on(
    container_runtime: str,
) -> None:
    runtime = Runtime("v1.34.4+k3s1", container_runtime)
    cause = runtime.lack(cdi_is_on=False)
    assert cause is not None
    assert container_runtime in cause
    assert CDI in cause
    assert "runtime_cdi to on" in cause
    assert runtime.lack(cdi_is_on=True) is None


@pytest.mark.parametrize("kubelet", ["v1.30.14", "v1.20.2", "", "unknown"])
def test_an_older_kubelet_is_not_served_whatever_its_runtime_has(kubelet: str) -> None:
    cause = Runtime(kubelet, "containerd://2.1.9").lack(cdi_is_on=True)
    assert cause is not None
    assert kubelet in cause
    assert KUBELET in cause


@pytest.mark.parametrize("node", [{}, {"status": None}, {"status": []}, {"status": {"nodeInfo": "x"}}])
def test_a_node_that_tells_nothing_is_none(node: dict[str, Any]) -> None:
    assert read_runtime(node) is None


def test_a_node_is_read() -> None:
    info = {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.9", "osImage": "x"}
    assert read_runtime({"status": {"nodeInfo": info}}) == Runtime("v1.36.2", "containerd://2.1.9")
    assert read_runtime({"status": {"nodeInfo": {}}}) == Runtime("", "")
