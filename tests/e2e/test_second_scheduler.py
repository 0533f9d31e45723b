"""What a kube-scheduler of 1.20 asks an extender, and what comes of the answers: the facts that ours is built on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kube_scheduler_image import kube_scheduler_image
from kubectl import wait_until
from sharepod_cluster import gpu_pod
from sharepod_nodes import SharePodNodes
from toy_extender import RESOURCE, SCHEDULER, ToyScheduler

NODES = ["node1", "node2"]
URGENT = "toy-urgent"
IDLE = {"command": ["/bin/sleep", "600"]}


def ours(name: str, units: int, annotations: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return gpu_pod(name, units, annotations, container=dict(IDLE), schedulerName=SCHEDULER, **more)


@contextmanager
def placed(two_nodes: SharePodNodes, *pods: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield pods as they are once all have a node; at the end they are gone."""
    wanted = [pod["metadata"]["name"] for pod in pods]

    def now() -> list[dict[str, Any]]:
        return [two_nodes.kubectl.get("pod", name) for name in wanted]

    two_nodes.kubectl.apply_objects(*pods)
    try:
        wait_until("a node for each", lambda: all("nodeName" in pod["spec"] for pod in now()), 60)
        yield now()
    finally:
        # Where they go is all that counts here: they may not have started yet.
        two_nodes.kubectl("delete", "pod", *wanted, "--ignore-not-found", "--force", "--grace-period=0")


def names(two_nodes: SharePodNodes) -> list[str]:
    return two_nodes.kubectl("get", "pods", "--output=jsonpath={.items[*].metadata.name}").split()


@pytest.fixture
def alone(two_nodes: SharePodNodes) -> None:
    """Wait until no pod of another test is in the way."""
    wait_until("no other pod", lambda: names(two_nodes) == [])


@pytest.fixture(scope="module")
def toy(two_nodes: SharePodNodes) -> Iterator[ToyScheduler]:
    kube_scheduler_image(two_nodes.cluster)
    toy = ToyScheduler(two_nodes.kubectl)
    toy.install()
    yield toy
    toy.remove()


@pytest.fixture(scope="module")
def urgent(two_nodes: SharePodNodes) -> Iterator[str]:
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": URGENT}}
    two_nodes.kubectl.apply_objects({**priority, "value": 1000})
    yield URGENT
    two_nodes.kubectl("delete", "priorityclass", URGENT)


@pytest.mark.parametrize("node", NODES)
def test_ten_points_decide_between_two_nodes_and_the_pod_is_told_whole(
    toy: ToyScheduler, two_nodes: SharePodNodes, node: str
) -> None:
    name = f"preferred-{node}"
    with placed(two_nodes, ours(name, 10, {"toy/prefer": node})) as (pod,):
        assert pod["spec"]["nodeName"] == node
    for verb in ("filter", "prioritize"):
        [asked] = toy.asked(name, verb)
        assert list(asked) == ["Pod", "Nodes", "NodeNames"]
        assert asked["Nodes"] is None
        assert sorted(asked["NodeNames"]) == NODES
        sent = asked["Pod"]
        assert list(sent) == ["metadata", "spec", "status"], "no kind, no apiVersion"
        for key in ("name", "namespace", "uid", "annotations"):
            assert sent["metadata"][key] == pod["metadata"][key]
        assert sent["spec"] == {key: value for key, value in pod["spec"].items() if key != "nodeName"}
        assert sent["spec"]["containers"][0]["resources"]["requests"] == {RESOURCE: "10"}


def test_where_one_node_is_left_nobody_asks_for_points(toy: ToyScheduler, two_nodes: SharePodNodes) -> None:
    with placed(two_nodes, ours("single", 10, {"toy/refuse": "node1 is full", "toy/prefer": "node1"})) as (pod,):
        assert pod["spec"]["nodeName"] == "node2"
    assert len(toy.asked("single", "filter")) == 1
    assert toy.asked("single", "prioritize") == []


def test_a_pod_that_asks_for_no_share_is_not_asked_about(toy: ToyScheduler, two_nodes: SharePodNodes) -> None:
    with placed(two_nodes, gpu_pod("plain", 0, container={**IDLE, "resources": {}}, schedulerName=SCHEDULER)):
        assert toy.asked("plain", "filter") == []


def test_the_reasons_of_a_refusal_are_in_the_pods_condition(toy: ToyScheduler, two_nodes: SharePodNodes) -> None:
    here = {"kubernetes.io/hostname": "node1"}
    refused = ours("refused", 10, {"toy/refuse": "node1 no device has 10 % left"}, nodeSelector=here)
    two_nodes.kubectl.apply_objects(refused)
    try:
        wait_until("the reason", lambda: "no device has 10 % left" in two_nodes.refusal("refused"))
        assert two_nodes.refusal("refused").startswith("0/2 nodes are available: ")
        assert {tuple(asked["NodeNames"]) for asked in toy.asked("refused", "filter")} == {("node1",)}
    finally:
        two_nodes.delete("refused")


def test_victims_are_shown_by_uid_and_the_extender_leaves_the_nodes_that_it_wants(
    toy: ToyScheduler, two_nodes: SharePodNodes, urgent: str, alone: None
) -> None:
    lows = [ours(f"low-{node}", 80, {"toy/prefer": node}) for node in NODES]
    for low in lows:
        [container] = low["spec"]["containers"]
        low["spec"]["containers"] = [{**container, "name": name} for name in ("one", "two")]
    with placed(two_nodes, *lows) as pods:
        uids = {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in pods}
        assert set(uids) == set(NODES), "160 and 160 are on two nodes of 200"
        with placed(two_nodes, ours("wide", 60, {"toy/victims": "node2"}, priorityClassName=urgent)) as (pod,):
            assert pod["spec"]["nodeName"] == "node2"
            assert names(two_nodes) == ["low-node1", "wide"]
            [asked, *_] = toy.asked("wide", "preempt")
    assert list(asked) == ["Pod", "NodeNameToVictims", "NodeNameToMetaVictims"]
    assert asked["NodeNameToVictims"] is None
    assert asked["NodeNameToMetaVictims"] == {
        node: {"Pods": [{"UID": uid}], "NumPDBViolations": 0} for node, uid in uids.items()
    }
    assert asked["Pod"]["spec"]["priorityClassName"] == urgent


def test_the_extender_names_victims_where_kube_scheduler_sees_none(
    toy: ToyScheduler, two_nodes: SharePodNodes, urgent: str, alone: None
) -> None:
    with placed(two_nodes, ours("in-the-way", 10, {"toy/prefer": "node1"})) as (low,):
        evict = {"toy/evict": low["metadata"]["uid"], "toy/victims": "node1"}
        with placed(two_nodes, ours("second", 10, evict, priorityClassName=urgent)):
            wait_until("the victim goes", lambda: "in-the-way" not in names(two_nodes))
            [asked, *_] = toy.asked("second", "preempt")
    assert asked["NodeNameToMetaVictims"]["node1"] == {"Pods": [], "NumPDBViolations": 0}, "it fits beside the other"
