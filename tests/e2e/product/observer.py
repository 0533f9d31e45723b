"""Observes what pods really got of the simulated devices, by a pod of the cluster that asks neither agent nor hook.

The observer's program runs on the node as long as the tests last. It looks twenty times a second and prints one line
per look. A test reads the lines of a span of time afterwards.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kubectl import Kubectl
from sharepod_image import NAME as IMAGE

NAMESPACE = "sharepod-e2e"
LOOK_S = 0.05
SECOND_NS = 1_000_000_000
ASK_S = 5
PROGRAM = r"""
import json, re, socket, time
from sharepod.simgpu.truth import Truth

STATE, AGENT = "/run/sharepod-gpus/state", "/run/sharepod/agent.sock"
POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}).*?([0-9a-f]{64})")
names = {}

def name_of(context):
    if context.context not in names and context.alive:
        try:
            found = POD.search(open(f"/proc/{context.pid}/cgroup").read())
        except OSError:
            found = None
        if found:
            names[context.context] = found[1].replace("_", "-") + "/" + found[2]
    return names.get(context.context, "unknown")

def agent_answers():
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(AGENT)
        except OSError:
            return False
        return True

while True:
    try:
        truth = Truth(STATE)
        break
    except OSError:
        time.sleep(0.2)
while True:
    answers, used, memory = agent_answers(), {}, {}
    devices = truth.devices()
    now_ns = truth.now_ns()
    for device in devices:
        for context in truth.contexts(device.index):
            key = f"{name_of(context)}/{device.index}"
            used[key] = used.get(key, 0) + context.busy_ns
            memory[key] = memory.get(key, 0) + (context.memory_bytes if context.alive else 0)
    print(json.dumps({"now_ns": now_ns, "agent": answers, "used": used, "memory": memory}), flush=True)
    time.sleep(LOOK_S)
"""


@dataclass(frozen=True, slots=True)
class Look:
    """One look: the simulator's clock, if the agent's socket answers, and the use by `pod uid/container id/device`."""

    now_ns: int
    agent: bool
    used_ns: Mapping[str, int]
    memory_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks of a span of time, in order."""

    all: Sequence[Look]

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the looks that the observer printed, without a line that is cut off at either end."""
        found = []
        for line in text.splitlines():
            try:
                said: dict[str, Any] = json.loads(line)
                found.append(Look(said["now_ns"], said["agent"], said["used"], said["memory"]))
            except (ValueError, KeyError):
                continue
        return cls(found)

    def between(self, begin_ns: int, end_ns: int) -> Self:
        """Return the looks of a span."""
        return type(self)([look for look in self.all if begin_ns <= look.now_ns <= end_ns])

    def seconds(self) -> list[Self]:
        """Return the looks of each whole second of the span; a span below a second is one piece."""
        begin, end = self.all[0].now_ns, self.all[-1].now_ns
        pieces = [self.between(at, at + SECOND_NS) for at in range(begin, end - SECOND_NS + 1, SECOND_NS)]
        return [piece for piece in pieces if len(piece.all) > 1] or [self]

    @property
    def span_ns(self) -> int:
        """Return the time from the first look to the last."""
        return self.all[-1].now_ns - self.all[0].now_ns

    def ratio(self, pod: str) -> float:
        """Return the use of a pod, or of a container (`uid/container id`), over the span: 1 is a whole device."""
        first, last = self.all[0].used_ns, self.all[-1].used_ns
        return sum(last[key] - first.get(key, 0) for key in last if key.startswith(pod)) / self.span_ns

    def parts(self, *pods: str) -> list[float]:
        """Return each pod's part of what these pods used together."""
        used = [self.ratio(pod) for pod in pods]
        return [each / (sum(used) or 1) for each in used]


class Observer:
    """The observer's pod, on the named node or on any node."""

    def __init__(self, kubectl: Kubectl, node: str | None = None) -> None:
        self._kubectl = kubectl
        self._node = node
        self.pod = f"observer-{node}" if node else "observer"

    def start(self) -> None:
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["/opt/sharepod/bin/python", "-c", PROGRAM.replace("LOOK_S", str(LOOK_S))],
            "securityContext": {"runAsUser": 0},
            "volumeMounts": [
                {"name": "gpus", "mountPath": "/run/sharepod-gpus"},
                {"name": "runtime", "mountPath": "/run/sharepod", "readOnly": True},
            ],
        }
        volumes = [
            {"name": "gpus", "hostPath": {"path": "/run/sharepod-gpus", "type": "DirectoryOrCreate"}},
            {"name": "runtime", "hostPath": {"path": "/run/sharepod", "type": "DirectoryOrCreate"}},
        ]
        spec = {
            "hostPID": True, "containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}], **({"nodeName": self._node} if self._node else {}),
        }  # fmt: skip
        metadata = {"name": self.pod, "namespace": NAMESPACE}
        self._kubectl.apply_objects(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        )
        self._kubectl.wait_for("condition=Ready", f"pod/{self.pod}", namespace=NAMESPACE)

    def looks(self, seconds: float) -> Looks:
        """Return the looks of the last seconds."""
        return self.looks_since(time.monotonic() - seconds)

    def looks_since(self, began: float) -> Looks:
        """Return the looks since a time of this process's monotonic clock, and up to a second before it.

        The request to the node begins earlier, as it counts whole seconds back from the request. The node's own clock
        then selects the looks, so this works for a cluster on another machine too.
        """
        asked_s = math.ceil(time.monotonic() - began) + ASK_S
        found = Looks.read(self._kubectl.logs(self.pod, f"--since={asked_s}s", namespace=NAMESPACE))
        if not found.all:
            return found
        end_ns = found.all[-1].now_ns
        return found.between(end_ns - round((time.monotonic() - began) * SECOND_NS), end_ns)
