"""A cluster of two nodes is one cluster: pods on both, one network, and each node may fail alone."""

import secrets
import subprocess
from collections.abc import Iterator

import pytest
from cluster import Cluster
from image import Image, debian_root
from kubectl import ClusterError, wait_until
from leftovers import holders
from programs import chosen
from test_cluster import BUSYBOX, PACKAGES, executes, pod, status_of

NODES = ("node1", "node2")
SERVE = "cd /tmp && echo $HOSTNAME > name && exec /bin/busybox httpd -f -p 8080"
POD_RANGES = {"node1": "10.99.0.", "node2": "10.99.1."}


@pytest.fixture(scope="module")
def cluster(two_node_cluster: Cluster) -> Cluster:
    root = debian_root(PACKAGES)
    two_node_cluster.import_image(Image(BUSYBOX, ["/bin/busybox", "sh"]), root)
    return two_node_cluster


@pytest.fixture(scope="module")
def servers_by_node(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Start a pod on each node that serves its name, and return the pods by node."""
    names = {node: f"serves-{node}-{secrets.token_hex(3)}" for node in NODES}
    cluster.kubectl.apply_objects(*(pod(name, SERVE, nodeName=node) for node, name in names.items()))
    cluster.kubectl.wait_for("condition=Ready", *(f"pod/{name}" for name in names.values()))
    yield names
    cluster.kubectl("delete", "pod", *names.values(), "--wait=false")


def test_both_nodes_are_ready_and_have_addresses_of_their_own(cluster: Cluster) -> None:
    assert [member.name for member in cluster.members if cluster.node_is_ready(member.name)] == list(NODES)
    addresses = cluster.kubectl("get", "nodes", "--output=jsonpath={.items[*].status.addresses[0].address}")
    assert addresses.split() == ["10.99.0.1", "10.99.1.1"]


def test_nodes_of_one_cluster_share_nothing_but_the_wire(cluster: Cluster) -> None:
    first, second = (member.node.namespaces() for member in cluster.members)
    assert holders(first)
    assert holders(second)
    assert not set(first.values()) & set(second.values())
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert "to-node" not in links, "an end of the cable is the machine's"


def test_the_scheduler_spreads_pods_over_both(cluster: Cluster) -> None:
    names = [f"spread-{n}" for n in range(4)]
    cluster.kubectl.apply_objects(*(pod(name, "exec sleep 600") for name in names))
    cluster.kubectl.wait_for("condition=Ready", *(f"pod/{name}" for name in names))
    assert {cluster.kubectl.get("pod", name)["spec"]["nodeName"] for name in names} == set(NODES)
    cluster.kubectl("delete", "pod", *names, "--wait=false")


@pytest.mark.parametrize("here", NODES)
@pytest.mark.parametrize("there", NODES)
def test_a_pod_reaches_a_pod_wherever_it_is(
    cluster: Cluster, servers_by_node: dict[str, str], here: str, there: str
) -> None:
    address = cluster.kubectl.get("pod", servers_by_node[there])["status"]["podIP"]
    assert address.startswith(POD_RANGES[there])
    fetch = ["/bin/busybox", "wget", "-qO-", f"http://{address}:8080/name"]
    assert cluster.kubectl.execute(servers_by_node[here], *fetch) == f"{servers_by_node[there]}\n"


def test_a_pod_of_the_second_node_reaches_the_api_server_and_both_nodes(
    cluster: Cluster, servers_by_node: dict[str, str]
) -> None:
    ask = ["/usr/bin/curl", "--silent", "--show-error", "--fail", "--insecure"]
    version = cluster.kubectl.execute(servers_by_node["node2"], *ask, "https://10.96.0.1/version")
    assert f'"gitVersion": "{chosen().version}"' in version
    for address in ("10.99.0.1", "10.99.1.1"):
        with pytest.raises(ClusterError, match="error: 401"):
            cluster.kubectl.execute(servers_by_node["node2"], *ask, f"https://{address}:10250/pods")


def test_a_container_of_the_second_node_is_killed_and_started_again(
    cluster: Cluster, servers_by_node: dict[str, str]
) -> None:
    name = servers_by_node["node2"]
    before = status_of(cluster.kubectl, name)["restartCount"]
    cluster.kill_container(name, "main")

    def again() -> bool:
        status = status_of(cluster.kubectl, name)
        return bool(status["restartCount"] == before + 1 and status["ready"])

    wait_until("the container's second start", again)


def test_pods_of_both_nodes_outlive_the_second_ones_kubelet_and_containerd(
    cluster: Cluster, servers_by_node: dict[str, str]
) -> None:
    second = cluster.member("node2")
    before = {name: status_of(cluster.kubectl, name) for name in servers_by_node.values()}
    for name in ("kubelet", "containerd"):
        second.kill(name)
    assert executes(cluster.kubectl, servers_by_node["node1"]), "the first node's kubelet is untouched"
    assert not executes(cluster.kubectl, servers_by_node["node2"]), "the second's is away"
    for name in ("containerd", "kubelet"):
        second.start(name)
    wait_until("the pod answers", lambda: executes(cluster.kubectl, servers_by_node["node2"]))
    for name, then in before.items():
        now = status_of(cluster.kubectl, name)
        assert (now["containerID"], now["restartCount"]) == (then["containerID"], then["restartCount"])


def test_a_node_whose_kubelet_is_away_is_not_ready_and_gets_no_pods_until_it_is_back(cluster: Cluster) -> None:
    second = cluster.member("node2")
    second.kill("kubelet")
    try:
        wait_until("the node is given up", lambda: not cluster.node_is_ready("node2"))
        cluster.kubectl.apply_objects(*(pod(f"elsewhere-{n}", "exec sleep 600") for n in range(2)))
        cluster.kubectl.wait_for("condition=Ready", "pod/elsewhere-0", "pod/elsewhere-1")
        assert cluster.node_is_ready("node1")
    finally:
        second.start("kubelet")
    wait_until("the node is ready", lambda: cluster.node_is_ready("node2"))
    wait_until("pods may go there", lambda: not cluster.kubectl.get("node", "node2")["spec"].get("taints"))
    for n in range(2):
        assert cluster.kubectl.get("pod", f"elsewhere-{n}")["spec"]["nodeName"] == "node1"
    cluster.kubectl("delete", "pod", "elsewhere-0", "elsewhere-1", "--wait=false")
