"""Test that low-priority pods make room for others: they are paused if time is short, evicted if memory is."""

from collections.abc import Iterator
from typing import Any

import pytest
from gates import Gates, gates_on
from kubectl import wait_until
from sharepod_cluster import OURS
from sharepod_nodes import SharePodNodes
from test_scheduler_places import assert_none_too_full, idle

YIELD = "sharepod.io/yield"
SPARE = "SHAREPOD_PLUGIN_SPARE_PERCENT"
HIGH = "sharepod-test-high"
SOME_MEMORY = {"sharepod.io/memory": "20Gi"}
DEVICES = 4
Object = dict[str, Any]


@pytest.fixture(scope="module")
def gates(two_nodes: SharePodNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gates]:
    """Install gates on nodes with spare units."""
    kubectl = two_nodes.kubectl
    classes = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}, "value": 1000}
    plugin = ("set", "env", "daemonset/sharepod", f"--namespace={OURS}", "--containers=device-plugin")
    kubectl.apply_objects(classes)
    kubectl(*plugin, f"{SPARE}=100")
    try:
        with gates_on(two_nodes, tmp_path_factory.mktemp("gates"), units=400) as installed:
            yield installed
    finally:
        kubectl(*plugin, f"{SPARE}-")
        kubectl("delete", "priorityclass", HIGH)
        nodes = (f"--namespace={OURS}", "--selector=app.kubernetes.io/component=node")
        kubectl("delete", "pods", *nodes, timeout_seconds=120)
        wait_until("no spare units", lambda: all(node.offers(200) for node in two_nodes.nodes.values()))


@pytest.fixture(autouse=True)
def _empty(two_nodes: SharePodNodes) -> None:
    two_nodes.wait_until_empty()


def low(number: int, annotations: dict[str, str], **labels: str) -> Object:
    pod = idle(f"low-{number}", 100, annotations=annotations)
    pod["metadata"]["labels"] = labels
    return pod


def high(annotations: dict[str, str]) -> Object:
    return idle("high", 60, annotations=annotations, priorityClassName=HIGH)


def yielding(two_nodes: SharePodNodes) -> list[str]:
    """Return the names of the pods that are told to make room."""
    pods = two_nodes.kubectl.items("pods")
    return sorted(pod["metadata"]["name"] for pod in pods if pod["metadata"].get("annotations", {}).get(YIELD))


def paused(two_nodes: SharePodNodes) -> list[str]:
    """Return the names of the pods that are paused by the agents' lists."""
    shares = [share for listed in two_nodes.listed().values() for share in listed]
    return sorted(share["labels"]["pod"] for share in shares if share["paused"])


def test_a_low_pod_is_paused_for_a_high_one_and_goes_on_when_that_has_gone(
    two_nodes: SharePodNodes, gates: Gates
) -> None:
    kubectl = two_nodes.kubectl
    with two_nodes.pods(*(low(number, SOME_MEMORY) for number in range(DEVICES))) as before:
        with two_nodes.pods(high(SOME_MEMORY)):
            [name] = yielding(two_nodes)
            wait_until("it is paused", lambda: paused(two_nodes) == [name], 20)
            assert_none_too_full(two_nodes, paused=name)
        wait_until("it goes on", lambda: not paused(two_nodes) and not yielding(two_nodes), 30)
        after = kubectl.get_pods(*(pod["metadata"]["name"] for pod in before))
        assert [started(pod) for pod in after] == [started(pod) for pod in before], "nothing was started again"
    assert {"Paused", "Resumed"} <= {item["reason"] for item in kubectl.items("events")}


def started(pod: Object) -> tuple[str, str, int]:
    [status] = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], status["containerID"], status["restartCount"]


def test_where_memory_is_short_one_is_evicted_that_no_disruption_budget_keeps(
    two_nodes: SharePodNodes, gates: Gates
) -> None:
    kubectl = two_nodes.kubectl
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard"},
        "spec": {"minAvailable": DEVICES - 1, "selector": {"matchLabels": {"guarded": "true"}}},
    }
    kubectl.apply_objects(budget)
    pods = [low(number, {}, guarded="true" if number else "false") for number in range(DEVICES)]
    try:
        with two_nodes.pods(*pods) as before:
            guarded = {pod["metadata"]["uid"] for pod in before[1:]}
            wait_until("the budget counts", lambda: healthy(two_nodes) == DEVICES - 1, 60)
            with two_nodes.pods(high({})):
                there = kubectl.items("pods")
                left = {pod["metadata"]["uid"] for pod in there if not pod["metadata"].get("deletionTimestamp")}
                assert guarded <= left
                assert before[0]["metadata"]["uid"] not in left
                assert_none_too_full(two_nodes)
    finally:
        kubectl("delete", "poddisruptionbudget", "guard")


def healthy(two_nodes: SharePodNodes) -> int:
    budget = two_nodes.kubectl.get("poddisruptionbudget", "guard")
    return int(budget.get("status", {}).get("currentHealthy", 0))
