"""Test that shares come and go with their containers, whatever starts or ends these and whichever component is away."""

import json
import time
from pathlib import Path
from typing import Any

import components
import pytest
from cluster import Cluster
from kubectl import wait_until
from leftovers import paths_below
from sharepod_cluster import OURS, SharePod, container_of, gpu_deployment, gpu_pod, identity


def assert_no_trace(cluster: Cluster, *ids: str) -> None:
    """Assert that nothing of the shares is left on the node."""
    stored = (cluster.node.root / "var/lib/sharepod/allocations.json").read_text()
    directories = {path.name for path in paths_below(cluster.node.root / "run/sharepod")}
    assert not [share for share in ids if share in stored or share in directories or cdi_file(cluster, share).exists()]


def cdi_file(cluster: Cluster, share: str) -> Path:
    """Return the file that tells the container runtime what a share gives its container."""
    return cluster.node.root / "run/cdi" / f"sharepod.io-share-{share}.json"


def test_a_request_that_fits_in_pieces_alone_is_refused_with_a_reason(sharepod: SharePod) -> None:
    sharepod.wait_until_empty()
    with sharepod.pods(gpu_pod("a", 60), gpu_pod("b", 60)):
        sharepod.kubectl.apply_objects(gpu_pod("c", 70, restartPolicy="Never"))
        try:
            wait_until("a reason", lambda: any("request 70 %" in event for event in sharepod.events("c")))
        finally:
            sharepod.delete("c")


def test_an_annotation_that_cannot_be_holds_the_pod_until_it_is_mended(sharepod: SharePod) -> None:
    try:
        sharepod.kubectl.apply_objects(gpu_pod("typo", 30, {"sharepod.io/limits": "50"}))
        wait_until("the reason", lambda: any("ShareNotReady" in event for event in sharepod.events("typo")))
        [told, *_] = [event for event in sharepod.events("typo") if "ShareNotReady" in event]
        assert "sharepod.io/limit" in told
        sharepod.kubectl("annotate", "pod", "typo", "sharepod.io/limits-", "sharepod.io/limit=50")
        sharepod.kubectl.wait_for("condition=Ready", "pod/typo")
        [share] = sharepod.shares(sharepod.kubectl.get("pod", "typo"))
        assert share.devices
    finally:
        sharepod.delete("typo")


def test_a_pod_without_root_capabilities_and_a_writable_root_has_its_share(sharepod: SharePod) -> None:
    context = {
        "runAsUser": 12345, "runAsGroup": 12345, "runAsNonRoot": True, "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    hardened = gpu_pod("hardened", 20, {"sharepod.io/limit": "20"}, container={"securityContext": context})
    with sharepod.pods(hardened) as (pod,):
        wait_until("20 % of a device", lambda: 18 < used_percent(sharepod, pod) < 22)


def used_percent(sharepod: SharePod, pod: dict[str, Any]) -> float:
    own = [share for share in sharepod.listed() if share["labels"].get("pod_uid") == pod["metadata"]["uid"]]
    return sum(float(share["devices"][0]["usage"]["used_1s_millipercent"]) / 1000 for share in own)


def demo(name: str, seconds: float, units: int) -> dict[str, Any]:
    container: dict[str, Any] = gpu_pod("unused", units)["spec"]["containers"][0]
    return container | {"name": name, "command": [*container["command"][:-1], str(seconds)]}


def test_a_job_with_an_init_container_ends_and_leaves_nothing(own_cluster: Cluster, sharepod: SharePod) -> None:
    spec = gpu_pod("unused", 40)["spec"]
    template = {"spec": spec | {
        "initContainers": [demo("prepare", 1, 40)], "containers": [demo("work", 2, 40)], "restartPolicy": "Never",
    }}  # fmt: skip
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"}, "spec": {"template": template}}
    sharepod.kubectl.apply_objects(job)
    try:
        sharepod.kubectl.wait_for("condition=Complete", "job/once")
        pod = sharepod.kubectl("get", "pods", "--selector=job-name=once", "--output=jsonpath={.items[0].metadata.name}")
        for container in ("prepare", "work"):
            assert "kernels of 500" in sharepod.kubectl.logs(pod, f"--container={container}")
        ready = [event for event in sharepod.events(pod) if event.startswith("ShareReady")]
        ids = {event.split("share ")[1].split()[0] for event in ready}
        assert ids
        sharepod.wait_released(*ids)
        assert_no_trace(own_cluster, *ids)
    finally:
        sharepod.kubectl("delete", "job", "once")


@pytest.mark.parametrize("before", ["nothing", "a sidecar"])
def test_a_share_of_an_init_container_alone_ends_with_it_and_its_units_stay_the_pods(
    own_cluster: Cluster, sharepod: SharePod, before: str
) -> None:
    """Check a container that pod-resources does not list: no container after it may take its share over."""
    sidecars = [demo("side", 36000, 5) | {"restartPolicy": "Always"}] if before == "a sidecar" else []
    quiet = {"resources": {}, "command": ["/bin/sleep", "600"]}
    allocations = own_cluster.node.root / "var/lib/sharepod/allocations.json"
    name = f"warmed-after-{before.split()[-1]}"
    warmed = gpu_pod(name, 0, container=quiet, initContainers=[*sidecars, demo("warm", 2, 10)])
    with sharepod.pods(warmed) as (pod,):
        assert "kernels of 500" in sharepod.kubectl.logs(name, "--container=warm")
        [told] = [event for event in sharepod.events(name) if event.startswith("ShareReady: container warm:")]
        share = told.split("share ")[1].split()[0]
        sharepod.wait_released(share)
        assert not cdi_file(own_cluster, share).exists()
        assert [one.container for one in sharepod.shares(pod)] == [one["name"] for one in sidecars]
        assert share in allocations.read_text()
        assert not any("ShareNotReady" in event for event in sharepod.events(name))
    wait_until("its units are the pod's no more", lambda: share not in allocations.read_text())
    sharepod.wait_until_empty()


def test_a_container_with_a_share_starts_again_while_the_api_server_is_away(
    own_cluster: Cluster, sharepod: SharePod
) -> None:
    with sharepod.pods(gpu_pod("steady", 20, {"sharepod.io/limit": "30"})) as (pod,):
        [share] = sharepod.shares(pod)
        first = identity(container_of(pod))
        log = own_cluster.node.root / f"var/log/pods/default_steady_{pod['metadata']['uid']}/main/1.log"
        own_cluster.first.kill("kube-apiserver")
        try:
            own_cluster.first.kill_container(first)
            wait_until("its container runs again", log.exists)
        finally:
            own_cluster.first.start("kube-apiserver")
        wait_until("the node is ready", own_cluster.node_is_ready)
        sharepod.kubectl.wait_for("condition=Ready", "pod/steady")
        assert [one.id for one in sharepod.shares(pod)] == [share.id]
        wait_until("30 % of a device", lambda: 28 < used_percent(sharepod, pod) < 32)


def test_a_deployment_is_rolled_where_its_old_pod_fills_the_device(sharepod: SharePod) -> None:
    sharepod.wait_until_empty()
    strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    sharepod.kubectl.apply_objects(gpu_deployment("roll", 80, strategy=strategy))
    try:
        for _ in range(2):
            sharepod.kubectl.rolled_out("deployment/roll")
            wait_until("two shares", lambda: len(sharepod.listed()) == 2)
            assert sorted(share["devices"][0]["device_index"] for share in sharepod.listed()) == [0, 1]
            sharepod.kubectl("rollout", "restart", "deployment/roll")
        sharepod.kubectl.rolled_out("deployment/roll")
    finally:
        sharepod.kubectl("delete", "deployment", "roll")
        sharepod.kubectl("wait", "--for=delete", "pod", "--selector=app=roll", "--timeout=60s", timeout_seconds=90)


def test_a_pod_that_goes_while_agent_and_plugin_are_away_leaves_nothing(
    own_cluster: Cluster, sharepod: SharePod
) -> None:
    with sharepod.pods(gpu_pod("orphan", 30)) as pods:
        [share] = sharepod.shares(*pods)
        [device] = json.loads(cdi_file(own_cluster, share.id).read_text())["devices"]
        assert device["name"] == share.id
        own = sharepod.own_pod()
        sharepod.kubectl("delete", "pod", "orphan", "--wait=false")
        for container in ("agent", "device-plugin"):
            sharepod.kill_container(own, container, OURS)
    sharepod.wait_released(share.id)
    assert_no_trace(own_cluster, share.id)


def test_a_pod_that_ends_while_kubelet_is_away_is_released_when_it_is_back(
    own_cluster: Cluster, sharepod: SharePod
) -> None:
    with sharepod.pods(gpu_pod("lonely", 30, restartPolicy="Never")) as (pod,):
        [share] = sharepod.shares(pod)
        before = sharepod.registrations()
        own_cluster.first.kill("kubelet")
        try:
            own_cluster.kill_container("lonely", "main")
            time.sleep(12)  # longer than the period of the plugin's garbage collector
            below = {path.name for path in paths_below(own_cluster.node.root / "run/sharepod")}
            assert share.id in below, "released before kubelet told that the container is over"
        finally:
            own_cluster.first.start("kubelet")
        sharepod.kubectl.wait_for("jsonpath={.status.phase}=Failed", "pod/lonely")
        sharepod.wait_released(share.id)
    wait_until("the plugin registered again", lambda: sharepod.registrations() > before)
    assert_no_trace(own_cluster, share.id)


def test_a_static_pod_has_a_share(own_cluster: Cluster, sharepod: SharePod) -> None:
    manifest = own_cluster.node.root / components.STATIC_PODS.lstrip("/") / "static.json"
    manifest.write_text(json.dumps(gpu_pod("static", 20, {"sharepod.io/limit": "20"})))
    name = f"static-{components.NODE_NAME}"
    try:
        wait_until("its mirror", lambda: name in sharepod.kubectl("get", "pods", "--output=name"))
        sharepod.kubectl.wait_for("condition=Ready", f"pod/{name}")
        [share] = sharepod.shares(sharepod.kubectl.get("pod", name))
        time.sleep(12)  # longer than the period of the plugin's garbage collector
        assert share.id in {one["id"] for one in sharepod.listed()}
        before = container_of(sharepod.kubectl.get("pod", name))
        sharepod.kill_container(name, "main")
        assert identity(container_of(sharepod.kubectl.get("pod", name))) != identity(before)
        assert [one.id for one in sharepod.shares(sharepod.kubectl.get("pod", name))] == [share.id]
    finally:
        manifest.unlink()
    sharepod.wait_released(share.id)


def test_a_deployment_has_its_shares_again_after_a_reboot(own_cluster: Cluster, sharepod: SharePod) -> None:
    sharepod.wait_until_empty()
    sharepod.kubectl.apply_objects(gpu_deployment("boot", 60))
    try:
        sharepod.kubectl.rolled_out("deployment/boot")
        own_cluster.first.reboot()
        wait_until("the node is down", lambda: not sharepod.answers())
        wait_until("the node is ready", own_cluster.node_is_ready)
        wait_until("two shares at work", lambda: sharepod.answers() and at_work(sharepod) == [0, 1])
        running = "--field-selector=status.phase=Running"
        names = sharepod.kubectl("get", "pods", "--selector=app=boot", running, "--output=name").split()
        assert len(names) == 2
        wait_until("no share of what was before", lambda: len(sharepod.listed()) == 2)
        failed = ("get", "pods", "--selector=app=boot", "--field-selector=status.phase=Failed")
        reasons = sharepod.kubectl(*failed, "--output=jsonpath={.items[*].status.reason}").split()
        assert reasons == ["UnexpectedAdmissionError"] * 2
    finally:
        sharepod.kubectl("delete", "deployment", "boot")
        sharepod.kubectl("delete", "pods", "--selector=app=boot", timeout_seconds=150)


def at_work(sharepod: SharePod) -> list[int]:
    """Return the devices that a share uses more than half of the time."""
    devices = [device for share in sharepod.listed() for device in share["devices"]]
    return sorted(device["device_index"] for device in devices if device["usage"]["used_1s_millipercent"] > 50_000)


def test_many_pods_at_once_all_get_theirs(sharepod: SharePod) -> None:
    count = 20
    sharepod.wait_until_empty()
    with sharepod.pods(
        *(gpu_pod(f"many-{n}", 10, container={"command": ["/bin/sleep", "600"]}) for n in range(count))
    ) as pods:
        shares = sharepod.shares(*pods)
        assert len({share.id for share in shares}) == count
        for device in (0, 1):
            assert sum(share.devices == (device,) for share in shares) == count // 2
    sharepod.wait_until_empty()
