"""Test what the API server asks the installed webhook, and that the policies accept what the webhook writes."""

import cel
import pytest
from foreign_pods import RIGHT, decided, kubeshare, patched, pod, request, shares, translated, with_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import OBJECTS, Object, one
from test_policy import refusals

from sharepod.webhook import gate
from sharepod.webhook import hami as hami_words
from sharepod.webhook import kai as kai_words
from sharepod.webhook.main import COMPATIBILITY_PATH, GATE_PATH

WEBHOOKS = {
    path: one(OBJECTS[part], "MutatingWebhookConfiguration")["webhooks"][0]
    for path, part in ((COMPATIBILITY_PATH, "compatibility"), (GATE_PATH, "gates"))
}
SHARE = {"sharepod.io/gpu": "30"}
INIT = {"name": "i", "image": "x", "resources": {"limits": SHARE}}


def asked(path: str, item: Object) -> bool:
    """Tell whether the API server asks the webhook about a pod in a namespace that takes part."""
    conditions = [condition["expression"] for condition in WEBHOOKS[path]["matchConditions"]]
    return all(cel.evaluate(expression, {"object": item}) is True for expression in conditions)


@pytest.mark.parametrize("path", WEBHOOKS)
def test_no_pod_is_made_without_an_answer_but_the_clusters_own_and_ours_which_nobody_asks_about(path: str) -> None:
    webhook = WEBHOOKS[path]
    assert webhook["clientConfig"]["service"]["path"] == path
    [rule] = webhook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    assert (webhook["sideEffects"], webhook["failurePolicy"]) == ("None", "Fail")
    assert webhook["timeoutSeconds"] <= 10
    never = webhook["namespaceSelector"]["matchExpressions"][0]
    assert (never["key"], never["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
    assert {"kube-system", "sharepod"} <= set(never["values"])


def test_a_namespace_takes_part_in_translation_when_it_asks_and_in_gates_unless_it_does_not_want_to() -> None:
    compatibility, gates = (WEBHOOKS[path]["namespaceSelector"] for path in (COMPATIBILITY_PATH, GATE_PATH))
    assert compatibility["matchLabels"] == {"sharepod.io/compatibility": "enabled"}
    left = gates["matchExpressions"][1]
    assert (left["key"], left["operator"]) == ("sharepod.io/gates", "NotIn")
    assert WEBHOOKS[GATE_PATH]["reinvocationPolicy"] == "IfNeeded", "a pod that was translated holds shares, too"


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
def test_it_is_asked_for_gates_of_the_pods_that_it_gates_and_no_others(item: Object, *, gated: bool) -> None:
    assert asked(GATE_PATH, item) is gated
    assert bool(gate.decide(request(item)).patch) is gated


def test_it_is_asked_about_pods_with_any_word_of_the_others_and_no_other_pods() -> None:
    for key in kai_words.KEYS:
        assert asked(COMPATIBILITY_PATH, pod({}, annotations={key: "x"}))
    for key in hami_words.RESOURCES:
        assert asked(COMPATIBILITY_PATH, pod({key: "1"}))
        init = [{"name": "i", "resources": {"requests": {key: "1"}}}]
        assert asked(COMPATIBILITY_PATH, pod({}, init=init))
    for where in ("labels", "annotations"):
        assert asked(COMPATIBILITY_PATH, kubeshare(where, gpu_limit="1"))
    whole = pod({"nvidia.com/gpu": "1"}, annotations={"example.com/gpu-fraction": "1"}, labels={"app": "x"})
    for item in (pod({}), whole, pod(SHARE, annotations={"sharepod.io/limit": "60"})):
        assert not asked(COMPATIBILITY_PATH, item)
        assert decided(item).patch == ()


@pytest.mark.parametrize("item", [item for item, _ in RIGHT])
def test_what_is_rightly_written_is_asked_about_and_passes_the_policies(item: Object) -> None:
    assert asked(COMPATIBILITY_PATH, item)
    made = translated(item)
    assert shares(made)
    assert [refusals(policy, made) for policy in ("annotations", "devices", "chosen-device")] == [[], [], []]


# Pods of one container only: the policies also judge annotations for a container without a share.
@given(
    item=st.sampled_from([item for item, _ in RIGHT if len(item["spec"]["containers"]) == 1]),
    key=st.sampled_from(
        ["class", "a.class", "paused", "same-device", "gang", "yield", "a.yield", "a.gang", "clas", "Limit", "z.paused"]
    ),
    text=st.sampled_from(["true", "batch", "fast", "", "60"]),
)
@settings(max_examples=150, deadline=None)
def test_what_the_policies_would_refuse_is_refused_or_passes(item: Object, key: str, text: str) -> None:
    annotations = {**item["metadata"].get("annotations", {}), f"sharepod.io/{key}": text}
    item = {**item, "metadata": {**item["metadata"], "annotations": annotations}}
    decision = decided(item)
    assert decision.refusal or decision.patch
    if not decision.refusal:
        assert refusals("annotations", patched(item, decision)) == []
