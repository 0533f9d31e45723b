"""Test that pods for other sharing systems get our shares where the operator turned this on, and nowhere else.

The measure is what the simulated devices did, and what the API server keeps.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from kubectl import ClusterError
from pages import commands, follow
from sharepod_cluster import OURS, Pair, SharePod, gpu_pod

from rig import REPO_ROOT

pytestmark = pytest.mark.releases
MANIFESTS = REPO_ROOT / "daemonset" / "compatibility"
NAMESPACE = "default"
LABEL = "sharepod.io/compatibility"
MARK = "compatibility.sharepod.io/from"
STEADY_S = 4.0
TOLERANCE = 0.015
Object = dict[str, Any]


@pytest.fixture(scope="module")
def compatibility(sharepod: SharePod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharePod]:
    """Install the webhook by the commands of its page for one namespace."""
    kubectl = sharepod.kubectl
    try:
        follow(kubectl, tmp_path_factory.mktemp("webhook"), *commands(MANIFESTS / "README.md"))
        kubectl("label", "namespace", NAMESPACE, f"{LABEL}=enabled")
        yield sharepod
    finally:
        kubectl("label", "namespace", NAMESPACE, f"{LABEL}-")
        kubectl("delete", "-k", str(MANIFESTS), "--ignore-not-found", timeout_seconds=120)
        kubectl("delete", "secret", "sharepod-webhook", f"--namespace={OURS}", "--ignore-not-found")


def written(name: str, resources: Object | None = None, **more: Any) -> Object:
    """Return a pod that wants the whole device, written for another system."""
    return gpu_pod(name, 0, more.pop("annotations", None), container={"resources": {"limits": resources or {}}}, **more)


def test_pods_of_two_systems_get_their_parts_of_one_device(compatibility: SharePod) -> None:
    kai = written("kai", annotations={"gpu-fraction": "0.6"}, schedulerName="kai-scheduler")
    hami = written("hami", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 30})
    compatibility.wait_until_empty()
    with compatibility.pods(kai, hami) as (sixty, thirty):
        assert sixty["metadata"]["annotations"][MARK] == "KAI"
        assert sixty["spec"]["schedulerName"] == "default-scheduler"
        for pod, units in ((sixty, "60"), (thirty, "30")):
            assert pod["spec"]["containers"][0]["resources"]["limits"] == {"sharepod.io/gpu": units}
        pair = Pair(compatibility, sixty, thirty)
        [one], [other] = (compatibility.shares(pod) for pod in (sixty, thirty))
        assert one.devices == other.devices
        assert pair.are_divided(pair.steady(STEADY_S), 2 / 3, TOLERANCE)
        listed = next(item for item in compatibility.listed() if item["id"] == other.id)
        assert listed["devices"][0]["memory_limit_bytes"] == 4000 * 2**20


def test_a_pod_that_cannot_be_is_not_made_and_its_owner_is_told_why(compatibility: SharePod) -> None:
    with pytest.raises(ClusterError, match=r"annotation gpu-fraction is '0\.125', finer than 1 %: give 0\.12 or 0\.13"):
        compatibility.kubectl.apply_objects(written("eighth", annotations={"gpu-fraction": "0.125"}))


def test_other_pods_and_other_namespaces_notice_nothing(compatibility: SharePod) -> None:
    plain = written("plain")
    elsewhere = written("elsewhere", annotations={"gpu-fraction": "0.5"})
    elsewhere["metadata"]["namespace"] = OURS
    for item in (plain, elsewhere):
        item["spec"]["containers"][0]["command"] = ["sleep", "3600"]
    with compatibility.pods(plain) as (made,):
        assert MARK not in made["metadata"].get("annotations", {})
    kubectl = compatibility.kubectl
    try:
        kubectl.apply_objects(elsewhere)
        found = kubectl.get("pod", "elsewhere", OURS)
        assert found["spec"]["containers"][0]["resources"] == {}
    finally:
        kubectl("delete", "pod", "elsewhere", f"--namespace={OURS}")
