"""Test that with gates, pods are released where their shares fit, and run on the devices chosen for them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from gates import Gates, gates_on
from kubectl import wait_until
from sharepod_cluster import OURS, PYTHON, gpu_pod
from sharepod_nodes import SharePodNodes

NODES = ("node1", "node2")
DEVICE = "sharepod.io/device"
NODES_BY = "sharepod_scheduler_nodes"
IDLE = {"command": ["/bin/sleep", "3600"]}
Object = dict[str, Any]


def idle(name: str, units: int, **more: Any) -> Object:
    """Return a pod that holds its share and does nothing."""
    return gpu_pod(name, units, container=dict(IDLE), **more)


@pytest.fixture(scope="module")
def gates(two_nodes: SharePodNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gates]:
    with gates_on(two_nodes, tmp_path_factory.mktemp("gates")) as installed:
        yield installed


@pytest.fixture(autouse=True)
def _empty(two_nodes: SharePodNodes) -> None:
    two_nodes.wait_until_empty()


@pytest.fixture
def halves(two_nodes: SharePodNodes) -> Iterator[list[Object]]:
    """Put 60 % on each of both nodes' two devices: each node has 80 units left, but no device has 60 left."""
    pods = [idle(f"half-{node}-{n}", 60, nodeName=node) for node in NODES for n in range(2)]
    with two_nodes.pods(*pods) as started:
        for node, shares in two_nodes.listed().items():
            used = [device["device_index"] for share in shares for device in share["devices"]]
            assert sorted(used) == [0, 1], node
        yield started


def devices_of(two_nodes: SharePodNodes) -> dict[str, list[str]]:
    """Return by pod uid the devices that the pod's share is really on."""
    return {
        share["labels"]["pod_uid"]: sorted(device["device_uuid"] for device in share["devices"])
        for shares in two_nodes.listed().values()
        for share in shares
    }


def assert_as_chosen(two_nodes: SharePodNodes, pods: list[Object]) -> None:
    """Assert that every pod has its devices in its annotation, and its share on them."""
    pods = two_nodes.kubectl.get_pods(*(pod["metadata"]["name"] for pod in pods))
    chosen = {pod["metadata"]["uid"]: sorted(pod["metadata"]["annotations"][DEVICE].split(",")) for pod in pods}
    real = devices_of(two_nodes)
    assert chosen == {uid: real[uid] for uid in chosen}


def assert_none_too_full(two_nodes: SharePodNodes, paused: str = "") -> None:
    """Assert that no device's time is promised twice; what a paused pod holds does not count."""
    for node, shares in two_nodes.listed().items():
        held: Counter[str] = Counter()
        for share in shares:
            for device in share["devices"]:
                held[device["device_uuid"]] += device["request_millipercent"] * (share["labels"]["pod"] != paused)
        assert all(each <= 100_000 for each in held.values()), (node, held)


def test_what_fits_on_no_device_waits_with_a_reason_and_gets_the_first_that_is_free(
    two_nodes: SharePodNodes, gates: Gates, halves: list[Object]
) -> None:
    with waiting(two_nodes, gates, idle("waits", 60)) as why:
        assert why == "no room for 60 percent now"
        assert "no device with 60 percent left" in gates.explained("waits")
        [condition] = two_nodes.kubectl.get("pod", "waits")["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("PodScheduled", "SchedulingGated")
        leaving = next(pod for pod in halves if pod["spec"]["nodeName"] == "node2")
        [freed] = devices_of(two_nodes)[leaving["metadata"]["uid"]]
        two_nodes.delete(leaving["metadata"]["name"])
        two_nodes.kubectl.wait_for("condition=Ready", "pod/waits")
        pod = two_nodes.kubectl.get("pod", "waits")
        assert (pod["spec"]["nodeName"], pod["metadata"]["annotations"][DEVICE]) == ("node2", freed)
        assert devices_of(two_nodes)[pod["metadata"]["uid"]] == [freed]


@contextmanager
def waiting(two_nodes: SharePodNodes, gates: Gates, pod: Object) -> Iterator[str]:
    """Create a pod that finds no place; yield the reason; delete the pod at the end."""
    name = pod["metadata"]["name"]
    two_nodes.kubectl.apply_objects(pod)
    try:
        wait_until("a reason", lambda: gates.reason(name) != "", 20)
        yield gates.reason(name)
    finally:
        two_nodes.delete(name)


def test_a_node_whose_agent_hangs_gets_no_pods_until_it_reports_again(two_nodes: SharePodNodes, gates: Gates) -> None:
    elsewhere = [idle(f"elsewhere-{n}", 60 + n) for n in range(2)]
    there = idle("only-there", 30, nodeSelector={"kubernetes.io/hostname": "node2"})
    node = two_nodes.nodes["node2"]
    with ExitStack() as cleared:
        with node.hung_agent():
            wait_until("each replica notices", lambda: gates.metric(NODES_BY, state="silent") == [1, 1], 60)
            assert node.offers(200), "kube-scheduler alone sees room"
            why = cleared.enter_context(waiting(two_nodes, gates, there))
            assert why == "no room for 30 percent on nodes with a reporting agent, nodes without: 1"
            for pod in cleared.enter_context(two_nodes.pods(*elsewhere)):
                assert pod["spec"]["nodeName"] == "node1", "there is as much room on the other"
        wait_until("each replica hears it", lambda: gates.metric(NODES_BY, state="reporting") == [2, 2], 60)
        with two_nodes.pods(idle("again", 60)) as (again,):
            assert again["spec"]["nodeName"] == "node2", "the devices of the other have 40 % and 39 % left"
            assert_as_chosen(two_nodes, [again])


def test_a_replica_that_may_not_be_bound_where_it_was_sent_is_made_anew_and_sent_elsewhere(
    two_nodes: SharePodNodes, gates: Gates
) -> None:
    kubectl, labels = two_nodes.kubectl, {"app": "apart"}
    alone = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    spec = idle("apart", 30, affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}})
    template = {"metadata": {"labels": labels}, "spec": spec["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "apart"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    kubectl.apply_objects(deployment)

    def running() -> list[Object]:
        pods = [pod for pod in kubectl.items("pods") if pod["metadata"].get("labels", {}).get("app") == "apart"]
        return [
            pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    try:
        wait_until("both run", lambda: len(running()) == 2, 300)
        assert sorted(pod["spec"]["nodeName"] for pod in running()) == list(NODES)
        assert_as_chosen(two_nodes, running())
        told = [event["message"] for event in kubectl.items("events") if event["reason"] == "NotBound"]
        assert any("the next one of its controller is sent elsewhere" in text for text in told)
    finally:
        kubectl("delete", "deployment", "apart")


LIE = """
import os, socket, sys
from pathlib import Path
import grpc
from sharepod.proto import v1_pb2 as pb, v1_pb2_grpc as rpc
host, port = os.environ["SHAREPOD_SCHEDULER_ADDRESS"].rsplit(":", 1)
folder = Path("/etc/sharepod-scheduler")
credentials = grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes())
token = (folder / "token").read_text()
for address in sorted({place[4][0] for place in socket.getaddrinfo(host, port)}):
    options = (("grpc.ssl_target_name_override", host),)
    with grpc.secure_channel(f"{address}:{port}", credentials, options) as channel:
        report = pb.ReportUsageRequest(node=pb.ReportingNode(name=sys.argv[1], version="0"))
        call = rpc.UsageServiceStub(channel).ReportUsage(
            iter([report]), metadata=(("authorization", f"Bearer {token}"),), timeout=20
        )
        try:
            print(*call)
        except grpc.RpcError as error:
            print(error.code().name, error.details())
"""
"""A program that reports to each replica, from the agent's own container, that another node has no devices."""


def test_who_tells_of_a_node_that_is_not_its_own_is_not_believed_and_is_seen(
    two_nodes: SharePodNodes, gates: Gates
) -> None:
    ended, why = "sharepod_scheduler_feed_streams_ended_total", "the report is of node node2, the token of one on node1"
    before = gates.metric(ended, why="lie")
    answers = two_nodes.nodes["node1"].agent(PYTHON, "-c", LIE, "node2").splitlines()
    assert answers == [f"PERMISSION_DENIED {why}: tell of that"] * 2
    assert gates.metric(ended, why="lie") == [count + 1 for count in before]
    for pod in gates.pods():
        told = next(line for line in reversed(gates.log(pod)) if line["event"] == "usage stream ended: lie")
        assert (told["node"], told["cause"]) == ("node1", f"{why}: tell of that")
    assert gates.metric("sharepod_scheduler_devices") == [4, 4]
    assert gates.metric(NODES_BY, state="reporting") == [2, 2]


def test_a_program_runs_on_the_device_that_was_chosen_for_its_pod(two_nodes: SharePodNodes, gates: Gates) -> None:
    pods = [gpu_pod(f"works-{n}", 60 + n) for n in range(4)]
    with two_nodes.pods(*pods) as started:
        assert_as_chosen(two_nodes, started)
        for pod in started:
            [uuid] = two_nodes.kubectl.get("pod", pod["metadata"]["name"])["metadata"]["annotations"][DEVICE].split(",")
            uid, index = pod["metadata"]["uid"], int(uuid[-1], 16)  # a simulated device's name ends with its index

            def used_there(pod: Object = pod, uid: str = uid, index: int = index) -> bool:
                used = two_nodes.of(pod).looks(2).all[-1].used_ns
                mine = {key.rpartition("/")[2] for key, busy_ns in used.items() if key.startswith(uid) and busy_ns}
                return mine == {str(index)}

            wait_until(f"{pod['metadata']['name']} on device {index} alone", used_there, 30)


@pytest.mark.parametrize("killed", ["leader and agent", "all replicas"])
def test_pods_that_come_before_and_after_something_was_killed_all_run_on_the_devices_that_were_chosen(
    two_nodes: SharePodNodes, gates: Gates, killed: str
) -> None:
    pods = [idle(f"many-{n}", (20, 5)[n % 2]) for n in range(16)]
    names = [pod["metadata"]["name"] for pod in pods]
    try:
        two_nodes.kubectl.apply_objects(*pods[:8])
        wait_until("some are bound", lambda: bound(two_nodes) > 1)
        if killed == "all replicas":
            for pod in gates.pods():
                gates.kill(pod)
        else:
            gates.kill(gates.leader())
            node = two_nodes.nodes["node2"]
            node.kill_container(node.own_pod(), "agent", OURS)
        two_nodes.kubectl.apply_objects(*pods[8:])
        gates.wait_until_ready()
        two_nodes.kubectl.wait_for("condition=Ready", *(f"pod/{name}" for name in names), timeout_seconds=240)
        assert_as_chosen(two_nodes, pods)
        assert_none_too_full(two_nodes)
    finally:
        two_nodes.delete(*names)


def bound(two_nodes: SharePodNodes) -> int:
    return sum("nodeName" in pod["spec"] for pod in two_nodes.kubectl.items("pods"))
