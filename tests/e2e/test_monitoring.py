"""Test daemonset/monitoring, installed by its page: only with token and authority can a reader see what a pod uses."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from kubectl import wait_until
from pages import commands, follow
from sharepod_cluster import OURS, SharePod, gpu_pod

from rig import REPO_ROOT

MANIFESTS = REPO_ROOT / "daemonset" / "monitoring"
PAGE = MANIFESTS / "README.md"
COMMANDS = ("kubectl apply -k daemonset/monitoring", "kubectl -n sharepod rollout restart daemonset/sharepod")
OPERATOR = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}
GROUP = "monitoring.coreos.com"
Object = dict[str, Any]


def definition(kind: str, plural: str) -> Object:
    """Return a definition of a kind of the Prometheus operator that accepts any fields."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {
        "group": GROUP,
        "names": {"kind": kind, "plural": plural},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def monitoring(own_cluster: Cluster, sharepod: SharePod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install the monitoring; yield the folder with token and authority."""
    kubectl, folder = sharepod.kubectl, tmp_path_factory.mktemp("monitoring")
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{command}`" in text for command in COMMANDS)
    names = [f"customresourcedefinition/{plural}.{GROUP}" for plural in OPERATOR.values()]
    kubectl.apply_objects(*(definition(kind, plural) for kind, plural in OPERATOR.items()))
    kubectl.wait_for("condition=Established", *names)
    try:
        follow(kubectl, folder, *commands(PAGE), *COMMANDS)
        until_restarted(sharepod)
        yield folder
    finally:
        kubectl("delete", "-k", str(MANIFESTS), "--ignore-not-found")
        kubectl("delete", "secret", "sharepod-metrics", f"--namespace={OURS}", "--ignore-not-found")
        kubectl("delete", *names)
        kubectl("rollout", "restart", "daemonset/sharepod", f"--namespace={OURS}")
        until_restarted(sharepod)


def until_restarted(sharepod: SharePod) -> None:
    sharepod.kubectl.rolled_out("daemonset/sharepod", OURS)
    wait_until("the node offers devices", lambda: sharepod.offers(200))


def scrape(cluster: Cluster, sharepod: SharePod, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Ask the agent for its metrics at its pod's address, like a Prometheus in the cluster."""
    address = sharepod.kubectl.get("pod", sharepod.own_pod(), OURS)["status"]["podIP"]
    asked = ["--resolve", f"sharepod-metrics:9464:{address}", "https://sharepod-metrics:9464/metrics"]
    return cluster.node.run(["curl", "--silent", "--show-error", "--fail", *options, *asked], namespaces=["--net"])


def test_a_scrape_with_token_and_authority_has_the_pods_use(
    own_cluster: Cluster, sharepod: SharePod, monitoring: Path
) -> None:
    trusting = ("--cacert", str(monitoring / "tls.crt"))
    token = ("--header", f"Authorization: Bearer {(monitoring / 'token').read_text()}")
    with sharepod.pods(gpu_pod("scraped", 30)):
        done = scrape(own_cluster, sharepod, *trusting, *token)
        assert done.returncode == 0, done.stderr
        assert b'pod="scraped"' in done.stdout
        assert b"401" in scrape(own_cluster, sharepod, *trusting).stderr
        assert scrape(own_cluster, sharepod, *token).returncode == 60, "its authority is no public one"
