"""The webhook that sets gates, as it is installed: which pods it is asked about, and what happens without it."""

from __future__ import annotations

from typing import Any

import cel
import pytest
from conftest import DAEMONSET
from foreign_pods import pod
from kustomize import render

from sharepod.webhook.gate import decide
from sharepod.webhook.main import GATE_PATH
from sharepod.webhook.review import Request

Object = dict[str, Any]
OBJECTS = render(DAEMONSET / "gates")
[CONFIGURATION] = [item for item in OBJECTS if item["kind"] == "MutatingWebhookConfiguration"]
[WEBHOOK] = CONFIGURATION["webhooks"]
SHARE = {"sharepod.io/gpu": "30"}
INIT = {"name": "i", "image": "x", "resources": {"limits": SHARE}}


def asked(item: Object) -> bool:
    """Tell whether the API server asks the webhook about a pod in a namespace that takes part."""
    conditions = [condition["expression"] for condition in WEBHOOK["matchConditions"]]
    return all(cel.evaluate(expression, {"object": item}) is True for expression in conditions)


def with_spec(item: Object, **more: Any) -> Object:
    return {**item, "spec": item["spec"] | more}


def test_the_api_server_finds_it_where_it_answers() -> None:
    [service] = [item for item in render(DAEMONSET / "compatibility") if item["kind"] == "Service"]
    client = WEBHOOK["clientConfig"]["service"]
    assert client["path"] == GATE_PATH
    assert (client["namespace"], client["name"]) == (service["metadata"]["namespace"], service["metadata"]["name"])
    assert client["port"] == service["spec"]["ports"][0]["port"]


def test_without_an_answer_no_pod_with_shares_starts_ungated_and_all_others_do_not_depend_on_it() -> None:
    assert WEBHOOK["failurePolicy"] == "Fail"
    assert (WEBHOOK["sideEffects"], WEBHOOK["reinvocationPolicy"]) == ("None", "IfNeeded")
    [rule] = WEBHOOK["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    never, left = WEBHOOK["namespaceSelector"]["matchExpressions"]
    assert (never["key"], never["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
    assert {"kube-system", "sharepod"} <= set(never["values"])
    assert (left["key"], left["operator"]) == ("sharepod.io/gates", "NotIn")


@pytest.mark.parametrize(
    ("item", "gated"),
    [
        (pod(SHARE), True),
        (with_spec(pod({}), initContainers=[INIT]), True),
        (with_spec(pod(SHARE), nodeName=""), True),
        (pod({}), False),
        (pod({"nvidia.com/gpu": "1"}), False),
        (with_spec(pod(SHARE), nodeName="n1"), False),
        (with_spec(pod({}), initContainers=[{"name": "i", "image": "x"}]), False),
    ],
)
def test_it_is_asked_about_the_pods_that_it_gates_and_no_others(item: Object, *, gated: bool) -> None:
    assert asked(item) is gated
    decision = decide(Request("uid", "team", "p", "CREATE", dry_run=False, object=item))
    assert bool(decision.patch) is gated
