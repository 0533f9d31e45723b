"""Kueue's manifests are taken by a real API server that knows the kinds, with unknown fields refused."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import kueue_api
import pytest
import yaml
from kubectl import ClusterError, Kubectl, wait_until
from simulated_gpu import REPO_ROOT

FOLDER = REPO_ROOT / "daemonset" / "kueue"
NAMESPACE = "team-a"
SUSPENDED_SINCE = (1, 24)
"""What is older has Jobs that are neither suspended nor indexed; test_kueue_manifests.py has the Job's fields."""
Object = dict[str, Any]


@pytest.fixture(scope="module")
def api(kubectl: Kubectl) -> Iterator[Kubectl]:
    """Have the API server know Kueue's kinds: by Kueue itself where it is installed, else for as long as this lasts."""
    names = [item["metadata"]["name"] for item in kueue_api.definitions()]
    there = json.loads(kubectl("get", "customresourcedefinitions", "--output=json"))["items"]
    missing = [item for item in kueue_api.definitions() if item["metadata"]["name"] not in _names(there)]
    assert len(missing) in (0, len(names)), "Kueue is there in part"
    if missing:
        kubectl.apply_objects(*missing)
        kubectl.wait_for("condition=Established", *(f"customresourcedefinition/{name}" for name in names))
        # An old kubectl knows fields by what the API server publishes, some time later.
        wait_until("the fields are published", lambda: _explains(kubectl, "clusterqueue.spec.cohortName"), 60)
    try:
        yield kubectl
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_seconds=120)
        kubectl("delete", "-k", str(FOLDER), "--ignore-not-found")
        if missing:
            kubectl("delete", "customresourcedefinitions", *names)


def _explains(kubectl: Kubectl, field: str) -> bool:
    try:
        kubectl("explain", field)
    except ClusterError:
        return False
    return True


def _names(items: list[Object]) -> set[str]:
    return {item["metadata"]["name"] for item in items}


def rendered(kubectl: Kubectl, folder: str = "") -> list[Object]:
    """Return what kubectl makes of a folder, without what this cluster is too old for."""
    version = json.loads(kubectl("version", "--output=json"))["serverVersion"]
    old = (int(version["major"]), int(version["minor"].rstrip("+"))) < SUSPENDED_SINCE
    found = [item for item in yaml.safe_load_all(kubectl("kustomize", str(FOLDER / folder))) if item]
    return [item for item in found if not (old and item["kind"] == "Job")]


def test_what_is_shipped_is_taken_as_it_is_and_kept_whole(api: Kubectl) -> None:
    for folder in ("", "example"):
        objects = rendered(api, folder)
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        api("apply", "--validate=true", "-f", "-", stdin=json.dumps(listed).encode())
        for item in objects:
            kept = api.get(item["kind"].lower(), item["metadata"]["name"], item["metadata"].get("namespace", "default"))
            if item["kind"] in kueue_api.PLURALS:
                assert kept.get("spec", {}).items() >= item.get("spec", {}).items(), "nothing was dropped"
            if item["kind"] == "Job":
                assert kept["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("cohort", "sharepod", "unknown field"),
        ("preemption", {"reclaimWithinCohort": "Always"}, "Unsupported value|supported values"),
        ("resourceGroups", [], "should have at least 1 items|minItems"),
    ],
)
def test_what_kueue_does_not_have_is_refused(api: Kubectl, field: str, value: object, says: str) -> None:
    item = copy.deepcopy(next(item for item in rendered(api) if item["kind"] == "ClusterQueue"))
    item["metadata"]["name"] = "wrong"
    item["spec"][field] = value
    with pytest.raises(ClusterError, match=says):
        api("apply", "--validate=true", "-f", "-", stdin=json.dumps(item).encode())
    with pytest.raises(ClusterError, match="not found"):
        api.get("clusterqueue", "wrong")
