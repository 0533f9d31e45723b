"""SharePod's scheduler as it is shipped, daemonset/scheduler, made to fit Kubernetes 1.20 and installed.

As its README says: a certificate, the manifests, a restart of the agents. What is changed: kube-scheduler's image is
the one that was built, and what the release does not know yet is left out.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import yaml
from kube_scheduler_image import kube_scheduler_image
from kubectl import ClusterError, Kubectl, wait_until
from prometheus_client.parser import text_string_to_metric_families
from sharepod_cluster import OURS, PYTHON
from sharepod_nodes import SharePodNodes
from simulated_gpu import REPO_ROOT

README = REPO_ROOT / "daemonset" / "scheduler" / "README.md"
MANIFESTS = README.with_name("before-1.25")
SCHEDULER = "sharepod-scheduler"
SELECTOR = "--selector=app.kubernetes.io/component=scheduler"
TOO_NEW = {"PodDisruptionBudget"}
METRICS = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:9468/metrics").read().decode())
"""
Object = dict[str, Any]


def shown_commands() -> list[str]:
    """Return the commands of the README, one line each."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```$", README.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [" ".join(line.partition("#")[0].split()) for line in lines]


@contextmanager
def certificate(kubectl: Kubectl) -> Iterator[None]:
    """Make the certificate and what names it, by the README's own commands."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for command in shown_commands():
                words = [re.sub(r"(?<==)tls[.](?=crt$|key$)", f"{folder}/tls.", word) for word in command.split()]
                if words[0] == "openssl":
                    subprocess.run(words, cwd=folder, check=True, capture_output=True)
                elif words[:4] == ["kubectl", "-n", OURS, "create"]:
                    made.append((words[4], next(word for word in words[5:] if word.startswith(OURS))))
                    kubectl(*words[1:])
            assert made, f"{README} shows no certificate that is made known"
            yield
        finally:
            for kind, name in made:
                kubectl("delete", kind, name, f"--namespace={OURS}", "--ignore-not-found")


def fitted(item: Object, image: str) -> Object:
    """Return an object of the manifests with the image that is there."""
    if item["kind"] == "Deployment":
        for container in item["spec"]["template"]["spec"]["containers"]:
            if container["name"] == "kube-scheduler":
                container["image"] = image
    return item


class ShippedScheduler:
    """The Deployment, installed."""

    def __init__(self, two_nodes: SharePodNodes) -> None:
        self._two_nodes = two_nodes
        self._kubectl = two_nodes.kubectl

    def pods(self) -> list[str]:
        """Return the names of its pods."""
        chosen = (f"--namespace={OURS}", SELECTOR)
        return self._kubectl("get", "pods", *chosen, "--output=jsonpath={.items[*].metadata.name}").split()

    def kill(self, container: str) -> None:
        """Kill a container of every replica; each is started again."""
        for pod in self.pods():
            self._two_nodes.cluster.kill_container(pod, container, OURS)

    def metric(self, name: str, **labels: str) -> list[float]:
        """Return what a series of each replica's is; a replica that does not have it has none."""
        return [
            sample.value
            for pod in self.pods()
            for family in text_string_to_metric_families(self.ask(pod, PYTHON, "-c", METRICS))
            for sample in family.samples
            if (sample.name, sample.labels) == (name, labels)
        ]

    def ask(self, pod: str, *command: str) -> str:
        """Run a command in a replica's extender and return what it prints."""
        return self._kubectl.execute(pod, *command, container="extender", namespace=OURS)

    def log(self, pod: str) -> list[Object]:
        """Return what a replica's extender has logged since it was started."""
        lines = self._kubectl.logs(pod, "--container=extender", namespace=OURS).splitlines()
        return [json.loads(line) for line in lines]

    def wait_until_ready(self) -> None:
        """Wait until every replica is ready and one is at work; otherwise what they say is in the error."""
        rollout = ("rollout", "status", f"deployment/{SCHEDULER}", f"--namespace={OURS}", "--timeout=150s")
        try:
            self._kubectl(*rollout, timeout_seconds=180)
            wait_until("a replica leads", self._leads)
        except ClusterError as error:
            error.add_note(self._kubectl("describe", "pods", f"--namespace={OURS}", SELECTOR))
            for container in ("kube-scheduler", "extender"):
                with suppress(ClusterError):
                    said = self._kubectl.logs(SELECTOR, f"--container={container}", "--tail=40", namespace=OURS)
                    error.add_note(f"--- {container}\n{said}")
            raise

    def _leads(self) -> bool:
        leases = json.loads(self._kubectl("get", "leases", f"--namespace={OURS}", "--output=json"))["items"]
        return any(item["spec"].get("holderIdentity") for item in leases)


@contextmanager
def shipped_scheduler(two_nodes: SharePodNodes, units: int = 200) -> Iterator[ShippedScheduler]:
    """Install the scheduler beside SharePod, where each node is to offer so many units, and take it away again."""
    kubectl, image = two_nodes.kubectl, kube_scheduler_image(two_nodes.cluster)
    found = [item for item in yaml.safe_load_all(kubectl("kustomize", str(MANIFESTS))) if item]
    objects = [fitted(item, image) for item in found if item["kind"] not in TOO_NEW]
    installed = ShippedScheduler(two_nodes)
    try:
        with certificate(kubectl):
            kubectl.apply_objects(*objects)
            # As `rollout restart` does it, but on both nodes at once.
            nodes = (f"--namespace={OURS}", "--selector=app.kubernetes.io/component=node")
            kubectl("delete", "pods", *nodes, timeout_seconds=120)
            rollout = ("rollout", "status", "daemonset/sharepod", f"--namespace={OURS}", "--timeout=150s")
            kubectl(*rollout, timeout_seconds=180)
            installed.wait_until_ready()
            wait_until("both nodes offer devices", lambda: all(node.offers(units) for node in two_nodes.nodes.values()))
            yield installed
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        gone = ("delete", "--ignore-not-found", "--wait=false", "-f", "-")
        kubectl(*gone, stdin=json.dumps(listed).encode())
