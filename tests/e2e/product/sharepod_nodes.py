"""Handles SharePod on all nodes of our own cluster: pods on any node, and their shares."""

from typing import Any

from cluster import Cluster
from sharepod_cluster import Pods, Share, SharePod, install


class SharePodNodes(Pods):
    """An installation on several nodes; `nodes` has the installation as seen from each node."""

    def __init__(self, cluster: Cluster, nodes: list[SharePod]) -> None:
        super().__init__(cluster.kubectl)
        self.cluster = cluster
        self.nodes = {str(node.name): node for node in nodes}

    def of(self, pod: dict[str, Any]) -> SharePod:
        """Return the installation as seen from the pod's node."""
        return self.nodes[pod["spec"]["nodeName"]]

    def shares(self, *pods: dict[str, Any]) -> list[Share]:
        """Return the shares of pods, each as the agent of the pod's node lists it."""
        return [share for pod in pods for share in self.of(pod).shares(pod)]

    def listed(self) -> dict[str, list[dict[str, Any]]]:
        """Return the shares of each node as `sharepod ps` lists them."""
        return {name: node.listed() for name, node in self.nodes.items()}

    def wait_until_empty(self) -> None:
        """Wait until no node has shares of earlier tests."""
        for node in self.nodes.values():
            node.wait_until_empty()


def sharepod_nodes(cluster: Cluster) -> SharePodNodes:
    """Install SharePod on all nodes of a cluster until the cluster ends."""
    return SharePodNodes(cluster, install(cluster.kubectl, cluster, [member.name for member in cluster.members]))
