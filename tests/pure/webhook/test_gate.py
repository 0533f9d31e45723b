"""Test that pods with shares get a gate once, and that impossible gangs are refused when their pods are created.

The tests of the manifests show which pods the API server asks about.
"""

from typing import Any

import pytest
from foreign_pods import Object, kai, patched, pod, request, with_spec

from sharepod.webhook.gate import decide
from sharepod.webhook.review import Decision

GATE = {"name": "sharepod.io/gate"}
OTHER = {"name": "kueue.x-k8s.io/topology"}
SHARED = pod({"sharepod.io/gpu": "30"})


def gated(item: Object) -> Object:
    """Return the pod as the API server would create it after the webhook's answer."""
    return patched(item, decide(request(item)))


def test_a_pod_with_a_share_is_gated_and_else_unchanged() -> None:
    assert gated(SHARED) == with_spec(SHARED, schedulingGates=[GATE])


def test_others_gates_stay_and_ours_is_set_once() -> None:
    made = gated(with_spec(SHARED, schedulingGates=[OTHER]))
    assert made["spec"]["schedulingGates"] == [OTHER, GATE]
    assert decide(request(made)) == Decision()


@pytest.mark.parametrize(
    ("item", "operation"),
    [
        (pod({"sharepod.io/gpu": "0"}), "CREATE"),
        (kai(gpu_fraction="0.5"), "CREATE"),  # a pod that is not translated yet has no share
        (SHARED, "UPDATE"),
        *(({"metadata": None, "spec": spec}, "CREATE") for spec in (None, [7], {})),
    ],
)
def test_pods_that_no_gate_is_for_pass(item: Object, operation: str) -> None:
    assert decide(request(item, operation)) == Decision()


@pytest.mark.parametrize("value", ["all", {"name": "x"}, None])
def test_gates_that_are_none_are_no_gates(value: Any) -> None:
    assert gated(with_spec(SHARED, schedulingGates=value))["spec"]["schedulingGates"] == [GATE]


def test_a_container_without_a_name_is_refused() -> None:
    item = with_spec(pod({}), containers=[{"resources": {"limits": {"sharepod.io/gpu": "30"}}}])
    assert "spec.containers[0].name is no name of a container" in decide(request(item)).refusal
