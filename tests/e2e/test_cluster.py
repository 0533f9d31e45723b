"""The e2e cluster is a real one: it starts pods, answers for them, outlives its kubelet, and leaves nothing behind."""

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from image import Image, debian_root
from kubectl import ClusterError, Kubectl, wait_until
from leftovers import holders, leftovers, paths_below
from node import Node, NodeError
from node_init import WANTED_SETTINGS
from programs import Programs, chosen

pytestmark = pytest.mark.releases
BUSYBOX = "docker.io/library/e2e-busybox:1"
PACKAGES = ("busybox-static", "curl")  # busybox's own wget knows no TLS that an API server still speaks
PLUGINS = "/var/lib/kubelet/device-plugins"


def pod(name: str, script: str, **more: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/busybox", "sh", "-c", script],
        **more.pop("container", {}),
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1, **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def cluster(own_cluster: Cluster) -> Cluster:
    own_cluster.import_image(Image(BUSYBOX, ["/bin/busybox", "sh"], {"GREETING": "hello"}), debian_root(PACKAGES))
    return own_cluster


@pytest.fixture
def sleeper(cluster: Cluster) -> Iterator[str]:
    name = f"sleeper-{secrets.token_hex(4)}"
    cluster.kubectl.apply_objects(pod(name, "echo $GREETING; exec sleep 600"))
    cluster.kubectl.wait_for("condition=Ready", f"pod/{name}")
    yield name
    cluster.kubectl.delete("pod", name, wait=False)


def status_of(kubectl: Kubectl, name: str) -> dict[str, Any]:
    status: dict[str, Any] = kubectl.get("pod", name)["status"]["containerStatuses"][0]
    return status


def test_a_node_is_ready(kubectl: Kubectl) -> None:
    nodes = kubectl("get", "nodes", "--no-headers").splitlines()
    assert any(line.split()[1] == "Ready" for line in nodes)


def test_a_pod_of_a_made_image_runs_is_heard_and_is_entered(cluster: Cluster, sleeper: str) -> None:
    assert cluster.kubectl.logs(sleeper) == "hello\n"
    assert cluster.kubectl.execute(sleeper, "/bin/busybox", "echo", "in here") == "in here\n"
    with pytest.raises(ClusterError, match="exit code 3"):
        cluster.kubectl.execute(sleeper, "/bin/busybox", "sh", "-c", "exit 3")


def test_a_deleted_pod_is_gone(cluster: Cluster) -> None:
    cluster.kubectl.apply_objects(pod("short", "exec sleep 600"))
    cluster.kubectl.wait_for("condition=Ready", "pod/short")
    cluster.kubectl.delete("pod", "short", timeout_seconds=8)
    with pytest.raises(ClusterError, match="not found"):
        cluster.kubectl.get("pod", "short")


def test_a_pod_asks_the_api_server_as_its_service_account(cluster: Cluster) -> None:
    script = """
        cd /var/run/secrets/kubernetes.io/serviceaccount
        exec curl -sS --cacert ca.crt -H "Authorization: Bearer $(/bin/busybox cat token)" \\
            https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/version
    """
    for network in (False, True):
        name = f"asks-{network}".lower()
        cluster.kubectl.apply_objects(pod(name, script, hostNetwork=network, restartPolicy="Never"))
        phase = cluster.kubectl.wait_for_phase(name, "Succeeded", "Failed")
        said = cluster.kubectl.logs(name)
        assert (phase, f'"gitVersion": "{chosen().version}"' in said) == ("Succeeded", True), said
        cluster.kubectl.delete("pod", name, wait=False)


def test_the_kubelets_plugin_socket_can_be_mounted(cluster: Cluster) -> None:
    volume = {"name": "plugins", "hostPath": {"path": PLUGINS, "type": "Directory"}}
    mounted = {"volumeMounts": [{"name": "plugins", "mountPath": PLUGINS}]}
    script = f"test -S {PLUGINS}/kubelet.sock && : > {PLUGINS}/of-a-pod"
    cluster.kubectl.apply_objects(pod("mounts", script, container=mounted, volumes=[volume], restartPolicy="Never"))
    assert cluster.kubectl.wait_for_phase("mounts", "Succeeded", "Failed") == "Succeeded"
    assert (cluster.node.root / PLUGINS.lstrip("/") / "of-a-pod").exists()
    cluster.kubectl.delete("pod", "mounts", wait=False)


def test_manifests_with_a_kustomization_are_applied_as_they_are(cluster: Cluster) -> None:
    cluster.kubectl.apply(Path(__file__).with_name("toy"))
    cluster.kubectl("rollout", "status", "daemonset/toy", "--namespace=toy", "--timeout=150s", timeout_seconds=180)
    cluster.kubectl.delete("namespace", "toy", wait=False)


def test_a_killed_container_is_started_again(cluster: Cluster, sleeper: str) -> None:
    cluster.kill_container(sleeper, "main")
    wait_until("the container's second start", lambda: status_of(cluster.kubectl, sleeper)["restartCount"] == 1)
    cluster.kubectl.wait_for("condition=Ready", f"pod/{sleeper}")


def test_pods_outlive_a_killed_kubelet_and_a_killed_containerd(cluster: Cluster, sleeper: str) -> None:
    socket = cluster.node.root / PLUGINS.lstrip("/") / "kubelet.sock"
    before, made = status_of(cluster.kubectl, sleeper), socket.stat().st_mtime_ns
    for name in ("kubelet", "containerd"):
        cluster.kill(name)
    for name in ("containerd", "kubelet"):
        cluster.start(name)
    wait_until("a new plugin socket", lambda: socket.exists() and socket.stat().st_mtime_ns != made)
    wait_until("the pod answers", lambda: executes(cluster.kubectl, sleeper))
    after = status_of(cluster.kubectl, sleeper)
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], before["restartCount"])


def executes(kubectl: Kubectl, name: str) -> bool:
    try:
        return kubectl.execute(name, "/bin/busybox", "true") == ""
    except ClusterError:
        return False


def test_a_kubelet_that_ends_in_order_comes_back(cluster: Cluster) -> None:
    cluster.restart("kubelet")
    wait_until("the node is ready", cluster.node_is_ready)


def settings() -> dict[str, str]:
    return {
        name: Path("/proc/sys", name).read_text()
        for name in (*WANTED_SETTINGS, "kernel/hostname", "vm/swappiness", "net/ipv4/ip_forward")
    }


def pod_groups_outside() -> set[Path]:
    below = paths_below(Path("/sys/fs/cgroup"))
    return {path for path in below if path.name == "kubepods" and "sharepod-e2e-" not in str(path)}


def test_a_second_cluster_beside_the_first_leaves_nothing_behind(cluster: Cluster, sleeper: str) -> None:
    before, groups = settings(), pod_groups_outside()
    with Cluster(cluster.programs) as second:
        namespaces = second.node.namespaces()
        assert holders(namespaces)
        assert not set(namespaces.values()) & set(cluster.node.namespaces().values())
        second.import_image(Image(BUSYBOX, ["/bin/busybox", "sh"]), debian_root(PACKAGES))
        second.kubectl.apply_objects(pod("left", "exec sleep 600"))
        second.kubectl.wait_for("condition=Ready", "pod/left")
        assert any(path.name == "kubepods" for group in second.node.groups.values() for path in group.iterdir())
        assert pod_groups_outside() == groups
    assert leftovers(second.node, namespaces) == []
    assert settings() == before
    assert executes(cluster.kubectl, sleeper)


HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from node import Node
with Node() as node:
    node.start("sleep", ["sleep", "600"])
    print(node.name, node.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_node_ends_with_whoever_made_it(programs: Programs, number: signal.Signals) -> None:
    folder = str(Path(__file__).parent)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert holder.stdout
    name, pid = holder.stdout.readline().decode().split()
    node = Node()
    node.name, node.pid, node.state = name, int(pid), node.state.with_name(name)
    namespaces = node.namespaces()
    holder.send_signal(number)
    holder.communicate(timeout=60)
    wait_until("nothing left", lambda: leftovers(node, namespaces) == [])


def test_a_component_that_does_not_start_is_said_and_nothing_is_left(programs: Programs) -> None:
    with Node() as node:
        with pytest.raises(NodeError, match="no-such-program"):
            node.start("missing", ["/no-such-program"])
        namespaces = node.namespaces()
    assert leftovers(node, namespaces) == []


def test_a_cluster_that_does_not_start_says_why_and_leaves_nothing(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "kubectl").symlink_to(programs.kubernetes / "kubectl")
    (tmp_path / "kube-apiserver").write_text("#!/bin/sh\necho the disk is on fire; exit 3\n")
    (tmp_path / "kube-apiserver").chmod(0o755)
    namespaces: dict[str, str] = {}

    class Watched(Cluster):
        def _start(self) -> None:
            namespaces.update(self.node.namespaces())
            super()._start()

    cluster = Watched(replace(programs, kubernetes=tmp_path))
    with pytest.raises(ClusterError, match="kube-apiserver ended with 3") as caught, cluster:
        pass
    assert any("the disk is on fire" in note for note in caught.value.__notes__)
    assert leftovers(cluster.node, namespaces) == []
