"""Test which nodes are served: those where a share surely reaches its container. Others are told what they lack."""

from typing import Any

import pytest

from sharepod.deviceplugin.cdi.runtime import Runtime, read_runtime

KUBELET = "1.31 or later is needed: upgrade the node"
CDI = "no CDI by default: use containerd 2.0 or CRI-O 1.23 or later, or turn CDI on"


@pytest.mark.parametrize(
    ("kubelet", "container_runtime", "lack", "lack_with_cdi_on"),
    [
        ("v1.36.2", "containerd://2.1.9+unknown", "", ""),
        ("v1.31.0", "containerd://2.0.0-rc.3", "", ""),
        ("v1.32.4-gke.1348000", "containerd://v2.1.1", "", ""),
        ("v1.31.1", "cri-o://1.31.0", "", ""),
        ("v1.34.4+k3s1", "containerd://1.7.28", CDI, ""),
        ("v1.34.4+k3s1", "containerd://1.6.20~ds1", CDI, ""),
        ("v1.34.4+k3s1", "docker://29.0.0", CDI, ""),
        ("v1.34.4+k3s1", "containerd://Unknown", CDI, ""),
        ("v1.34.4+k3s1", "", CDI, ""),
        ("v1.30.14", "containerd://2.1.9", KUBELET, KUBELET),
        ("v1.20.2", "containerd://2.1.9", KUBELET, KUBELET),
        ("", "containerd://2.1.9", KUBELET, KUBELET),
        ("unknown", "containerd://2.1.9", KUBELET, KUBELET),
    ],
)
def test_a_node_is_served_where_kubelet_is_new_enough_and_cdi_is_on(
    kubelet: str, container_runtime: str, lack: str, lack_with_cdi_on: str
) -> None:
    runtime = Runtime(kubelet, container_runtime)
    for cdi_is_on, expected in ((False, lack), (True, lack_with_cdi_on)):
        cause = runtime.lack(cdi_is_on=cdi_is_on)
        assert (cause is None) == (not expected)
        assert expected in (cause or "")
        assert cause is None or (kubelet if expected == KUBELET else container_runtime) in cause
        assert expected != CDI or "runtime_cdi to on" in (cause or "")


@pytest.mark.parametrize("node", [{}, {"status": []}, {"status": {"nodeInfo": "x"}}])
def test_a_node_that_tells_nothing_is_none(node: dict[str, Any]) -> None:
    assert read_runtime(node) is None
