"""Test which nodes a pod may be bound to, by the rules of kube-scheduler."""

from dataclasses import replace
from typing import Any

import pytest
from cluster_world import node_body, pod_body, read
from rounds_world import DEFAULT, decided, nodes, task

from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.node import Node, read_node

Spec = dict[str, Any]
GPU = [{"key": "gpu", "operator": "In", "values": ["h200", "a100"]}]


def node(name: str = "n1", labels: dict[str, str] | None = None, **spec: Any) -> Node:
    body = node_body(name, 2)
    body["metadata"]["labels"] = {"gpu": "h200", "rank": "5", **(labels or {})}
    body["spec"] = spec
    found = read_node(body)
    assert found is not None
    return found


def suits(spec: Spec, there: Node) -> bool:
    body = pod_body("p", 30)
    body["spec"] |= spec
    return there.suits(read(body).constraints)


def affinity(*terms: Spec) -> Spec:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("spec", "suit"),
    [
        ({}, True),
        ({"nodeSelector": {"gpu": "h200"}}, True),
        ({"nodeSelector": {"gpu": "a100"}}, False),
        ({"nodeSelector": {"gpu": "h200", "pool": "a"}}, False),
        (affinity({"matchExpressions": GPU}), True),
        (affinity({"matchExpressions": [{"key": "gpu", "operator": "NotIn", "values": ["h200"]}]}), False),
        (affinity({"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["a"]}]}), True),
        (affinity({"matchExpressions": [{"key": "pool", "operator": "Exists"}]}), False),
        (affinity({"matchExpressions": [{"key": "pool", "operator": "DoesNotExist"}]}), True),
        (affinity({"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["4"]}]}), True),
        (affinity({"matchExpressions": [{"key": "rank", "operator": "Lt", "values": ["5"]}]}), False),
        (affinity({"matchExpressions": [{"key": "gpu", "operator": "Gt", "values": ["4"]}]}), False),
        (affinity({"matchExpressions": [{"key": "gpu", "operator": "Near", "values": ["h200"]}]}), False),
        (affinity({"matchExpressions": [{"key": "pool", "operator": "Exists"}]}, {"matchExpressions": GPU}), True),
        (affinity({"matchExpressions": [*GPU, {"key": "pool", "operator": "Exists"}]}), False),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), False),
        (affinity({}), False),
        (affinity(), False),
    ],
)
def test_selectors_and_required_affinities_decide(spec: Spec, *, suit: bool) -> None:
    assert suits(spec, node()) is suit


@pytest.mark.parametrize(
    ("taint", "tolerations", "suit"),
    [
        ({"key": "gpu", "value": "only", "effect": "NoSchedule"}, [], False),
        ({"key": "gpu", "value": "only", "effect": "PreferNoSchedule"}, [], True),
        ({"key": "gpu", "value": "only", "effect": "NoSchedule"}, [{"key": "gpu", "value": "only"}], True),
        ({"key": "gpu", "value": "only", "effect": "NoSchedule"}, [{"key": "gpu", "value": "other"}], False),
        ({"key": "gpu", "value": "only", "effect": "NoSchedule"}, [{"key": "gpu", "operator": "Exists"}], True),
        ({"key": "gpu", "effect": "NoExecute"}, [{"operator": "Exists", "effect": "NoSchedule"}], False),
        ({"key": "gpu", "effect": "NoExecute"}, [{"operator": "Exists"}], True),
    ],
)
def test_taints_have_to_be_tolerated(taint: Spec, tolerations: list[Spec], *, suit: bool) -> None:
    assert suits({"tolerations": tolerations}, node(taints=[taint])) is suit


def test_a_cordoned_node_gets_nobody_who_does_not_tolerate_that() -> None:
    assert not suits({}, node(unschedulable=True))
    exists = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert suits({"tolerations": [exists]}, node(unschedulable=True))


def test_rounds_release_pods_only_to_nodes_that_suit_them() -> None:
    timeline = Timeline(nodes(3, 4), DEFAULT)
    for name in ("n00", "n01", "n02"):
        there = timeline.cluster.node(name)
        assert there is not None
        labelled = node(name, {"pool": "a" if name == "n02" else "b"})
        timeline.cluster.set_node(replace(there, traits=labelled.traits))
    timeline.come(task("gang", size=4, least=4))
    timeline.come(task("wide", size=5, least=5))
    body = pod_body("x", 30)
    body["spec"]["nodeSelector"] = {"pool": "a"}
    for pod in list(timeline.cluster.pods()):
        timeline.cluster.set_pod(replace(pod, constraints=read(body).constraints))
    found = decided(timeline, 0.0)
    assert {(place.pod.gang.name, place.node) for place in found.placed if place.pod.gang} == {("gang", "n02")}
    assert [reason for reason, _ in found.told] == ["NeverFits"]
    assert decided(timeline, 1.0).actions == [], "it is told once"
