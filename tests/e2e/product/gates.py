"""Installs and removes the shipped gates, daemonset/gates, by the commands of their own pages."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kubectl import ClusterError, Kubectl, wait_until
from pages import commands, follow
from prometheus_client.parser import text_string_to_metric_families
from sharepod_cluster import OURS, PYTHON
from sharepod_nodes import SharePodNodes

from rig import REPO_ROOT

MANIFESTS = REPO_ROOT / "daemonset"
GATES, WEBHOOK = MANIFESTS / "gates" / "README.md", MANIFESTS / "compatibility" / "README.md"
SELECTOR = "--selector=app.kubernetes.io/component=scheduler"
SECRETS = ("sharepod-webhook", "sharepod-scheduler-feed")
LEASE = "sharepod-gates-leader"
REASONS = ("Waits", "QueueCap", "NeverFits", "GateRefused")
METRICS = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:9468/metrics").read().decode())
"""
Object = dict[str, Any]


class Gates:
    """The installed webhook and gate controller."""

    def __init__(self, two_nodes: SharePodNodes) -> None:
        self._two_nodes = two_nodes
        self._kubectl = two_nodes.kubectl

    def pods(self) -> list[str]:
        """Return the names of the controller's pods."""
        chosen = (f"--namespace={OURS}", SELECTOR)
        return self._kubectl("get", "pods", *chosen, "--output=jsonpath={.items[*].metadata.name}").split()

    def leader(self) -> str:
        """Return the name of the controller's pod that decides; empty while there is none."""
        leases = self._kubectl.items("leases", namespace=OURS)
        holders = [item["spec"].get("holderIdentity", "") for item in leases if item["metadata"]["name"] == LEASE]
        return next((pod for pod in self.pods() if any(holder.startswith(pod) for holder in holders)), "")

    def kill(self, pod: str) -> None:
        """Kill the controller in one replica like a crash; kubelet starts it again."""
        self._two_nodes.cluster.kill_container(pod, self._container(pod), OURS)

    def metric(self, name: str, **labels: str) -> list[float]:
        """Return the value of a series for each replica that has it."""
        return [
            sample.value
            for pod in self.pods()
            for family in text_string_to_metric_families(self.ask(pod, PYTHON, "-c", METRICS))
            for sample in family.samples
            if (sample.name, sample.labels) == (name, labels)
        ]

    def ask(self, pod: str, *command: str) -> str:
        """Run a command in a replica and return what it prints."""
        return self._kubectl.execute(pod, *command, namespace=OURS)

    def explained(self, pod: str) -> str:
        """Return the deciding replica's explanation of a pod, in one line."""
        return " ".join(self.ask(self.leader(), "sharepod", "explain", f"pod/{pod}").split())

    def log(self, pod: str) -> list[Object]:
        """Return what a replica has logged since its start."""
        return [json.loads(line) for line in self._kubectl.logs(pod, namespace=OURS).splitlines()]

    def reason(self, pod: str) -> str:
        """Return the text of the Event that says why a pod waits at its gate; empty while there is none."""
        found = self._kubectl.items("events", f"--field-selector=involvedObject.name={pod}")
        uid = self._kubectl.get("pod", pod)["metadata"]["uid"]
        told = [item for item in found if item["reason"] in REASONS and item["involvedObject"]["uid"] == uid]
        return str(told[-1]["message"]) if told else ""

    def wait_until_ready(self) -> None:
        """Wait until every replica is ready and one decides; an error has their logs."""
        try:
            self._kubectl.rolled_out("deployment/sharepod-scheduler", OURS)
            wait_until("a replica decides", lambda: self.leader() != "")
        except ClusterError as error:
            add_logs(self._kubectl, error)
            raise

    def _container(self, pod: str) -> str:
        [container] = self._kubectl.get("pod", pod, OURS)["spec"]["containers"]
        return str(container["name"])


def add_logs(kubectl: Kubectl, error: ClusterError) -> None:
    """Add descriptions and logs of the controller's pods to an error."""
    error.add_note(kubectl("describe", "pods", f"--namespace={OURS}", SELECTOR))
    with suppress(ClusterError):
        error.add_note(kubectl("logs", SELECTOR, "--tail=40", f"--namespace={OURS}"))


def install(kubectl: Kubectl, folder: Path) -> None:
    """Run the commands of daemonset/gates/README.md: the webhook of the compatibility page, then its own blocks."""
    try:
        follow(kubectl, folder, *commands(WEBHOOK)[:2], *commands(GATES))
    except ClusterError as error:
        add_logs(kubectl, error)
        raise


def remove(kubectl: Kubectl) -> None:
    """Remove gates and webhook as the pages say."""
    for name in ("gates", "compatibility"):
        kubectl("delete", "-k", str(MANIFESTS / name), "--ignore-not-found", timeout_seconds=150)
    kubectl("delete", "secret", *SECRETS, f"--namespace={OURS}", "--ignore-not-found")
    left = ("get", "pods", f"--namespace={OURS}", "--output=name")
    wait_until("gates are gone", lambda: "scheduler" not in kubectl(*left) and "webhook" not in kubectl(*left))


@contextmanager
def gates_on(two_nodes: SharePodNodes, folder: Path, units: int = 200) -> Iterator[Gates]:
    """Install gates where each node is to offer this number of units; remove them at the end."""
    kubectl, installed = two_nodes.kubectl, Gates(two_nodes)
    try:
        install(kubectl, folder)
        installed.wait_until_ready()
        wait_until("both nodes offer devices", lambda: all(node.offers(units) for node in two_nodes.nodes.values()))
        wait_until(
            "both nodes report", lambda: installed.metric("sharepod_scheduler_nodes", state="reporting") == [2, 2]
        )
        yield installed
    finally:
        remove(kubectl)
