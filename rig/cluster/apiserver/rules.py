"""The rules of pods, as Kubernetes 1.30 and later hold them: what is filled in, what may be made, what may change.

Pure. A scheduling gate can only be taken away, a gated pod's node selector and node affinity only be tightened; of all
pods images, deadlines and more tolerations may change; the node comes by binding alone.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from .refusal import Refusal, conflict, invalid
from .store import copied

if TYPE_CHECKING:
    from collections.abc import Callable

Body = dict[str, Any]
Faults = list[tuple[str, str]]

_UPDATABLE = (
    "`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
    "`spec.tolerations` (only additions to existing tolerations)",
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
)  # fmt: skip
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_GATED = {
    "type": "PodScheduled", "status": "False", "lastProbeTime": None, "lastTransitionTime": None,
    "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
}  # fmt: skip


def gates_of(pod: Body) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def fill(pod: Body, priority_of: Callable[[str], Body | None]) -> None:
    """Fill in what a new pod leaves out. Raises Refusal for a priority class that is not there."""
    spec = pod.setdefault("spec", {})
    for key, value in {
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        "securityContext": {}, "schedulerName": "default-scheduler", "enableServiceLinks": True,
        "serviceAccountName": "default",
    }.items():  # fmt: skip
        spec.setdefault(key, value)
    found = priority_of(spec.get("priorityClassName", ""))
    if found is None and spec.get("priorityClassName"):
        name = pod["metadata"].get("name", "")
        raise Refusal(
            403, "Forbidden", f'pods "{name}" is forbidden: no PriorityClass with name {spec["priorityClassName"]} '
            "was found", about="pods", name=name,
        )  # fmt: skip
    if found is not None:
        spec["priorityClassName"] = found["metadata"]["name"]
    spec["priority"] = int(found["value"]) if found is not None else 0
    spec.setdefault("preemptionPolicy", (found or {}).get("preemptionPolicy", "PreemptLowerPriority"))
    for container in _containers(spec):
        container.setdefault("imagePullPolicy", "IfNotPresent")
        resources = container.setdefault("resources", {})
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
    pod["status"] = {"phase": "Pending", "qosClass": _qos(spec)}
    if spec.get("schedulingGates"):
        pod["status"]["conditions"] = [dict(_GATED)]


def _containers(spec: Body) -> list[Body]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _qos(spec: Body) -> str:
    found = [container["resources"] for container in _containers(spec)]
    both = [
        (item.get("requests", {}).get(name), item.get("limits", {}).get(name))
        for item in found for name in ("cpu", "memory")
    ]  # fmt: skip
    if not any(request or limit for request, limit in both):
        return "BestEffort"
    return "Guaranteed" if all(limit and request == limit for request, limit in both) else "Burstable"


def check_new(pod: Body) -> None:
    """Raise Refusal for a pod that cannot be."""
    spec, faults = pod["spec"], []
    if not spec.get("containers"):
        faults.append(("spec.containers", "Required value"))
    for number, container in enumerate(spec.get("containers") or ()):
        missing = [key for key in ("name", "image") if not container.get(key)]
        faults += [(f"spec.containers[{number}].{key}", "Required value") for key in missing]
        faults += _check_resources(f"spec.containers[{number}].resources", container["resources"])
    names = gates_of(pod)
    for number, name in enumerate(names):
        if name in names[:number]:
            faults.append((f"spec.schedulingGates[{number}].name", f'Duplicate value: "{name}"'))
    if names and spec.get("nodeName"):
        faults.append(("spec.nodeName", "Forbidden: cannot be set until all schedulingGates have been cleared"))
    if faults:
        raise invalid("Pod", pod["metadata"]["name"], faults)


def _check_resources(field: str, resources: Body) -> Faults:
    faults: Faults = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name in sorted(set(limits) | set(requests)):
        if "/" not in name:
            continue
        limit, request = limits.get(name), requests.get(name)
        if limit is None:
            faults.append((f"{field}.limits", "Required value: Limit must be set for non overcommitable resources"))
        elif str(limit) != str(request):
            why = f'Invalid value: "{request}": must be equal to {name} limit of {limit}'
            faults.append((f"{field}.requests", why))
        elif not str(limit).removesuffix("k").isdecimal():
            faults.append((f"{field}.limits[{name}]", f'Invalid value: "{limit}": must be an integer'))
    return faults


def check_changed(before: Body, after: Body) -> None:
    """Raise Refusal where a write changes what may not change of a pod."""
    old, new = before["spec"], copied(after["spec"])
    faults: Faults = []
    known = gates_of(before)
    for number, name in enumerate(gates_of(after)):
        if name not in known:
            why = f"Forbidden: only deletion is allowed, but found new scheduling gate '{name}'"
            faults.append((f"spec.schedulingGates[{number}].name", why))
    if known:
        faults += _check_selector(old.get("nodeSelector") or {}, new.get("nodeSelector") or {})
        faults += _check_affinity(_node_affinity(old), _node_affinity(new))
        _as_before(old, new, "nodeSelector")
        _put_back_node_affinity(old, new)
    faults += _check_tolerations(old.get("tolerations") or [], new.get("tolerations") or [])
    faults += _check_deadline(old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds"))
    for key in ("schedulingGates", "tolerations", "activeDeadlineSeconds"):
        _as_before(old, new, key)
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and new.get("terminationGracePeriodSeconds") == 1:
        _as_before(old, new, "terminationGracePeriodSeconds")
    for key in ("containers", "initContainers"):
        for was, now in zip(old.get(key) or (), new.get(key) or (), strict=False):
            if now.get("image"):
                _as_before(was, now, "image")
    if _filled(old) != _filled(new):
        names = sorted(key for key in {*old, *new} if _filled(old).get(key) != _filled(new).get(key))
        why = f"Forbidden: pod updates may not change fields other than {','.join(_UPDATABLE)}\n{names} differ"
        faults.append(("spec", why))
    if faults:
        raise invalid("Pod", before["metadata"]["name"], faults)


def _filled(spec: Body) -> Body:
    return {key: value for key, value in spec.items() if value not in (None, {}, [])}


def _as_before(old: Body, new: Body, key: str) -> None:
    new.pop(key, None)
    if key in old:
        new[key] = copy.deepcopy(old[key])


def _check_selector(old: Body, new: Body) -> Faults:
    if all(new.get(key) == value for key, value in old.items()):
        return []
    why = f"Invalid value: {new}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
    return [("spec.nodeSelector", why)]


def _node_affinity(spec: Body) -> Body:
    return (spec.get("affinity") or {}).get("nodeAffinity") or {}


def _put_back_node_affinity(old: Body, new: Body) -> None:
    affinity = {key: value for key, value in (new.get("affinity") or {}).items() if key != "nodeAffinity"}
    if _node_affinity(old):
        affinity["nodeAffinity"] = _node_affinity(old)
    new["affinity"] = affinity
    if not affinity and not old.get("affinity"):
        del new["affinity"]


def _check_affinity(old: Body, new: Body) -> Faults:
    """What is preferred may change; of what is required each term may only get more expressions."""
    was = (old.get(_REQUIRED) or {}).get("nodeSelectorTerms")
    now = (new.get(_REQUIRED) or {}).get("nodeSelectorTerms")
    field = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    if was is None:
        return []
    if len(now or ()) != len(was):
        return [
            (field, f"Invalid value: {now}: no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        ]
    faults: Faults = []
    for number, (before, after) in enumerate(zip(was, now or (), strict=True)):
        kept = all(
            (after.get(key) or [])[: len(before.get(key) or [])] == (before.get(key) or [])
            for key in ("matchExpressions", "matchFields")
        )
        if not before and after:  # it matched nothing
            kept = False
        if not kept:
            why = f"Invalid value: {after}: only additions are allowed (no mutations or deletions)"
            faults.append((f"{field}[{number}]", why))
    return faults


def _check_tolerations(old: list[Body], new: list[Body]) -> Faults:
    def without_seconds(items: list[Body]) -> list[Body]:
        return [{key: value for key, value in item.items() if key != "tolerationSeconds"} for item in items]

    there = without_seconds(new)
    if all(item in there for item in without_seconds(old)):
        return []
    return [("spec.tolerations", "Forbidden: existing toleration can not be modified except its tolerationSeconds")]


def _check_deadline(old: int | None, new: int | None) -> Faults:
    if old is not None and new is None:
        return [("spec.activeDeadlineSeconds", "Invalid value: null: must not update from a positive integer to nil")]
    if old is not None and new is not None and new > old:
        return [("spec.activeDeadlineSeconds", f"Invalid value: {new}: must be less than or equal to previous value")]
    return []


def check_status(before: Body, after: Body) -> None:
    """Raise Refusal where a write of the status changes what it may not."""
    if before.get("status", {}).get("qosClass") not in (None, after.get("status", {}).get("qosClass")):
        raise invalid("Pod", before["metadata"]["name"], [("status.qosClass", "Invalid value: field is immutable")])


def bound(pod: Body, binding: Body, now: str) -> Body:
    """Return a pod that is bound to a node. Raises Refusal where it cannot be."""
    name, target = pod["metadata"]["name"], binding.get("target") or {}
    if not target.get("name") or target.get("kind", "Node") != "Node":
        raise invalid("Binding", name, [("target.name", "Required value")])
    uid = binding.get("metadata", {}).get("uid")
    if uid and uid != pod["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {pod['metadata']['uid']}"
        raise conflict("pods/binding", name, why)
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("nodeName"):
        why = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        raise conflict("pods/binding", name, why)
    if gates_of(pod):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    pod["spec"]["nodeName"] = target["name"]
    pod["metadata"].setdefault("annotations", {}).update(binding.get("metadata", {}).get("annotations") or {})
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [item for item in conditions if item["type"] != "PodScheduled"]
    conditions.append({"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now})
    return pod
