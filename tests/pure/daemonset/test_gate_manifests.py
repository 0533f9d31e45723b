"""Gates as they are installed: whether anything is missing, which pods the webhook is asked about, and without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cel
import pytest
from foreign_pods import pod
from kustomize import render
from manifests import DAEMONSET, INSTALLS

from sharepod.webhook.gate import decide
from sharepod.webhook.main import GATE_PATH
from sharepod.webhook.review import Request

Object = dict[str, Any]
OBJECTS = render(DAEMONSET / "gates")
[CONFIGURATION] = [item for item in OBJECTS if item["kind"] == "MutatingWebhookConfiguration"]
[WEBHOOK] = CONFIGURATION["webhooks"]
SHARE = {"sharepod.io/gpu": "30"}
INIT = {"name": "i", "image": "x", "resources": {"limits": SHARE}}
TOGETHER = {
    **{name: (path,) for name, path in INSTALLS.items()},
    **{name: (DAEMONSET, DAEMONSET / name) for name in ("compatibility", "monitoring", "policy")},
    "gates": (DAEMONSET, DAEMONSET / "compatibility", DAEMONSET / "gates"),
}
"""What the pages install together: an installation, and what each addition stands on."""


def asked(item: Object) -> bool:
    """Tell whether the API server asks the webhook about a pod in a namespace that takes part."""
    conditions = [condition["expression"] for condition in WEBHOOK["matchConditions"]]
    return all(cel.evaluate(expression, {"object": item}) is True for expression in conditions)


def with_spec(item: Object, **more: Any) -> Object:
    return {**item, "spec": item["spec"] | more}


def references(value: Any) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each ConfigMap, Secret, Service and ServiceAccount that an object needs."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        name = item.get("name", item.get("secretName")) if isinstance(item, dict) else None
        needed = isinstance(item, dict) and not item.get("optional", False)
        if key in ("configMap", "configMapRef", "configMapKeyRef") and needed:
            yield "ConfigMap", str(name)
        elif key in ("secret", "secretRef", "secretKeyRef") and needed:
            yield "Secret", str(name)
        elif key == "service" and name is not None:
            yield "Service", str(name)
        elif key == "serviceAccountName":
            yield "ServiceAccount", str(item)
        yield from references(item)
    if value.get("kind") == "ServiceAccount" and "apiVersion" not in value:  # the subject of a binding
        yield "ServiceAccount", value["name"]


def found_in(objects: list[Object], folders: tuple[Path, ...]) -> set[tuple[str, str]]:
    """Return kind and name of what is installed: objects, and the Secrets that the pages' own commands make."""
    texts = [(path / "README.md").read_text() for path in folders if (path / "README.md").is_file()]
    made = {name for text in texts for name in re.findall(r"create secret (?:generic|tls) ([a-z-]+)", text)}
    applied = {(item["kind"], item["metadata"]["name"]) for item in objects}
    kubernetes = {("ConfigMap", "kube-root-ca.crt")}
    return applied | {("Secret", name) for name in made} | kubernetes


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_what_is_installed_refers_to_nothing_that_is_not(name: str) -> None:
    objects = [item for folder in TOGETHER[name] for item in render(folder)]
    needed = set(references(objects))
    assert ("ServiceAccount", "sharepod-node") in needed
    assert needed - found_in(objects, TOGETHER[name]) == set()


def test_the_controller_does_not_wait_for_reports_that_nobody_sends() -> None:
    """Agents take where they report from a ConfigMap that may be missing: with the controller it must be there."""
    [daemonset] = [item for item in render(DAEMONSET) if item["kind"] == "DaemonSet"]
    [agent] = [item for item in daemonset["spec"]["template"]["spec"]["containers"] if item["name"] == "agent"]
    read = {source["configMapRef"]["name"] for source in agent["envFrom"]}
    maps = {item["metadata"]["name"]: item["data"] for item in OBJECTS if item["kind"] == "ConfigMap"}
    there = {name: data for name, data in maps.items() if name in read}
    addresses = [data["SHAREPOD_SCHEDULER_ADDRESS"] for data in there.values() if "SHAREPOD_SCHEDULER_ADDRESS" in data]
    assert len(addresses) == 1, f"{read} tell agents where they report: daemonset/gates has {sorted(there)}"
    services = [item["metadata"]["name"] for item in OBJECTS if item["kind"] == "Service"]
    assert addresses[0].partition(".")[0] in services


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
