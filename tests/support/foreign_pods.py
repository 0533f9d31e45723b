"""Pods written for other sharing systems, and what the API server would do with an answer."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

from hypothesis import strategies as st

from sharepod.deviceplugin.terms import PodTerms, read_terms
from sharepod.webhook.ask import Defaults
from sharepod.webhook.review import Decision, Request
from sharepod.webhook.translate import decide

Object = dict[str, Any]
H200 = 141 * 2**30


def pod(*resources: dict[str, object], **more: Any) -> Object:
    """Return a pod whose containers a, b, … have these limits; the API server copies them to the requests."""
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


def request(item: Object, operation: str = "CREATE") -> Request:
    return Request("uid-1", "team", "p", operation, dry_run=False, object=item)


def decided(item: Object, defaults: Defaults | None = None) -> Decision:
    """Return the decision on a pod that is being made; the pod is not touched by it."""
    before = copy.deepcopy(item)
    decision = decide(request(item), defaults or Defaults())
    assert item == before
    return decision


def translated(item: Object, defaults: Defaults | None = None) -> Object:
    """Return the pod as the API server would make it."""
    decision = decided(item, defaults)
    assert decision.refusal == ""
    return patched(item, decision)


def patched(item: Object, decision: Decision) -> Object:
    """Return a pod with a decision's patch applied, which has to be one by RFC 6902."""
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
    """Return what the device plugin reads in a pod, by container."""
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
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "p",
            "namespace": "team",
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": item,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            **more,
        },
    }


def response(body: bytes) -> Object:
    """Return what an answer says, its patch decoded."""
    answer = json.loads(body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    said: Object = answer["response"]
    if "patch" in said:
        assert said["patchType"] == "JSONPatch"
        said["patch"] = json.loads(base64.b64decode(said["patch"], validate=True))
    return said


@st.composite
def right_pods(draw: st.DrawFn) -> Object:
    """Return a pod that is rightly written for one system, and says of ours what does not contradict."""
    words = {"kai": _right_kai, "hami": _right_hami, "kubeshare": _right_kubeshare}
    system = draw(st.sampled_from(sorted(words)))
    made: Object = words[system](draw)
    said = made["metadata"].setdefault("annotations", {})
    if draw(st.booleans()):
        said["sharepod.io/class"] = draw(st.sampled_from(["batch", "standard", "latency"]))
    if draw(st.booleans()):
        said |= {"sharepod.io/gang": "g", "sharepod.io/paused": "false", "example.com/limit": "x"}
    made["spec"]["schedulerName"] = f"{system}-scheduler"
    return made


def _right_kai(draw: st.DrawFn) -> Object:
    said: dict[str, str] = {}
    percent = draw(st.integers(1, 99))
    if draw(st.booleans()):
        said["gpu-fraction"] = draw(st.sampled_from([f"{percent / 100:.2f}", f".{percent:02}", f"0.{percent:02}000"]))
    else:
        said["gpu-memory"] = str(draw(st.integers(1, 2**30)))
    if draw(st.booleans()):
        said["gpu-fraction-num-devices"] = str(draw(st.integers(1, 16)))
    if draw(st.booleans()):
        said["gpu-sm-percentage"] = str(draw(st.integers(percent, 100)))
    if draw(st.booleans()):
        said["gpu-fraction-container-name"] = draw(st.sampled_from("ab"))
    return pod({}, {"cpu": "1"}, annotations=said)


def _right_hami(draw: st.DrawFn) -> Object:
    memory, percent = st.integers(1, 2**30), st.integers(1, 100)
    container = st.one_of(
        st.fixed_dictionaries({"gpumem": memory}, optional={"gpucores": percent}),
        st.fixed_dictionaries({"gpumem-percentage": percent}),
        percent.map(lambda both: {"gpumem-percentage": both, "gpucores": both}),
        st.fixed_dictionaries({"gpucores": percent}),
    )
    containers = []
    for item in draw(st.lists(container, min_size=1, max_size=3)):
        more = draw(st.fixed_dictionaries({}, optional={"gpu": st.integers(1, 16), "priority": st.integers(0, 1)}))
        containers.append({**item, **more})
    return hami(*containers, {})


def _right_kubeshare(draw: st.DrawFn) -> Object:
    if draw(st.integers(0, 4)) == 0:
        whole = f"{draw(st.integers(2, 16))}.0"
        return kubeshare(gpu_request=whole, gpu_limit=whole)
    limit = draw(st.integers(1, 100))
    said = {"gpu_limit": f"{limit / 100:.2f}", "gpu_request": f"{draw(st.integers(1, limit)) / 100:.2f}"}
    if draw(st.booleans()):
        said["gpu_mem"] = str(draw(st.integers(2**20, 2**50)))
        if draw(st.booleans()):
            del said["gpu_request"]
    return kubeshare(draw(st.sampled_from(["labels", "annotations"])), **said)
