"""A second kube-scheduler in a pod, beside an extender for tests that prints what it is asked and does as pods say.

It shows what a kube-scheduler of this release really sends, and that the configuration which the product ships has it
ask. A pod's annotations say what the extender answers: `toy/refuse`, a node and a reason; `toy/prefer`, a node;
`toy/victims`, the node that stays a candidate when others must make room; `toy/evict`, the uid of a pod there that
must go, and until the extender could say so no node is good.
"""

import json
from typing import Any

from kube_scheduler_image import NAME as KUBE_SCHEDULER
from kubectl import Kubectl, wait_until
from sharepod_image import NAME as SHAREPOD

NAMESPACE = "toy-scheduler"
SCHEDULER = "toy-scheduler"
"""Not ours: that may be there as well."""
RESOURCE = "sharepod.io/gpu"
PORT = 9466
WEIGHT = 200
Object = dict[str, Any]

EXTENDER = r"""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

told = set()

def filter(asked, said):
    names, pod = asked["NodeNames"], asked["Pod"]["metadata"]
    if "toy/evict" in said and pod["uid"] not in told:
        return {"NodeNames": [], "FailedNodes": {name: "somebody is in the way" for name in names}}
    node, _, reason = said.get("toy/refuse", "").partition(" ")
    fit = [name for name in names if name != node]
    return {"NodeNames": fit, "FailedNodes": {node: reason} if node in names else {}}

def prioritize(asked, said):
    return [{"Host": name, "Score": 10 * (name == said.get("toy/prefer"))} for name in asked["NodeNames"]]

def preempt(asked, said):
    told.add(asked["Pod"]["metadata"]["uid"])
    victims = asked["NodeNameToMetaVictims"]
    left = {node: victims[node] for node in victims if node == said.get("toy/victims", node)}
    if "toy/evict" in said:
        left = {node: {**left[node], "Pods": [{"UID": said["toy/evict"]}]} for node in left}
    return {"NodeNameToMetaVictims": left}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked, verb = json.loads(body), self.path.rpartition("/")[2]
        print(json.dumps({"path": self.path, "type": self.headers["Content-Type"], "body": asked}), flush=True)
        said = asked["Pod"]["metadata"].get("annotations") or {}
        answer = json.dumps(globals()[verb](asked, said)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def configuration(port: int, path: str = "/scheduler") -> Object:
    """Return what a kube-scheduler of 1.20 is told to have our extender asked about pods with shares."""
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}{path}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        # Ten points times this are more than all of kube-scheduler's own scores together.
        "weight": WEIGHT,
        "nodeCacheCapable": True,
        "managedResources": [{"name": RESOURCE, "ignoredByScheduler": False}],
        "httpTimeout": "5s",
        "ignorable": False,
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": True, "resourceNamespace": NAMESPACE, "resourceName": SCHEDULER},
        "profiles": [{"schedulerName": SCHEDULER}],
        "extenders": [extender],
    }


def access() -> list[Object]:
    """Return what a second scheduler may do: all that the first may, and to lead under a name of its own."""
    account = {"kind": "ServiceAccount", "name": SCHEDULER, "namespace": NAMESPACE}
    group, rbac = "rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1"

    def binding(name: str, kind: str, role: str, namespace: str | None = None) -> Object:
        return {
            "apiVersion": rbac,
            "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [account],
        }

    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]}
    role = {"kind": "Role", "metadata": {"name": SCHEDULER, "namespace": NAMESPACE}, "rules": [leases]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SCHEDULER, "namespace": NAMESPACE}},
        {"apiVersion": rbac, **role},
        binding(SCHEDULER, "Role", SCHEDULER, NAMESPACE),
        binding("toy-kube-scheduler", "ClusterRole", "system:kube-scheduler"),
        binding("toy-volume-scheduler", "ClusterRole", "system:volume-scheduler"),
        binding("toy-authentication", "Role", "extension-apiserver-authentication-reader", "kube-system"),
    ]


def deployment() -> list[Object]:
    """Return the pod of both containers and its settings."""
    settings = {"scheduler.json": json.dumps(configuration(PORT)), "extender.py": EXTENDER}
    labels = {"app": SCHEDULER}
    mounts = {"volumeMounts": [{"name": "settings", "mountPath": "/settings"}], "imagePullPolicy": "IfNotPresent"}
    asks = ["kube-scheduler", "--config=/settings/scheduler.json", "--v=2"]
    answers = ["/opt/sharepod/bin/python", "/settings/extender.py", str(PORT)]
    containers = [
        {"name": "kube-scheduler", "image": KUBE_SCHEDULER, "command": asks, **mounts},
        {"name": "extender", "image": SHAREPOD, "command": answers, **mounts},
    ]
    spec = {
        "serviceAccountName": SCHEDULER,
        "containers": containers,
        "volumes": [{"name": "settings", "configMap": {"name": SCHEDULER}}],
        "terminationGracePeriodSeconds": 1,
    }
    place = {"name": SCHEDULER, "namespace": NAMESPACE}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": settings},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": place,
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
    ]


class ToyScheduler:
    """The second scheduler, installed."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    def install(self) -> None:
        self.kubectl.apply_objects(*access(), *deployment())
        rollout = ("rollout", "status", f"deployment/{SCHEDULER}", f"--namespace={NAMESPACE}", "--timeout=150s")
        self.kubectl(*rollout, timeout_seconds=180)
        wait_until("the second scheduler leads", self._leads)

    def remove(self) -> None:
        """Take it away."""
        self.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        for name in ("toy-kube-scheduler", "toy-volume-scheduler"):
            self.kubectl("delete", "clusterrolebinding", name)
        self.kubectl("delete", "rolebinding", "toy-authentication", "--namespace=kube-system")

    def asked(self, pod: str, verb: str) -> list[Object]:
        """Return the bodies of the requests of a verb about a pod, in order."""
        log = self.kubectl.logs(f"deployment/{SCHEDULER}", "--container=extender", namespace=NAMESPACE)
        said = [json.loads(line) for line in log.splitlines()]
        assert {one["type"] for one in said} <= {"application/json"}
        wanted = [one["body"] for one in said if one["path"] == f"/scheduler/{verb}"]
        return [body for body in wanted if body["Pod"]["metadata"]["name"] == pod]

    def _leads(self) -> bool:
        log = self.kubectl.logs(f"deployment/{SCHEDULER}", "--container=kube-scheduler", namespace=NAMESPACE)
        return "successfully acquired lease" in log
