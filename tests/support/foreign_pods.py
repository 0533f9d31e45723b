"""Makes pods as written for other sharing systems, and does what the API server would do with the webhook's answer."""

import base64
import copy
import json
from typing import Any

from sharepod.deviceplugin.core.terms import PodTerms, read_terms
from sharepod.webhook.ask import Defaults
from sharepod.webhook.review import Decision, Request
from sharepod.webhook.translate import decide

Object = dict[str, Any]
GIB = 2**30
H200 = 141 * GIB


def pod(*resources: dict[str, object], **more: Any) -> Object:
    """Return a pod with these limits on its containers a, b, …; the API server copies them to the requests."""
    made: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"containers": [], "schedulerName": more.pop("scheduler", "default-scheduler")},
    }
    for name, limits in zip("abcd", resources or ({},), strict=False):
        container: Object = {"name": name, "image": "x"}
        if limits:
            container["resources"] = {"limits": dict(limits), "requests": {"cpu": "1", **limits}}
        container |= more.get(name, {})
        made["spec"]["containers"].append(container)
    for key in ("annotations", "labels"):
        if key in more:
            made["metadata"][key] = dict(more[key])
    if "init" in more:
        made["spec"]["initContainers"] = more["init"]
    return made


def kai(*containers: dict[str, object], **annotations: str) -> Object:
    """Return a pod of KAI's; gpu_fraction="0.5" is the annotation gpu-fraction."""
    said = {key.replace("_", "-"): text for key, text in annotations.items()}
    return pod(*containers, annotations=said)


def hami(*containers: dict[str, object], **more: Any) -> Object:
    """Return a pod of HAMi's; {"gpumem": 3000} is the resource nvidia.com/gpumem."""
    return pod(*({f"nvidia.com/{key}": value for key, value in item.items()} for item in containers), **more)


def kubeshare(where: str = "labels", **said: str) -> Object:
    """Return a pod of KubeShare's; gpu_limit="1.0" is sharedgpu/gpu_limit."""
    return pod({}, **{where: {f"sharedgpu/{key}": text for key, text in said.items()}})


def with_spec(item: Object, **more: Any) -> Object:
    """Return a pod with more in its spec."""
    return {**item, "spec": item["spec"] | more}


def request(item: Object, operation: str = "CREATE") -> Request:
    return Request("uid-1", "team", "p", operation, dry_run=False, object=item)


def decided(item: Object, defaults: Defaults | None = None) -> Decision:
    """Return the decision on a pod that is being created, and check that it leaves the pod unchanged."""
    before = copy.deepcopy(item)
    decision = decide(request(item), defaults or Defaults())
    assert item == before
    return decision


def translated(item: Object, defaults: Defaults | None = None) -> Object:
    """Return the pod as the API server would create it, with the decision's patch applied."""
    decision = decided(item, defaults)
    assert decision.refusal == ""
    return patched(item, decision)


def patched(item: Object, decision: Decision) -> Object:
    """Return a pod with a decision's patch applied; the patch has to be valid by RFC 6902."""
    result = copy.deepcopy(item)
    for operation in json.loads(json.dumps(decision.patch)):
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = result
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        assert isinstance(place, dict), "no operation adds or removes whole containers"
        if operation["op"] in ("remove", "replace"):
            assert last in place
        if operation["op"] == "remove":
            del place[last]
        else:
            place[last] = operation["value"]
    return result


def shares(item: Object) -> dict[str, PodTerms]:
    """Return the terms that the device plugin reads in a pod, by container."""
    containers = [*item["spec"]["containers"], *item["spec"].get("initContainers", ())]
    names = [container["name"] for container in containers]
    found = {}
    for container in containers:
        resources = container.get("resources", {})
        units = resources.get("limits", {}).get("sharepod.io/gpu")
        assert resources.get("requests", {}).get("sharepod.io/gpu") == units
        if units is not None:
            annotations = item["metadata"].get("annotations", {})
            found[container["name"]] = read_terms(annotations, container["name"], int(units), containers=names)
    return found


def review(item: object, **more: Any) -> Object:
    """Return an AdmissionReview as the API server sends it."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "p",
            "namespace": "team",
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": item,
            "oldObject": None,
            "dryRun": False,
            **more,
        },
    }


def response(body: bytes) -> Object:
    """Return the response of an answer, with its patch decoded."""
    answer = json.loads(body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    said: Object = answer["response"]
    if "patch" in said:
        assert said["patchType"] == "JSONPatch"
        said["patch"] = json.loads(base64.b64decode(said["patch"], validate=True))
    return said


RIGHT: list[tuple[Object, tuple[int, int, int, int | None, str]]] = [
    (kai(gpu_fraction="0.5"), (50, 1, 100, None, "standard")),
    (kai(gpu_fraction=".25"), (25, 1, 100, None, "standard")),
    (kai(gpu_fraction="0.070"), (7, 1, 100, None, "standard")),
    (kai(gpu_fraction="0.5", gpu_fraction_num_devices="2"), (50, 2, 100, None, "standard")),
    (kai(gpu_fraction="0.3", gpu_sm_percentage="40"), (30, 1, 40, None, "standard")),
    (kai(gpu_memory="4096"), (10, 1, 100, 4 * GIB, "standard")),
    (kai(gpu_memory="4096", gpu_fraction_num_devices="3"), (10, 3, 100, 4 * GIB, "standard")),
    (kai(gpu_memory="4096", gpu_sm_percentage="5"), (5, 1, 5, 4 * GIB, "standard")),
    (hami({"gpu": "1", "gpumem": "3k", "gpucores": "30"}), (30, 1, 100, 3000 * 2**20, "standard")),
    (hami({"gpumem": 4096, "gpucores": 30}), (30, 1, 100, 4 * GIB, "standard")),
    (hami({"gpu": 2, "gpumem": 4096, "gpucores": 30}), (30, 2, 100, 4 * GIB, "standard")),
    (hami({"gpu": 1, "gpumem": 4096}), (10, 1, 100, 4 * GIB, "standard")),
    (hami({"gpu": 1, "gpumem-percentage": 40}), (40, 1, 100, None, "standard")),
    (hami({"gpu": 1, "gpumem-percentage": 40, "gpucores": 40}), (40, 1, 100, None, "standard")),
    (hami({"gpu": 1, "gpumem-percentage": 100}), (100, 1, 100, None, "standard")),
    (hami({"gpu": 4, "gpucores": 100}), (100, 4, 100, None, "standard")),
    (hami({"gpu": 1, "priority": 1}), (100, 1, 100, None, "batch")),
    (hami({"gpu": 1, "priority": 0, "gpumem": 0}), (100, 1, 100, None, "standard")),
    (kubeshare(gpu_request="0.3", gpu_limit="0.6"), (30, 1, 60, None, "standard")),
    (kubeshare(gpu_request="0.5", gpu_limit="1.0", gpu_mem="1073741824"), (50, 1, 100, GIB, "standard")),
    (kubeshare("annotations", gpu_request="1", gpu_limit="1"), (100, 1, 100, None, "standard")),
    (kubeshare(gpu_request="2.0", gpu_limit="2.0"), (100, 2, 100, None, "standard")),
    (kubeshare(gpu_limit="0.4", gpu_mem="1073741825"), (1, 1, 40, GIB + 1, "batch")),
    (kai({}, {"cpu": "1"}, gpu_fraction="0.5", gpu_fraction_container_name="b"), (50, 1, 100, None, "standard")),
]
"""Valid pods and the share of each: percent, devices, limit, bytes and class, each value per device."""
