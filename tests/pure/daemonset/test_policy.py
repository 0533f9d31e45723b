"""Test what the API server refuses: the policies' own expressions, evaluated by another implementation of CEL.

The device plugin reads the same annotations: it must understand what is admitted and refuse what is refused.
"""

import copy
from pathlib import Path
from typing import Any

import cel
import kubernetes_validate
import pytest
import yaml
from manifests import DAEMONSET, OBJECTS, VERSIONS, Object

from sharepod.deviceplugin.core.terms import ELSEWHERE, KEYS, POD_KEYS, PodTerms, TermsError, read_terms

POLICIES = {
    item["metadata"]["name"].removeprefix("sharepod-"): item["spec"]
    for item in OBJECTS["policy"]
    if item["kind"] == "ValidatingAdmissionPolicy"
}
SCHEDULER = "system:serviceaccount:sharepod:sharepod-scheduler"


def pod(*units: object, annotations: dict[str, str] | None = None, **more: Any) -> Object:
    """Return a pod with containers a, b, … that hold these numbers of units; None: no share."""
    containers = [
        {"name": name, "image": "x"}
        | ({} if count is None else {"resources": {"limits": {"sharepod.io/gpu": count, "cpu": "1"}}})
        | more
        for name, count in zip("abcd", units or ("30",), strict=False)
    ]
    metadata: Object = {"name": "p", "namespace": "team"}
    if annotations is not None:
        metadata["annotations"] = {
            (key if "/" in key else f"sharepod.io/{key}"): text for key, text in annotations.items()
        }
    return {"metadata": metadata, "spec": {"containers": containers}}


def refusals(
    policy: str, new: Object, old: Object | None = None, *, user: str = "someone", params: Object | None = None
) -> list[str]:
    """Return the messages with which a policy refuses a request, as the API server would compose them."""
    spec, variables = POLICIES[policy], {}
    request = {"userInfo": {"username": user}, "namespace": new["metadata"]["namespace"]}
    context = {"object": new, "oldObject": old, "request": request, "params": params, "variables": variables}
    for variable in spec["variables"]:
        variables[variable["name"]] = cel.evaluate(variable["expression"], context)
    found = []
    for validation in spec["validations"]:
        if cel.evaluate(validation["expression"], context) is not True:
            message = validation.get("message")
            found.append(message or cel.evaluate(validation["messageExpression"], context))
    return found


def understood(item: Object) -> list[PodTerms]:
    """Return the terms of each container that holds a share, as the device plugin reads them. Raises TermsError."""
    found = {one["name"]: one.get("resources", {}).get("limits", {}) for one in item["spec"]["containers"]}
    units = {name: int(limits.get("sharepod.io/gpu", 0)) for name, limits in found.items()}
    annotations = item["metadata"].get("annotations", {})
    return [read_terms(annotations, name, count, containers=tuple(units)) for name, count in units.items() if count]


RIGHT: list[tuple[tuple[object, ...], dict[str, str]]] = [
    (("30",), {}),
    ((30,), {"limit": "60", "memory": "10Gi", "class": "latency"}),
    (("100",), {"devices": "2", "same-device": "false"}),
    (("100",), {"devices": "2", "limit": "50"}),
    (("400",), {}),
    (("150",), {"devices": "3", "a.limit": "70"}),
    (("30", "40"), {"same-device": "true", "b.class": "batch", "a.paused": "true"}),
    (("30", None), {"memory": "1.5G"}),
    (("30",), {"gang": "x", "gang-size": "4", "gang-min": "2"}),
    (("30",), {"yield": "pause"}),
    ((None,), {"example.com/limit": "2000", "sharepod.example.com/x": "y"}),
    ((None,), {"nvidia.cdi.k8s.io/container.a": "nvidia.com/gpu=all"}),
]
WRONG: list[tuple[tuple[object, ...], dict[str, str], str]] = [
    (("30",), {"limits": "60"}, "unknown annotation sharepod.io/limits: known are limit, memory"),
    (("30",), {"a.gang": "x"}, "unknown annotation sharepod.io/a.gang"),
    (("30",), {"SharePod.io/limit": "60"}, "in lower case"),
    (("30",), {"z.limit": "60"}, "must name a container of the pod"),
    (("30",), {"limit": "60%"}, "whole percentage from 1 to 100"),
    (("30",), {"limit": "0"}, "whole percentage from 1 to 100"),
    (("30",), {"a.limit": "101"}, "whole percentage from 1 to 100"),
    (("30",), {"limit": "20"}, "below the request"),
    (("30", "60"), {"limit": "70", "b.limit": "50"}, "below the request"),
    (("30",), {"memory": "10GB"}, "a size such as 10Gi"),
    (("30",), {"memory": "-1Gi"}, "a size such as 10Gi"),
    (("30",), {"class": "fast"}, "latency, standard or batch"),
    (("30",), {"devices": "0"}, "whole number from 1 to 16"),
    (("30",), {"devices": "17"}, "whole number from 1 to 16"),
    (("100",), {"devices": "3"}, "divide evenly"),
    (("300",), {"a.devices": "2"}, "divide evenly over sharepod.io/devices, at most 100"),
    (("150",), {}, "above 100 is whole devices"),
    (("30",), {"paused": "yes"}, '"true" or "false"'),
    (("30",), {"same-device": "True"}, '"true" or "false"'),
    (("30",), {"yield": "true"}, "sharepod.io/yield is limit or pause"),
    (("30",), {"a.yield": "pause"}, "unknown annotation sharepod.io/a.yield"),
]


@pytest.mark.parametrize(("units", "annotations"), RIGHT)
def test_what_can_be_is_admitted_and_understood(units: tuple[object, ...], annotations: dict[str, str]) -> None:
    item = pod(*units, annotations=annotations)
    assert refusals("annotations", item) == []
    assert len(understood(item)) == sum(count is not None for count in units)


@pytest.mark.parametrize(("units", "annotations", "message"), WRONG)
def test_what_cannot_be_is_refused_with_one_message_and_by_the_plugin_too(
    units: tuple[object, ...], annotations: dict[str, str], message: str
) -> None:
    item = pod(*units, annotations=annotations)
    [said] = refusals("annotations", item)
    assert message in said
    with pytest.raises(TermsError):
        understood(item)


@pytest.mark.parametrize("name", ["limit", "memory", "class", "a.devices", "gang", "model", "gpu"])
def test_an_annotation_on_a_pod_without_a_share_is_refused_with_the_place_of_the_resource(name: str) -> None:
    assert any("no container has sharepod.io/gpu" in text for text in refusals("annotations", lost(name)))
    assert refusals("annotations", lost(name), lost(name)) == [], "one that runs can be finished"


def lost(name: str) -> Object:
    """Return a pod without a share that has an annotation of ours."""
    return pod(None, annotations={name: "1"})


@pytest.mark.parametrize("name", ["nvidia.cdi.k8s.io/container.a", "nvidia.cdi.k8s.io/pod", "cdi.k8s.io/x"])
def test_a_pod_with_a_share_names_no_devices_by_cdi(name: str) -> None:
    plain, named = pod("30", annotations={}), pod("30", annotations={name: "nvidia.com/gpu=all"})
    for old in (None, plain):
        [said] = refusals("annotations", named, old)
        assert "its share says what it sees" in said
    assert refusals("annotations", named, named) == []
    assert refusals("annotations", pod("30", annotations={"notcdi.k8s.io/x": "y"})) == []


@pytest.mark.parametrize("name", ["NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"])
def test_the_cap_of_a_share_is_set_by_its_annotation_alone(name: str) -> None:
    environment = [{"name": name, "value": "1024"}]
    [said] = refusals("devices", pod("30", env=environment))
    assert "give sharepod.io/memory" in said
    assert refusals("devices", pod(None, env=environment)) == []


@pytest.mark.parametrize("path", sorted(DAEMONSET.glob("examples/*/pods.yaml")), ids=lambda path: path.parent.name)
def test_an_example_is_valid_admitted_and_understood(path: Path) -> None:
    for item in filter(None, yaml.safe_load_all(path.read_text())):
        for release in VERSIONS:
            kubernetes_validate.validate(item, release, strict=True)
        item["metadata"]["namespace"] = "default"
        assert [refusals(policy, item) for policy in ("annotations", "devices")] == [[], []]
        assert understood(item)


def test_a_pod_without_annotations_is_no_concern_and_an_odd_quantity_is_left_to_the_plugin() -> None:
    assert refusals("annotations", pod("30")) == []
    assert refusals("chosen-device", pod("30")) == []
    assert refusals("annotations", pod("1k")) == []


def test_every_annotation_that_shares_or_the_scheduler_know_is_known() -> None:
    for key in ELSEWHERE:
        assert refusals("annotations", pod("30", annotations={key: "x"})) == [], key
    for key in KEYS + POD_KEYS:  # the value may be refused, but the key must be known
        for name in (key, f"a.{key}") if key in KEYS else (key,):
            said = refusals("annotations", pod("30", annotations={name: "x"}))
            assert not any("unknown annotation" in text for text in said), name


def test_an_update_is_judged_for_what_it_changes() -> None:
    old = pod("30", annotations={"limit": "60%", "memory": "10Gi"})
    new = copy.deepcopy(old)
    new["metadata"]["finalizers"] = []
    assert refusals("annotations", new, old) == []
    new["metadata"]["annotations"]["sharepod.io/memory"] = "lots"
    assert len(refusals("annotations", new, old)) == 1


@pytest.mark.parametrize("given", [{"device": "GPU-1"}, {"a.device": "GPU-1"}, {"yield": "pause"}, {"node": "n1"}])
def test_the_scheduler_alone_writes_changes_and_removes_what_it_decides(given: dict[str, str]) -> None:
    plain, decided = pod("30", annotations={}), pod("30", annotations=given)
    other = pod("30", annotations={"b.device": "GPU-2"})
    assert refusals("chosen-device", decided, plain, user=SCHEDULER) == []
    assert refusals("chosen-device", decided, decided, user="kubelet") == []
    for new, old in ((decided, None), (decided, plain), (plain, decided), (other, decided)):
        [said] = refusals("chosen-device", new, old)
        assert "are written by the scheduler alone" in said


def test_the_share_says_which_devices_a_container_sees_and_it_has_no_whole_ones_beside() -> None:
    environment = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    [said] = refusals("devices", pod("30", env=environment))
    assert "must not set NVIDIA_VISIBLE_DEVICES" in said
    assert refusals("devices", pod(None, env=environment)) == []
    assert refusals("devices", pod("30", env=[{"name": "A", "value": "b"}])) == []
    beside = pod(None)
    beside["spec"]["initContainers"] = pod("30", env=environment)["spec"]["containers"]
    assert len(refusals("devices", beside)) == 1
    both = pod("30")
    both["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    [said] = refusals("devices", both)
    assert "nvidia.com/" in said


@pytest.mark.parametrize(
    ("data", "admitted"),
    [
        ({"latency": "*\n"}, True),
        ({"latency": "other\n  team\n"}, True),
        ({"latency": "team-2\nmy-team\n"}, False),
        ({"latency": ""}, False),
        ({}, False),
    ],
)
def test_an_operator_says_whose_pods_may_be_of_class_latency(data: dict[str, str], admitted: bool) -> None:
    params = {"data": data} if data else {}
    for key in ("class", "a.class"):
        said = refusals("classes", pod("30", annotations={key: "latency"}), params=params)
        assert (said == []) is admitted
        assert admitted or "namespace team may not use sharepod.io/class latency" in said[0]
    assert refusals("classes", pod("30", annotations={"class": "batch"}), params=params) == []
    kept = pod("30", annotations={"class": "latency"})
    assert refusals("classes", kept, kept, params=params) == []


def test_nothing_is_let_through_because_a_policy_fails() -> None:
    assert {spec["failurePolicy"] for spec in POLICIES.values()} == {"Fail"}
    for item in OBJECTS["policy"]:
        if item["kind"] == "ValidatingAdmissionPolicyBinding":
            assert item["spec"]["validationActions"] == ["Deny"]
            assert item["spec"]["policyName"] == item["metadata"]["name"]
