"""The scheduler's manifests: valid, of least privilege, of one mind with the extender's and the agents' settings."""

import re
from typing import Any

import pytest
import yaml
from conftest import DAEMONSET, VERSIONS
from kustomize import render
from test_manifests import check

from sharepod.agent.settings import OPTIONS as AGENT_OPTIONS
from sharepod.scheduler.metrics import manual
from sharepod.scheduler.queues import Queues, read_queues
from sharepod.scheduler.settings import OPTIONS, Settings
from sharepod.scheduler.usage_identity import AGENT_USER, AUDIENCE

Object = dict[str, Any]
NEW, OLD = (render(DAEMONSET / path) for path in ("scheduler", "scheduler/before-1.25"))
BASE = render(DAEMONSET)


def one(kind: str, name: str = "", objects: list[Object] = NEW) -> Object:
    [found] = [item for item in objects if item["kind"] == kind and name in item["metadata"]["name"]]
    return found


POD = one("Deployment")["spec"]["template"]
CONTAINERS = {item["name"]: item for item in POD["spec"]["containers"]}
CONFIGURATION = yaml.safe_load((DAEMONSET / "scheduler" / "scheduler.yaml").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_with_unknown_fields_forbidden(version: str) -> None:
    for item in NEW:
        check(item, version)
        assert item["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") == "sharepod" or (
            item["kind"] == "ConfigMap"
        )


def test_older_releases_get_the_same_but_for_the_configurations_version() -> None:
    new, old = (
        {(item["kind"], re.sub("-[a-z0-9]{10}$", "", item["metadata"]["name"])): item for item in objects}
        for objects in (NEW, OLD)
    )
    assert new.keys() == old.keys()
    text = (DAEMONSET / "scheduler" / "scheduler.yaml").read_text()
    other = (DAEMONSET / "scheduler" / "before-1.25" / "scheduler.yaml").read_text()
    assert other == text.replace("kubescheduler.config.k8s.io/v1\n", "kubescheduler.config.k8s.io/v1beta1\n")


def test_it_may_read_pods_and_nodes_write_onto_pods_and_ask_whose_tokens_there_are() -> None:
    rules = {
        (resource, verb)
        for rule in one("ClusterRole")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rules == {
        *(("pods", verb) for verb in ("get", "list", "watch", "patch")),
        *(("nodes", verb) for verb in ("get", "list", "watch")),
        *(("events", verb) for verb in ("create", "patch")),
        ("tokenreviews", "create"),
    }
    spec = POD["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert not any(spec.get(key) for key in ("hostPID", "hostIPC", "hostNetwork"))
    for container in CONTAINERS.values():
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})


def test_kube_scheduler_asks_the_extender_where_it_listens_and_nobody_else_reaches_it() -> None:
    extender = CONTAINERS["extender"]
    environment = {item["name"]: item["value"] for item in extender["env"]}
    found = OPTIONS.parse(extender["command"][3:], environment)
    assert POD["spec"]["enableServiceLinks"] is False
    [asked] = CONFIGURATION["extenders"]
    assert asked["urlPrefix"] == f"http://{found.listen}"
    assert found.listen.startswith("127.0.0.1:")
    assert {asked[f"{verb}Verb"] for verb in ("filter", "prioritize", "preempt")} == {"filter", "prioritize", "preempt"}
    assert asked["nodeCacheCapable"] is True
    assert [item["name"] for item in asked["managedResources"]] == [found.resource]
    [profile] = CONFIGURATION["profiles"]
    assert profile["schedulerName"] == found.scheduler_name
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        command = extender[probe]["exec"]["command"]
        assert command[:2] == ["sharepod-probe", found.listen]
        assert command[2] == ("/readyz" if probe == "readinessProbe" else "/healthz")
    assert found.drain_seconds + 10 <= POD["spec"]["terminationGracePeriodSeconds"]
    lease = CONFIGURATION["leaderElection"]
    assert one("Role")["rules"][1]["resourceNames"] == [lease["resourceName"]]
    assert one("Role")["metadata"]["namespace"] == lease["resourceNamespace"]


def test_agents_report_to_all_replicas_with_a_token_that_these_take() -> None:
    service, data = one("Service"), one("ConfigMap", "feed")["data"]
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    [port] = service["spec"]["ports"]
    assert data["SHAREPOD_SCHEDULER_ADDRESS"] == f"{name}:{port['port']}"
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["spec"]["selector"].items() <= POD["metadata"]["labels"].items()
    [listening] = [item for item in CONTAINERS["extender"]["ports"] if item["name"] == port["targetPort"]]
    found = OPTIONS.parse([], {item["name"]: item["value"] for item in CONTAINERS["extender"]["env"]})
    assert found.usage_listen.rpartition(":")[2] == str(listening["containerPort"]) == str(port["port"])
    assert (found.usage_audience, found.usage_account) == (AUDIENCE, AGENT_USER)
    [volume] = [item for item in POD["spec"]["volumes"] if item["name"] == "certificate"]
    [mount] = [item for item in CONTAINERS["extender"]["volumeMounts"] if item["name"] == "certificate"]
    assert {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]} == {
        found.usage_certificate, found.usage_key,
    }  # fmt: skip

    agent = one("DaemonSet", objects=BASE)["spec"]["template"]["spec"]
    [volume] = [item for item in agent["volumes"] if item["name"] == "scheduler"]
    token, authority = (source for source in volume["projected"]["sources"])
    assert token["serviceAccountToken"]["audience"] == AUDIENCE
    assert authority["secret"] == {
        "name": "sharepod-scheduler-feed", "optional": True, "items": [{"key": "ca.crt", "path": "ca.crt"}],
    }  # fmt: skip
    [container] = [item for item in agent["containers"] if item["name"] == "agent"]
    assert {"configMapRef": {"name": "sharepod-scheduler-feed", "optional": True}} in container["envFrom"]
    [mount] = [item for item in container["volumeMounts"] if item["name"] == "scheduler"]
    assert data["SHAREPOD_SCHEDULER_CA"] == f"{mount['mountPath']}/ca.crt"
    assert data["SHAREPOD_SCHEDULER_TOKEN_FILE"] == f"{mount['mountPath']}/token"
    flags = {f"--{key.removeprefix('SHAREPOD_').lower().replace('_', '-')}={value}" for key, value in data.items()}
    assert AGENT_OPTIONS.parse(sorted(flags), {}).scheduler_address == data["SHAREPOD_SCHEDULER_ADDRESS"]


def test_cert_manager_makes_the_same_secret() -> None:
    objects = render(DAEMONSET / "scheduler" / "cert-manager")
    [certificate] = [item for item in objects if "dnsNames" in item["spec"]]
    service = one("Service")["metadata"]
    assert certificate["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
    [volume] = [item for item in POD["spec"]["volumes"] if item["name"] == "certificate"]
    assert certificate["spec"]["secretName"] == volume["secret"]["secretName"]
    issuers = [{"kind": item["kind"], "name": item["metadata"]["name"]} for item in objects]
    assert certificate["spec"]["issuerRef"] in issuers


def test_the_readme_makes_what_the_manifests_wait_for() -> None:
    text = " ".join((DAEMONSET / "scheduler" / "README.md").read_text().replace("\\\n", " ").split())
    assert "subjectAltName=DNS:sharepod-scheduler-feed.sharepod.svc" in text
    files = "--from-file=tls.crt --from-file=tls.key --from-file=ca.crt=tls.crt"
    assert f"create secret generic sharepod-scheduler-feed {files}" in text


def test_the_metrics_are_documented() -> None:
    assert (DAEMONSET.parent / "docs" / "scheduler-metrics.md").read_text() == manual()


GATES = render(DAEMONSET / "gates")
YIELDS = render(DAEMONSET / "scheduler" / "yields")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_yields_and_gates_add_is_valid(version: str) -> None:
    for item in [*YIELDS, *GATES]:
        check(item, version)
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sharepod"


def test_the_controller_of_gates_is_the_extenders_pod_without_kube_scheduler() -> None:
    here, there = (one("Deployment", objects=objects)["spec"] for objects in (GATES, NEW))
    [controller] = here["template"]["spec"]["containers"]
    extender = CONTAINERS["extender"]
    assert {item["name"]: item["value"] for item in controller["env"]} == {
        **{item["name"]: item["value"] for item in extender["env"]},
        "SHAREPOD_SCHEDULER_FRONT": "gates",
    }
    same = ("image", "command", "ports", "resources", "startupProbe", "livenessProbe", "readinessProbe", "volumeMounts")
    assert {key: controller[key] for key in same} == {key: extender[key] for key in same}
    assert (here["replicas"], here["selector"]) == (there["replicas"], there["selector"])
    assert not any(item["kind"] == "ClusterRoleBinding" and "kube" in item["roleRef"]["name"] for item in GATES)
    found = OPTIONS.parse(controller["command"][3:], {item["name"]: item["value"] for item in controller["env"]})
    assert (found.front, found.keeps) == ("gates", True)


def test_who_decides_may_evict_hold_its_lease_and_read_its_rules_and_no_more() -> None:
    [cluster] = [item for item in YIELDS if item["kind"] == "ClusterRole"]
    assert cluster["rules"] == [{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}]
    role = one("Role", objects=YIELDS)
    found = Settings()
    names = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
    assert names == {name.removeprefix("sharepod/") for name in (found.lease, found.queues)}
    assert one("ConfigMap", "queues", GATES)["metadata"]["name"] in names
    settings = one("ConfigMap", "yields", YIELDS)["data"]
    assert OPTIONS.parse(["--usage-listen", "off"], settings).keeps


def test_the_rules_that_are_installed_can_be_read() -> None:
    assert read_queues(one("ConfigMap", "queues", GATES)["data"]) == Queues()
