"""Test that the API server itself refuses what daemonset/policy forbids, and that valid pods run as before."""

import json
from collections.abc import Iterator

import pytest
from kubectl import ClusterError, wait_until
from pages import follow
from sharepod_cluster import OURS, SharePod, gpu_pod

from rig import REPO_ROOT

pytestmark = pytest.mark.releases
MANIFESTS = REPO_ROOT / "daemonset" / "policy"
APPLY = "kubectl apply -k daemonset/policy"
Case = tuple[dict[str, str], dict[str, object], str]
VISIBLE: dict[str, object] = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}


@pytest.fixture(scope="module")
def policy(sharepod: SharePod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharePod]:
    """Install the policies, and wait until the API server enforces them."""
    assert APPLY in (MANIFESTS / "kustomization.yaml").read_text(encoding="utf-8")
    follow(sharepod.kubectl, tmp_path_factory.mktemp("policy"), APPLY)
    try:
        wait_until("all bite", lambda: all(refused(sharepod, *case) for case in WRONG), 60)
        yield sharepod
    finally:
        sharepod.kubectl("delete", "-k", str(MANIFESTS), "--ignore-not-found")
        wait_until("none bites", lambda: not any(refused(sharepod, *case) for case in WRONG), 60)


WRONG: list[Case] = [
    ({"sharepod.io/limit": "20"}, {}, "sharepod.io/limit is below the request sharepod.io/gpu"),
    ({"sharepod.io/limits": "60"}, {}, "unknown annotation sharepod.io/limits"),
    ({}, VISIBLE, "must not set NVIDIA_VISIBLE_DEVICES"),
    ({"sharepod.io/device": "GPU-0"}, {}, "are written by the scheduler alone"),
    ({"sharepod.io/limit": "60"}, {"resources": {}}, "no container has sharepod.io/gpu under resources.limits"),
    ({"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}, {}, "must not name devices by annotations of cdi"),
    ({}, {"env": [{"name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "1024"}]}, "give sharepod.io/memory"),
]


def refused(sharepod: SharePod, annotations: dict[str, str], container: dict[str, object], says: str) -> bool:
    """Tell, by a dry run, whether a pod is refused for this reason."""
    listed = json.dumps(gpu_pod("wrong", 30, annotations, container=dict(container)))
    try:
        sharepod.kubectl("apply", "--dry-run=server", "-f", "-", stdin=listed.encode())
    except ClusterError as error:
        if says not in str(error):
            raise
        return True
    return False


def test_a_pod_that_is_right_runs_and_what_is_not_its_own_to_write_is_refused(policy: SharePod) -> None:
    with policy.pods(gpu_pod("right", 30, {"sharepod.io/limit": "60", "sharepod.io/class": "latency"})) as (pod,):
        assert policy.shares(pod)
        with pytest.raises(ClusterError, match="are written by the scheduler alone"):
            policy.kubectl("annotate", "pod", "right", "sharepod.io/yield=pause")
        policy.kubectl("annotate", "--overwrite", "pod", "right", "sharepod.io/limit=70")


def test_a_class_is_for_the_namespaces_that_an_operator_names(policy: SharePod) -> None:
    latency: Case = ({"sharepod.io/class": "latency"}, {}, "namespace default may not use sharepod.io/class latency")
    change = ("patch", "configmap", "sharepod-classes", f"--namespace={OURS}", "--type=merge")
    assert not refused(policy, *latency)
    try:
        policy.kubectl(*change, '--patch={"data": {"latency": "serving\\n"}}')
        wait_until("the list is read", lambda: refused(policy, *latency), 30)
        policy.kubectl(*change, '--patch={"data": {"latency": "serving\\ndefault\\n"}}')
        wait_until("the list is read again", lambda: not refused(policy, *latency), 30)
    finally:
        policy.kubectl("apply", "-f", str(MANIFESTS / "classes-parameters.yaml"))
