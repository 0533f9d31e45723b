"""The webhook for pods of other systems: least privilege, which pods it is asked about, what policies say of them."""

import re
from typing import Any

import cel
import pytest
from foreign_pods import decided, hami, kai, kubeshare, patched, pod, right_pods
from hypothesis import given, settings
from hypothesis import strategies as st
from kustomize import render
from manifests import DAEMONSET, VERSIONS
from test_manifests import check
from test_policy import refusals

from sharepod.webhook import hami as hami_words
from sharepod.webhook import kai as kai_words
from sharepod.webhook.main import COMPATIBILITY_PATH
from sharepod.webhook.settings import OPTIONS, Settings

Object = dict[str, Any]
OBJECTS = render(DAEMONSET / "compatibility")


def one(kind: str) -> Object:
    [found] = [item for item in OBJECTS if item["kind"] == kind]
    return found


WEBHOOK = one("MutatingWebhookConfiguration")["webhooks"][0]
POD = one("Deployment")["spec"]["template"]
[CONTAINER] = POD["spec"]["containers"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_with_unknown_fields_forbidden(version: str) -> None:
    for item in OBJECTS:
        check(item, version)
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sharepod"


def test_it_may_do_nothing() -> None:
    assert [item["kind"] for item in OBJECTS if "Role" in item["kind"]] == []
    assert one("ServiceAccount")["automountServiceAccountToken"] is False
    spec, context = POD["spec"], CONTAINER["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"] > 0) == (True, True)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["readOnlyRootFilesystem"] is True
    assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
    assert not any(spec.get(key) for key in ("hostPID", "hostIPC", "hostNetwork"))
    assert {list(volume)[1] for volume in spec["volumes"]} == {"secret"}


def test_its_settings_are_ones_that_it_takes() -> None:
    environment = {item["name"]: item["value"] for item in CONTAINER["env"]}
    found = OPTIONS.parse(CONTAINER["command"][3:], environment)
    assert found == Settings(), "what the manifest says are the defaults"
    assert POD["spec"]["enableServiceLinks"] is False, f"a service's variables would begin with {OPTIONS.prefix}"
    [volume] = [item for item in POD["spec"]["volumes"] if item["name"] == "certificate"]
    [mount] = [item for item in CONTAINER["volumeMounts"] if item["name"] == "certificate"]
    assert volume["secret"] == {"secretName": "sharepod-webhook", "defaultMode": 0o440}
    assert {str(found.certificate.parent), str(found.key.parent)} == {mount["mountPath"]}
    assert found.drain_seconds + 10 <= POD["spec"]["terminationGracePeriodSeconds"]


def test_the_api_server_finds_it() -> None:
    service, port = one("Service"), CONTAINER["ports"][0]
    client = WEBHOOK["clientConfig"]["service"]
    assert (client["namespace"], client["name"]) == (service["metadata"]["namespace"], service["metadata"]["name"])
    assert client["path"] == COMPATIBILITY_PATH
    assert (client["port"], port["name"]) == (
        service["spec"]["ports"][0]["port"],
        service["spec"]["ports"][0]["targetPort"],
    )
    assert port["containerPort"] == Settings().port
    for selected in (service["spec"]["selector"], one("Deployment")["spec"]["selector"]["matchLabels"]):
        assert selected.items() <= POD["metadata"]["labels"].items()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"] == {"path": "/healthz", "port": "webhook", "scheme": "HTTPS"}


def test_the_certificate_has_the_name_that_the_api_server_asks_for() -> None:
    name = "sharepod-webhook.sharepod.svc"
    objects = render(DAEMONSET / "compatibility" / "cert-manager")
    [certificate] = [item for item in objects if "dnsNames" in item["spec"]]
    assert certificate["spec"]["dnsNames"] == [name]
    assert certificate["spec"]["secretName"] == POD["spec"]["volumes"][0]["secret"]["secretName"]
    assert certificate["spec"]["issuerRef"] in [
        {"kind": item["kind"], "name": item["metadata"]["name"]} for item in objects
    ]
    wanted = f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    assert one("MutatingWebhookConfiguration")["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == wanted
    assert f"DNS:{name}" in (DAEMONSET / "compatibility" / "README.md").read_text()


def test_nothing_depends_on_it_but_the_pods_of_who_asked_for_it() -> None:
    selector = WEBHOOK["namespaceSelector"]
    assert selector["matchLabels"] == {"sharepod.io/compatibility": "enabled"}
    [never] = selector["matchExpressions"]
    assert (never["key"], never["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
    assert {"kube-system", POD["metadata"].get("namespace", "sharepod")} <= set(never["values"])
    [rule] = WEBHOOK["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    assert (WEBHOOK["sideEffects"], WEBHOOK["failurePolicy"]) == ("None", "Fail")
    assert WEBHOOK["timeoutSeconds"] <= 10


def asked(item: Object) -> bool:
    """Tell whether the API server asks the webhook about a pod in a namespace that takes part."""
    [condition] = WEBHOOK["matchConditions"]
    return cel.evaluate(condition["expression"], {"object": item}) is True


def test_pods_of_nobody_else_are_not_asked_about() -> None:
    whole = pod({"nvidia.com/gpu": "1"}, annotations={"example.com/gpu-fraction": "1"}, labels={"app": "x"})
    for item in (pod({}), whole, pod({"sharepod.io/gpu": "30"}, annotations={"sharepod.io/limit": "60"})):
        assert not asked(item)
        assert decided(item).patch == ()


def test_every_word_of_the_others_is_asked_about() -> None:
    for key in kai_words.KEYS:
        assert asked(pod({}, annotations={key: "x"}))
    for key in hami_words.RESOURCES:
        assert asked(pod({key: "1"}))
        assert asked(pod({}, init=[{"name": "i", "resources": {"requests": {key: "1"}}}]))
    for where in ("labels", "annotations"):
        assert asked(kubeshare(where, gpu_limit="1"))


@given(item=right_pods())
@settings(max_examples=100, deadline=None)
def test_what_is_written_passes_the_policies(item: Object) -> None:
    assert asked(item)
    made = patched(item, decided(item))
    assert refusals("annotations", made) == []
    assert refusals("devices", made) == []
    assert refusals("chosen-device", made) == []


@given(
    item=st.sampled_from(
        [kai(gpu_fraction="0.5"), hami({"gpumem": 10, "gpu": 2}), kubeshare(gpu_limit="1", gpu_request="1")]
    ),
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


def test_an_update_of_the_image_reaches_it() -> None:
    base = next(item for item in render(DAEMONSET) if item["kind"] == "DaemonSet")
    assert CONTAINER["image"] == base["spec"]["template"]["spec"]["containers"][0]["image"]
    assert re.fullmatch(r"sharepod:\d+\.\d+\.\d+", CONTAINER["image"])
