"""Test that the cluster accepts every way to install that daemonset/README.md names, and that each starts.

On a node without an NVIDIA driver, as here, the node's pod is ready and waits, and the node says so. The other tests
show what it does with simulated devices.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from kubectl import ClusterError, Kubectl, wait_until
from leftovers import leftovers
from pages import follow
from programs import Programs
from sharepod_cluster import OURS
from sharepod_image import sharepod_image

from rig import REPO_ROOT

PAGE = REPO_ROOT / "daemonset" / "README.md"
NAMED = re.findall(r"^\| `(daemonset/[^`]*)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
WITH_DRIVER = [place for place in NAMED if place == "daemonset/" or ("overlays" in place and "simulated" not in place)]
SHOWN_ELSEWHERE = {
    "daemonset/overlays/simulated": "test_sharepod.py",
    "daemonset/policy": "test_policy.py",
    "daemonset/compatibility": "test_compatibility.py",
    "daemonset/gates": "test_scheduler_places.py",
    "daemonset/kueue": "test_kueue.py",
    "daemonset/monitoring": "test_monitoring.py",
}
NO_DRIVER = "no NVIDIA driver on this node"
DEPLOYED = "nvidia.com/gpu.deploy.client"
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "runc",
}


@pytest.fixture(scope="module")
def bare(programs: Programs) -> Iterator[Kubectl]:
    """Start a cluster with SharePod's image and a RuntimeClass like that of NVIDIA's operator."""
    with Cluster(programs) as cluster:
        namespaces = cluster.node.namespaces()
        cluster.import_archive(sharepod_image())
        cluster.kubectl.apply_objects(RUNTIME_CLASS)
        yield cluster.kubectl
    assert leftovers(cluster.node, namespaces) == []


def test_each_way_to_install_is_shown_by_a_test() -> None:
    assert set(NAMED) == {*WITH_DRIVER, *SHOWN_ELSEWHERE}
    for name in SHOWN_ELSEWHERE.values():
        assert Path(__file__).with_name(name).exists()


@pytest.mark.parametrize("place", WITH_DRIVER)
def test_a_way_to_install_is_taken_and_a_node_without_a_driver_holds_up_no_rollout(
    bare: Kubectl, tmp_path: Path, place: str
) -> None:
    rollout = ("rollout", "status", f"--namespace={OURS}", "daemonset/sharepod", "--timeout=120s")
    try:
        follow(bare, tmp_path, f"kubectl apply -k {place}")
        bare(*rollout, timeout_seconds=130)
        for container in ("agent", "device-plugin"):
            wait_until(f"{container} says what it waits for", lambda name=container: NO_DRIVER in said(bare, name))
        wait_until(
            "the node says it", lambda: NO_DRIVER in bare("get", "events", "--field-selector=reason=SharePodNodeWaits")
        )
        bare("rollout", "restart", f"--namespace={OURS}", "daemonset/sharepod")
        bare(*rollout, timeout_seconds=130)
        assert restarts(bare) == {"0"}
        check_a_driver_upgrade(bare)
    finally:
        bare("delete", "-k", str(REPO_ROOT / place), "--ignore-not-found", timeout_seconds=120)
        left = ("get", "pods", f"--namespace={OURS}", "--output=name")
        wait_until("the installation is gone", lambda: bare(*left) == "")


def check_a_driver_upgrade(kubectl: Kubectl) -> None:
    """Do to the node's label what NVIDIA's operator does before and after it unloads the driver."""
    node = kubectl("get", "nodes", "--output=name").strip()
    pods = ("get", "pods", f"--namespace={OURS}", "--selector=app.kubernetes.io/component=node", "--output=name")
    kubectl("label", node, f"{DEPLOYED}=paused-for-driver-upgrade")
    wait_until("the pod has left the node", lambda: kubectl(*pods) == "")
    kubectl("label", "--overwrite", node, f"{DEPLOYED}=true")
    wait_until("the pod is there again", lambda: kubectl(*pods) != "")
    kubectl("label", node, f"{DEPLOYED}-")


def said(kubectl: Kubectl, container: str) -> str:
    chosen = (f"--namespace={OURS}", "--selector=app.kubernetes.io/component=node", f"--container={container}")
    try:
        return kubectl("logs", *chosen)
    except ClusterError:
        return ""


def restarts(kubectl: Kubectl) -> set[str]:
    """Return how often the containers of the nodes' pods were started again, without those of pods that end."""
    path = "{.items[*].status.containerStatuses[*].restartCount}"
    return set(kubectl("get", "pods", f"--namespace={OURS}", f"--output=jsonpath={path}").split())
