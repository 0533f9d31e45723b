"""Test that the real Kueue counts quotas of shares by the shipped manifests, and that gates place admitted jobs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from gates import gates_on
from kubectl import ClusterError, Kubectl, wait_until
from kueue import kueue_on
from pages import follow
from sharepod_cluster import gpu_pod
from sharepod_nodes import SharePodNodes
from test_scheduler_places import assert_as_chosen, assert_none_too_full

from rig import REPO_ROOT

FOLDER = REPO_ROOT / "daemonset" / "kueue"
APPLY = "kubectl apply -k daemonset/kueue"
NAMESPACE = "team-a"
QUEUE = "kueue.x-k8s.io/queue-name"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def api(two_nodes: SharePodNodes, kueue_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Install gates, Kueue, and the page's queues by the page's own command."""
    assert APPLY in (FOLDER / "README.md").read_text(encoding="utf-8")
    kubectl, folder = two_nodes.kubectl, tmp_path_factory.mktemp("kueue")
    with gates_on(two_nodes, folder), kueue_on(two_nodes.cluster, kueue_folder):
        wait_until("Kueue's webhooks answer", lambda: answers(kubectl), 60)
        follow(kubectl, folder, APPLY)
        try:
            yield kubectl
        finally:
            kubectl("delete", "-k", str(FOLDER / "example"), "--ignore-not-found", timeout_seconds=120)
            kubectl("delete", "-k", str(FOLDER), "--ignore-not-found", timeout_seconds=120)


def answers(kubectl: Kubectl) -> bool:
    """Tell whether Kueue's webhooks answer; making their certificates takes a moment."""
    try:
        kubectl("apply", "-k", str(FOLDER), "--dry-run=server")
    except ClusterError:
        return False
    return True


def test_what_is_shipped_is_kept_whole(api: Kubectl) -> None:
    for item in filter(None, yaml.safe_load_all(api("kustomize", str(FOLDER)))):
        kept = api.get(item["kind"].lower(), item["metadata"]["name"])
        assert contains(kept.get("spec", {}), item.get("spec", {})), "something was dropped"


def contains(kept: Any, given: Any) -> bool:
    """Tell whether all given values were kept; Kueue adds values that were not given."""
    if isinstance(given, dict):
        return all(key in kept and contains(kept[key], value) for key, value in given.items())
    if isinstance(given, list):
        return len(kept) == len(given) and all(map(contains, kept, given))
    return bool(kept == given)


def test_the_example_is_let_in_and_all_its_pods_run_where_gates_chose(api: Kubectl, two_nodes: SharePodNodes) -> None:
    api.apply(FOLDER / "example")
    try:
        wait_until("all eight run", lambda: phases(api) == ["Running"] * 8)
        assert_none_too_full(two_nodes)
        assert sum(len(shares) for shares in two_nodes.listed().values()) == 8
        [workload] = api.items("workloads", namespace=NAMESPACE)
        [assigned] = workload["status"]["admission"]["podSetAssignments"]
        assert (assigned["count"], assigned["resourceUsage"]["sharepod.io/gpu"]) == (8, "400")
    finally:
        api("delete", "-k", str(FOLDER / "example"), "--ignore-not-found", timeout_seconds=120)
        two_nodes.wait_until_empty()


def phases(api: Kubectl) -> list[str]:
    """Return the phases of the example's pods."""
    pods = api.items("pods", "--selector=job-name=train", namespace=NAMESPACE)
    return [pod["status"]["phase"] for pod in pods]


@pytest.fixture
def small(api: Kubectl) -> Iterator[str]:
    """Make a queue with the units of one device; yield the name of the LocalQueue that leads to it."""
    quota = {"name": "sharepod-any", "resources": [{"name": "sharepod.io/gpu", "nominalQuota": "100"}]}
    groups = [{"coveredResources": ["sharepod.io/gpu"], "flavors": [quota]}]
    specs = {
        "ClusterQueue": {"namespaceSelector": {}, "resourceGroups": groups},
        "LocalQueue": {"clusterQueue": "small"},
    }
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": {"name": "small"}}
    api.apply_objects(*({**head, "kind": kind, "spec": spec} for kind, spec in specs.items()))
    yield "small"
    api("delete", "localqueue,clusterqueue", "small", timeout_seconds=90)


def job(name: str, units: int, queue: str) -> Object:
    spec = gpu_pod(name, units, restartPolicy="Never")["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": {QUEUE: queue}},
        "spec": {"suspend": True, "template": {"spec": spec}},
    }


def test_a_job_beyond_the_quota_waits_and_goes_on_when_another_has_ended(
    api: Kubectl, two_nodes: SharePodNodes, small: str
) -> None:
    api.apply_objects(job("sixty", 60, small))
    try:
        wait_until("the first runs", lambda: active(api, "sixty") == 1)
        api.apply_objects(job("fifty", 50, small))
        want = "insufficient unused quota for sharepod.io/gpu in flavor sharepod-any, 10 more needed"
        wait_until("the reason", lambda: any(want in said for said in reasons(api, "fifty")), 60)
        assert api.get("job", "fifty")["spec"]["suspend"] is True
        api("delete", "job", "sixty", timeout_seconds=90)
        wait_until("the second runs", lambda: active(api, "fifty") == 1)
        assert_as_chosen(two_nodes, api.items("pods", "--selector=job-name=fifty"))
    finally:
        api("delete", "job", "sixty", "fifty", "--ignore-not-found", timeout_seconds=90)
        two_nodes.wait_until_empty()


def active(api: Kubectl, name: str) -> int:
    return int(api.get("job", name)["status"].get("ready", 0))


def reasons(api: Kubectl, name: str) -> list[str]:
    own = [item for item in api.items("workloads") if item["metadata"]["ownerReferences"][0]["name"] == name]
    return [condition["message"] for item in own for condition in item["status"].get("conditions", [])]
