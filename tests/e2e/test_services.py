"""A service's name leads a pod to the pods behind it, on whichever nodes they are."""

import json
from collections.abc import Iterator

import pytest
from kubectl import ClusterError, wait_until
from sharepod_cluster import PYTHON, gpu_pod
from sharepod_nodes import SharePodNodes

NODES = ("node1", "node2")
IDLE = {"command": ["/bin/sleep", "600"], "resources": {}}
LOOK_UP = """
import json, socket, sys
print(json.dumps(sorted({found[4][0] for found in socket.getaddrinfo(sys.argv[1], 80)})))
"""


@pytest.fixture(scope="module")
def service(two_nodes: SharePodNodes) -> Iterator[dict[str, str]]:
    """Start a pod on each node behind one headless service, and return their addresses by node."""
    pods = [gpu_pod(f"behind-{node}", 0, container=IDLE, nodeName=node) for node in NODES]
    for pod in pods:
        pod["metadata"]["labels"] = {"app": "behind"}
    spec = {"clusterIP": "None", "selector": {"app": "behind"}, "ports": [{"port": 80}]}
    headless = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "many"}, "spec": spec}
    two_nodes.kubectl.apply_objects(headless)
    with two_nodes.pods(*pods) as started:
        yield {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in started}
    two_nodes.kubectl("delete", "service", "many")


def look_up(two_nodes: SharePodNodes, node: str, name: str) -> list[str]:
    found: list[str] = json.loads(two_nodes.kubectl.execute(f"behind-{node}", PYTHON, "-c", LOOK_UP, name))
    return found


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("name", ["many", "many.default", "many.default.svc.cluster.local"])
def test_a_headless_service_is_the_addresses_of_its_pods(
    two_nodes: SharePodNodes, service: dict[str, str], node: str, name: str
) -> None:
    wait_until("both are known", lambda: look_up(two_nodes, node, name) == sorted(service.values()), 10)


def test_a_name_that_is_no_service_is_not_known(two_nodes: SharePodNodes, service: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match="Name or service not known"):
        look_up(two_nodes, "node1", "nobody")
