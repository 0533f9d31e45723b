"""Test that our cluster leaves nothing on this machine however it ends, and that it says why if it does not start.

The tests of SharePod on it show that it is a real cluster.
"""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import Cluster
from components import PAUSE_IMAGE
from kubectl import ClusterError, wait_until
from leftovers import holders, leftovers, paths_below
from node import Node, NodeError
from node_init import WANTED_SETTINGS
from programs import Programs


def settings() -> dict[str, str]:
    return {
        name: Path("/proc/sys", name).read_text()
        for name in (*WANTED_SETTINGS, "kernel/hostname", "vm/swappiness", "net/ipv4/ip_forward")
    }


def pod_groups_outside() -> set[Path]:
    below = paths_below(Path("/sys/fs/cgroup"))
    return {path for path in below if path.name == "kubepods" and "sharepod-e2e-" not in str(path)}


def test_a_second_cluster_beside_the_first_leaves_nothing_behind(own_cluster: Cluster) -> None:
    before, groups = settings(), pod_groups_outside()
    container = {"name": "main", "image": PAUSE_IMAGE, "imagePullPolicy": "Never"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "left"}, "spec": {"containers": [container]}}
    with Cluster(own_cluster.programs) as second:
        namespaces = second.node.namespaces()
        assert holders(namespaces)
        assert not set(namespaces.values()) & set(own_cluster.node.namespaces().values())
        second.kubectl.apply_objects(pod)
        second.kubectl.wait_for("condition=Ready", "pod/left")
        assert any(path.name == "kubepods" for group in second.node.groups.values() for path in group.iterdir())
        assert pod_groups_outside() == groups
    assert leftovers(second.node, namespaces) == []
    assert settings() == before
    assert own_cluster.kubectl("get", "--raw", "/api/v1/nodes/node1/proxy/healthz") == "ok", "the first goes on"


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
    folder = str(Path(__file__).with_name("machine"))
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
