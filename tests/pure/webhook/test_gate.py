"""Pods with shares get a gate, once, and gangs that cannot be are refused when they are made."""

from __future__ import annotations

from typing import Any

import pytest
from foreign_pods import kai, patched, pod

from sharepod.webhook.gate import decide
from sharepod.webhook.review import Decision, Request

GATE = {"name": "sharepod.io/gate"}
OTHER = {"name": "kueue.x-k8s.io/topology"}


def request(item: dict[str, Any], operation: str = "CREATE") -> Request:
    return Request("uid", "team", "p", operation, dry_run=False, object=item)


def gates(item: dict[str, Any]) -> Any:
    return patched(item, decide(request(item)))["spec"].get("schedulingGates")


def with_spec(item: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**item, "spec": item["spec"] | more}


def test_a_pod_with_a_share_is_gated_and_else_unchanged() -> None:
    item = pod({"sharepod.io/gpu": "30"})
    assert gates(item) == [GATE]
    assert patched(item, decide(request(item))) == with_spec(item, schedulingGates=[GATE])


def test_others_gates_stay_and_ours_is_set_once() -> None:
    item = pod({"sharepod.io/gpu": "30"})
    assert gates(with_spec(item, schedulingGates=[OTHER])) == [OTHER, GATE]
    assert decide(request(with_spec(item, schedulingGates=[OTHER, GATE]))) == Decision()


def test_ten_devices_count_as_the_api_server_writes_them() -> None:
    assert gates(pod({"sharepod.io/gpu": "1k"})) == [GATE]


def test_a_share_of_an_init_container_counts() -> None:
    item = pod({})
    container = {"name": "warm", "image": "x", "resources": {"limits": {"sharepod.io/gpu": "30"}}}
    assert gates(with_spec(item, initContainers=[container])) == [GATE]


@pytest.mark.parametrize(
    "item",
    [
        pod({}),
        pod({"sharepod.io/gpu": "0"}),
        kai(gpu_fraction="0.5"),
        with_spec(pod({"sharepod.io/gpu": "30"}), nodeName="n1"),
    ],
    ids=["no share", "a share of nothing", "not translated yet", "names its node"],
)
def test_pods_that_no_gate_is_for_pass(item: dict[str, Any]) -> None:
    assert decide(request(item)) == Decision()


def test_a_pod_that_changes_passes() -> None:
    assert decide(request(pod({"sharepod.io/gpu": "30"}), "UPDATE")) == Decision()


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"gang": "g", "gang-size": "0"}, "give a whole number from 1 to 4096"),
        ({"gang": "g", "gang-size": "2", "gang-min": "3"}, "the least is at most the size"),
        ({"gang-size": "2"}, "name the gang"),
    ],
)
def test_a_gang_that_cannot_be_is_refused(annotations: dict[str, str], says: str) -> None:
    given = {f"sharepod.io/{key}": text for key, text in annotations.items()}
    decision = decide(request(pod({"sharepod.io/gpu": "30"}, annotations=given)))
    assert says in decision.refusal
    assert not decision.patch


@pytest.mark.parametrize("value", ["all", {"name": "x"}, [], None])
def test_gates_that_are_none_are_no_gates(value: Any) -> None:
    item = with_spec(pod({"sharepod.io/gpu": "30"}), schedulingGates=value)
    assert gates(item) == [GATE]


def test_a_container_without_a_name_is_refused() -> None:
    item = with_spec(pod({}), containers=[{"resources": {"limits": {"sharepod.io/gpu": "30"}}}])
    assert "spec.containers[0].name is no name of a container" in decide(request(item)).refusal


@pytest.mark.parametrize("item", [{}, {"spec": None}, {"spec": [7]}, {"metadata": None, "spec": {}}])
def test_a_pod_without_anything_passes(item: dict[str, Any]) -> None:
    assert decide(request(item)) == Decision()
