"""The rules of pods that our writes meet: gates can only be removed, and a gated pod's node selector only grows. Pure.

Kubernetes lets a few more fields change, such as images, tolerations, and the node affinity of a gated pod. None of our
code changes them, so the double refuses that.
"""

from __future__ import annotations

from typing import Any

from .refusal import invalid
from .store import copied

Body = dict[str, Any]
Faults = list[tuple[str, str]]

_GATED = {
    "type": "PodScheduled", "status": "False", "lastProbeTime": None, "lastTransitionTime": None,
    "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
}  # fmt: skip


def gates_of(pod: Body) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def begin(pod: Body) -> None:
    """Give a new pod its first status."""
    pod["status"] = {"phase": "Pending"}
    if gates_of(pod):
        pod["status"]["conditions"] = [dict(_GATED)]


def check_changed(before: Body, after: Body) -> None:
    """Raise Refusal if a write changes a field of a pod that may not change."""
    old, new = before["spec"], copied(after["spec"])
    faults: Faults = []
    known = gates_of(before)
    for number, name in enumerate(gates_of(after)):
        if name not in known:
            why = f"Forbidden: only deletion is allowed, but found new scheduling gate '{name}'"
            faults.append((f"spec.schedulingGates[{number}].name", why))
    if known:
        faults += _check_selector(old.get("nodeSelector") or {}, new.get("nodeSelector") or {})
    may_change = {"schedulingGates"} | ({"nodeSelector"} if known else set())
    differ = sorted(key for key in {*old, *new} - may_change if (old.get(key) or None) != (new.get(key) or None))
    if differ:
        why = f"Forbidden: pod updates may not change fields other than {sorted(may_change)}: {differ} differ"
        faults.append(("spec", why))
    if faults:
        raise invalid("Pod", before["metadata"]["name"], faults)


def _check_selector(old: Body, new: Body) -> Faults:
    """Return the fault of a gated pod's new node selector; none: it only adds to the old one."""
    if all(new.get(key) == value for key, value in old.items()):
        return []
    why = f"Invalid value: {new}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
    return [("spec.nodeSelector", why)]


def bound(pod: Body, binding: Body, now: str) -> Body:
    """Bind a pod to a node, in place, and return it.

    It is not checked whether it may be bound, as none of our code binds pods.
    """
    pod["spec"]["nodeName"] = binding["target"]["name"]
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [item for item in conditions if item["type"] != "PodScheduled"]
    conditions.append({"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now})
    return pod
