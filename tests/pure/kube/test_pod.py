"""Test how a pod is read from the API server's JSON, whatever that holds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rig.cluster.apiserver import pod
from sharepod.kube.pod import Container, Pod, read_draft, read_pod

RESOURCE = "sharepod.io/gpu"


def read(body: dict[str, Any]) -> Pod:
    found = read_pod(body, RESOURCE)
    assert found is not None
    return found


def test_the_cgroup_of_a_static_pod_is_named_by_its_manifests_hash_and_no_tenant_may_claim_one() -> None:
    value = "0123456789abcdef0123456789abcdef"
    tenant = read(pod("a", annotations={"kubernetes.io/config.hash": value}))
    mirror = read(pod("b", annotations={"kubernetes.io/config.hash": value, "kubernetes.io/config.mirror": value}))
    victim = "5451127c-27f4-4f0f-8d5a-0c1b8e6f2a11"
    thief = read(pod("c", annotations={"kubernetes.io/config.hash": victim, "kubernetes.io/config.mirror": victim}))
    assert (tenant.cgroup_uid, mirror.cgroup_uid, thief.cgroup_uid) == (tenant.uid, value, thief.uid)


def test_the_controller_of_a_pod_is_the_owner_that_says_so() -> None:
    body = pod("a")
    assert read(body).controller == ""
    body["metadata"]["ownerReferences"] = [{"uid": "u1"}, None, {"uid": "u2", "controller": True}]
    assert read(body).controller == "u2"


@pytest.mark.parametrize(
    ("kind", "name", "owner"),
    [
        ("Job", "train", "Job/train"),
        ("Job", "nightly-29012345", "CronJob/nightly"),
        ("Job", "run-7", "Job/run-7"),
        ("ReplicaSet", "web-5d4f", "Deployment/web"),
        ("ReplicaSet", "alone", "ReplicaSet/alone"),
        ("StatefulSet", "db", "StatefulSet/db"),
        ("Job\n", "x", ""),
        ("Job", "x" * 300, ""),
        ("", "x", ""),
    ],
)
def test_the_workload_of_a_pod_is_named_as_users_know_it(kind: str, name: str, owner: str) -> None:
    body = pod("a")
    body["metadata"]["labels"] = {"pod-template-hash": "5d4f"}
    body["metadata"]["ownerReferences"] = [{"uid": "u", "controller": True, "kind": kind, "name": name}]
    assert read(body).owner == owner


def test_all_kinds_of_containers_are_seen_and_what_is_malformed_is_no_pod() -> None:
    body = pod("a")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body["spec"] = {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}], "ephemeralContainers": None}
    body["status"] = {
        "containerStatuses": [{"name": "c", "state": {"waiting": {}}}, {"name": "d", "state": None}, None],
        "initContainerStatuses": [{"name": "i", "state": {"running": {}}}],
        "ephemeralContainerStatuses": [{"name": "e", "state": {"running": {"startedAt": None}}}],
    }
    found = read(body)
    assert found.running == {"i", "e"}
    assert found.names == {"c", "i"}
    assert found.finished == {}
    body["status"]["initContainerStatuses"] = [
        {"name": name, "state": {"terminated": {"exitCode": code, "startedAt": "2026-01-01T00:00:00Z"}}}
        for name, code in (("i", 0), ("j", 1))
    ]
    assert read(body).finished == {"i": "2026-01-01T00:00:00Z"}
    assert found.deleting
    assert (found.phase, found.priority, found.preempts) == ("Unknown", 0, True)
    body["spec"] |= {"priority": True, "preemptionPolicy": "Never"}
    assert (read(body).priority, read(body).preempts) == (0, False)
    for broken in (None, [], {}, {"metadata": None}, {"metadata": {"uid": 1, "name": "a", "namespace": "b"}}):
        assert read_pod(broken) is None


def test_units_are_counted_by_when_a_container_runs() -> None:
    def container(name: str, units: object, **more: str) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {RESOURCE: units}}, **more}

    body = pod("a")
    body["spec"] = {
        "containers": [container("main", "30"), container("none", "0"), container("odd", "1500m")],
        "initContainers": [container("side", 10, restartPolicy="Always"), container("load", "50")],
    }
    found = read(body)
    assert found.units == (("main", 30), ("side", 10))
    assert found.init_units == (("load", 50),)
    body["spec"]["containers"] = [container("main", "1k")]  # the API server writes 1000 as 1k
    assert read(body).units == (("main", 1000), ("side", 10))
    for hostile in ("9" * 5000, "²", "١", "-1", 1.5, True, None, []):
        body["spec"]["containers"] = [container("main", hostile)]
        assert read(body).units == (("side", 10),)


def test_a_container_tells_what_it_asks_for_and_where_it_stands() -> None:
    resources = {"limits": {"cpu": "2", "gpu": 3}, "requests": {"cpu": "1", "disk": "5"}}
    environment = [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {}}, 7]
    draft = read_draft(
        {"spec": {"containers": [None, {"name": "main", "resources": resources, "env": environment}]}}, "gpu"
    )
    assert draft.uid == draft.name == ""
    only = draft.named("main")
    assert only == Container(
        "main", ("containers", 1), {"cpu": "2", "gpu": "3"}, {"cpu": "1", "disk": "5"}, 3, True, {"A": "x", "B": ""}
    )
    assert (only.resource("cpu"), only.resource("disk"), only.resource("tape")) == ("2", "5", None)
    assert (only.requested("cpu"), only.requested("gpu"), only.requested("tape")) == ("1", "3", "0")
    assert draft.named("other") is None


KEYS = st.sampled_from(
    ["metadata", "spec", "status", "name", "uid", "namespace", "annotations", "containers", "initContainers", "env",
     "resources", "limits", "requests", "cpu", "state", "containerStatuses", "schedulingGates", "priority"]
)  # fmt: skip
OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda item: st.lists(item, max_size=3) | st.dictionaries(KEYS, item),
)


@settings(deadline=None)
@given(OBJECTS)
def test_no_object_makes_the_reader_fail(item: object) -> None:
    read_pod(item)
    read_draft(item, RESOURCE)
    found = read_pod({"metadata": {"uid": "u", "name": "n", "namespace": "s"}, "spec": item, "status": item})
    assert found is not None
    assert isinstance(found.names, frozenset)
