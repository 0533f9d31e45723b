"""Handles SharePod on a cluster of simulated devices: installs it, runs pods with shares, finds what they leave."""

import json
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cluster import Cluster
from kubectl import ClusterError, Kubectl, wait_until
from observer import NAMESPACE, Looks, Observer
from sharepod_image import NAME as IMAGE
from sharepod_image import sharepod_image

from rig import REPO_ROOT

OURS = "sharepod"
OVERLAY = REPO_ROOT / "daemonset" / "overlays" / "simulated"
PYTHON = "/opt/sharepod/bin/python"
SETTLE_S = 1.0
DELETE_S = 150.0


def gpu_pod(name: str, units: int, annotations: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """Return a pod that always wants the whole device; `more` goes into its spec, `container` into its container."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": [PYTHON, "-m", "sharepod.cli.demo.program", "--seconds", "36000"],
        "resources": {"limits": {"sharepod.io/gpu": units}},
        **more.pop("container", {}),
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1, **more}
    metadata = {"name": name, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def gpu_deployment(name: str, units: int, **more: Any) -> dict[str, Any]:
    """Return a Deployment of two such pods; their label `app` is its name."""
    template = {"metadata": {"labels": {"app": name}}, "spec": gpu_pod("unused", units)["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template, **more}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True, slots=True)
class Share:
    """A share as the agent lists it."""

    id: str
    container: str
    devices: tuple[int, ...]
    memory_refusals: int


class Pods:
    """Runs pods on a cluster for a while."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    @contextmanager
    def pods(self, *pods: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """Start pods and yield them once all run; delete them at the end."""
        names = [pod["metadata"]["name"] for pod in pods]
        try:
            self.kubectl.apply_objects(*pods)
            self.kubectl.wait_for("condition=Ready", *(f"pod/{name}" for name in names))
            yield self.kubectl.get_pods(*names)
        finally:
            self.delete(*names)

    def delete(self, *names: str) -> None:
        """Delete pods and wait until they are gone."""
        self.kubectl("delete", "pod", *names, "--ignore-not-found", timeout_seconds=DELETE_S)


class SharePod(Pods):
    """An installation, seen from one node: the named one, or the first that offers devices."""

    def __init__(self, kubectl: Kubectl, node: str | None = None) -> None:
        super().__init__(kubectl)
        self.name = node
        self.observer = Observer(kubectl, node)

    def node(self) -> dict[str, Any]:
        """Return the named node, or the first that offers devices. Raises StopIteration."""
        offering = [node for node in self.kubectl.items("nodes") if "sharepod.io/gpu" in node["status"]["allocatable"]]
        return next(node for node in offering if self.name in (None, node["metadata"]["name"]))

    def offers(self, units: int) -> bool:
        """Tell whether the node offers this number of units."""
        try:
            return bool(self.node()["status"]["allocatable"]["sharepod.io/gpu"] == str(units))
        except StopIteration:
            return False

    def registrations(self) -> int:
        """Return how often the plugin has registered with kubelet since it started; 0 while that is unknown."""
        try:
            log = self.kubectl.logs(self.own_pod(), "--container=device-plugin", namespace=OURS)
        except ClusterError:
            return 0
        return log.count("registered with kubelet")

    def own_pod(self) -> str:
        """Return the name of the DaemonSet's pod on the node."""
        chosen = [f"--namespace={OURS}", "--selector=app.kubernetes.io/component=node"]
        if self.name:
            chosen.append(f"--field-selector=spec.nodeName={self.name}")
        return self.kubectl("get", "pods", *chosen, "--output=jsonpath={.items[0].metadata.name}")

    def agent(self, *command: str) -> str:
        """Run a command in the agent's container and return what it prints."""
        return self.kubectl.execute(self.own_pod(), *command, container="agent", namespace=OURS)

    def listed(self) -> list[dict[str, Any]]:
        """Return the shares as `sharepod ps` lists them."""
        found: list[dict[str, Any]] = json.loads(self.agent("sharepod", "ps", "--output", "json"))["shares"]
        return found

    def wait_until_empty(self) -> None:
        """Wait until the node has no shares of earlier tests."""
        wait_until("no other share", lambda: self.listed() == [])

    def answers(self) -> bool:
        """Tell whether the agent answers."""
        try:
            self.listed()
        except ClusterError:
            return False
        return True

    def kill_container(self, pod: str, container: str, namespace: str = "default") -> None:
        """Kill every process of a container without kubelet's knowledge; return once its successor runs."""
        before = container_of(self.kubectl.get("pod", pod, namespace), container)
        self._send(identity(before), signal.SIGKILL)

        def again() -> bool:
            now = container_of(self.kubectl.get("pod", pod, namespace), container)
            return bool(now["restartCount"] > before["restartCount"] and now["ready"])

        wait_until(f"{container} of {pod} started again", again)

    @contextmanager
    def hung_agent(self) -> Iterator[None]:
        """Stop the agent's processes, so that it seems to hang. At the end they go on."""
        agent = identity(container_of(self.kubectl.get("pod", self.own_pod(), OURS), "agent"))
        self._send(agent, signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(agent, signal.SIGCONT)

    def _send(self, container: str, number: signal.Signals) -> None:
        self.kubectl.execute(self.observer.pod, PYTHON, "-c", SEND, container, str(number.value), namespace=NAMESPACE)

    def looks(self, seconds: float) -> Looks:
        """Return what the devices did in the last seconds."""
        return self.observer.looks(seconds)

    def looks_since(self, began: float) -> Looks:
        """Return what the devices did since a time of this process's monotonic clock."""
        return self.observer.looks_since(began)

    def shares(self, *pods: dict[str, Any]) -> list[Share]:
        """Return the shares of pods, for each pod in the order of its containers' names."""
        found = []
        for pod in pods:
            own = [share for share in self.listed() if share["labels"].get("pod_uid") == pod["metadata"]["uid"]]
            for share in sorted(own, key=lambda share: str(share["labels"]["container"])):
                devices = tuple(device["device_index"] for device in share["devices"])
                refusals = sum(device["usage"]["memory_refusals"] for device in share["devices"])
                found.append(Share(share["id"], share["labels"]["container"], devices, refusals))
        return found

    def wait_released(self, *ids: str) -> None:
        """Wait until the agent no longer has the shares; an error has the logs of agent and plugin."""
        try:
            wait_until("the shares are released", lambda: not {share["id"] for share in self.listed()} & set(ids))
        except ClusterError as error:
            for container in ("agent", "device-plugin"):
                for previous in ("--previous=false", "--previous=true"):
                    with suppress(ClusterError):
                        where = (f"--container={container}", previous, "--tail=60")
                        said = self.kubectl.logs(self.own_pod(), *where, namespace=OURS)
                        error.add_note(f"--- {container} {previous}\n{said}")
            raise

    def events(self, pod: str) -> list[str]:
        """Return the events of a pod as `reason: message`."""
        found = self.kubectl.items("events", f"--field-selector=involvedObject.name={pod}")
        return [f"{event['reason']}: {event['message']}" for event in found]


SEND = r"""
import os, sys
from pathlib import Path
for path in Path("/proc").glob("[0-9]*/cgroup"):
    try:
        if sys.argv[1] in path.read_text():
            os.kill(int(path.parent.name), int(sys.argv[2]))
    except OSError:
        pass
"""


def container_of(pod: dict[str, Any], container: str = "main") -> dict[str, Any]:
    """Return the status of one of a pod's containers."""
    status: dict[str, Any] = next(s for s in pod["status"]["containerStatuses"] if s["name"] == container)
    return status


def identity(status: dict[str, Any]) -> str:
    """Return the id of a running container."""
    return str(status["containerID"]).rpartition("/")[2]


class Pair:
    """Two pods with one share each that run on one device."""

    def __init__(self, sharepod: SharePod, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.sharepod = sharepod
        self.pods = (first, second)
        self.uids = tuple(str(pod["metadata"]["uid"]) for pod in self.pods)

    def steady(self, seconds: float) -> Looks:
        """Let the pods run and return the looks of the last seconds."""
        time.sleep(SETTLE_S + seconds)
        looks = self.sharepod.looks(seconds + 2)
        return looks.between(looks.all[-1].now_ns - round(seconds * 1e9), looks.all[-1].now_ns)

    def parts(self, looks: Looks) -> list[float]:
        """Return each pod's part of what both used together."""
        return looks.parts(*self.uids)

    def ratios(self, looks: Looks) -> list[float]:
        """Return the use of each pod, as a part of a device."""
        return [looks.ratio(uid) for uid in self.uids]

    def middle(self, looks: Looks) -> list[float]:
        """Return the median use of each pod over the span's seconds, which one pause of the machine does not change."""
        return [statistics.median(second.ratio(uid) for second in looks.seconds()) for uid in self.uids]

    def are_divided(self, looks: Looks, first: float, tolerance: float) -> bool:
        """Tell whether the first pod had this part of both's use, over the span or in the median of its seconds."""
        median = statistics.median(self.parts(second)[0] for second in looks.seconds())
        return any(abs(part - first) <= tolerance for part in (self.parts(looks)[0], median))

    def shares(self) -> list[Share]:
        """Return the shares of both pods."""
        return self.sharepod.shares(*self.pods)

    def unharmed(self) -> bool:
        """Tell whether both pods still run in their old containers."""
        now = [self.sharepod.kubectl.get("pod", pod["metadata"]["name"]) for pod in self.pods]
        return all(
            (one["metadata"]["uid"], one["status"]["phase"], identity(container_of(one)))
            == (pod["metadata"]["uid"], "Running", identity(container_of(pod)))
            for one, pod in zip(now, self.pods, strict=True)
        )


@contextmanager
def sharepod_on(kubectl: Kubectl, cluster: Cluster | None) -> Iterator[SharePod]:
    """Install SharePod as shipped; remove it at the end. Another cluster must already have the image."""
    try:
        [installed] = install(kubectl, cluster, [None])
        yield installed
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
        # On another cluster, the next run may at once need objects with these names.
        wait = f"--wait={str(cluster is None).lower()}"
        kubectl("delete", "-k", str(OVERLAY), "--ignore-not-found", wait, timeout_seconds=200)
        left = ("get", "pods", f"--namespace={OURS}", "--output=name")
        wait_until("the installation is gone", lambda: kubectl(*left) == "")


def install(kubectl: Kubectl, cluster: Cluster | None, nodes: Sequence[str | None]) -> list[SharePod]:
    """Install SharePod; return it as seen from each of the nodes."""
    if cluster:
        cluster.import_archive(sharepod_image())
    kubectl.apply(OVERLAY)
    kubectl.rolled_out("daemonset/sharepod", OURS)
    installed = [SharePod(kubectl, node) for node in nodes]
    for one in installed:
        wait_until("a node offers devices", lambda one=one: one.offers(200))
        one.observer.start()
    return installed
