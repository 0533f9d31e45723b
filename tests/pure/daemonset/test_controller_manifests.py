"""The gate controller's manifests: of least privilege, of one mind with its own and the agents' settings."""

from typing import Any

from kustomize import render
from manifests import DAEMONSET

from sharepod.agent.settings import OPTIONS as AGENT_OPTIONS
from sharepod.scheduler.metrics import manual
from sharepod.scheduler.queues import Queues, read_queues
from sharepod.scheduler.settings import OPTIONS
from sharepod.scheduler.usage_identity import AGENT_USER, AUDIENCE

Object = dict[str, Any]
GATES, BASE = render(DAEMONSET / "gates"), render(DAEMONSET)


def one(kind: str, name: str = "", objects: list[Object] = GATES) -> Object:
    [found] = [item for item in objects if item["kind"] == kind and name in item["metadata"]["name"]]
    return found


POD = one("Deployment")["spec"]["template"]
[CONTAINER] = POD["spec"]["containers"]
SETTINGS = OPTIONS.parse(CONTAINER["command"][3:], {item["name"]: item["value"] for item in CONTAINER["env"]})


def test_it_may_read_pods_and_nodes_write_onto_pods_evict_and_ask_whose_tokens_there_are() -> None:
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
        ("pods/eviction", "create"),
        ("tokenreviews", "create"),
    }
    spec = POD["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert not any(spec.get(key) for key in ("hostPID", "hostIPC", "hostNetwork"))
    context = CONTAINER["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})


def test_its_status_is_asked_where_it_listens_and_nobody_else_reaches_it() -> None:
    assert POD["spec"]["enableServiceLinks"] is False
    assert SETTINGS.listen.startswith("127.0.0.1:")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        command = CONTAINER[probe]["exec"]["command"]
        assert command[:2] == ["sharepod-probe", SETTINGS.listen]
        assert command[2] == ("/readyz" if probe == "readinessProbe" else "/healthz")
    assert SETTINGS.drain_seconds + 10 <= POD["spec"]["terminationGracePeriodSeconds"]


def test_agents_report_to_all_replicas_with_a_token_that_these_take() -> None:
    service, data = one("Service"), one("ConfigMap", "feed")["data"]
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    [port] = service["spec"]["ports"]
    assert data["SHAREPOD_SCHEDULER_ADDRESS"] == f"{name}:{port['port']}"
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["spec"]["selector"].items() <= POD["metadata"]["labels"].items()
    [listening] = [item for item in CONTAINER["ports"] if item["name"] == port["targetPort"]]
    assert SETTINGS.usage_listen.rpartition(":")[2] == str(listening["containerPort"]) == str(port["port"])
    assert (SETTINGS.usage_audience, SETTINGS.usage_account) == (AUDIENCE, AGENT_USER)
    [volume] = [item for item in POD["spec"]["volumes"] if item["name"] == "certificate"]
    [mount] = [item for item in CONTAINER["volumeMounts"] if item["name"] == "certificate"]
    assert {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]} == {
        SETTINGS.usage_certificate, SETTINGS.usage_key,
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
    objects = render(DAEMONSET / "gates" / "cert-manager")
    [certificate] = [item for item in objects if "dnsNames" in item["spec"]]
    service = one("Service")["metadata"]
    assert certificate["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
    [volume] = [item for item in POD["spec"]["volumes"] if item["name"] == "certificate"]
    assert certificate["spec"]["secretName"] == volume["secret"]["secretName"]
    issuers = [{"kind": item["kind"], "name": item["metadata"]["name"]} for item in objects]
    assert certificate["spec"]["issuerRef"] in issuers


def test_the_readme_makes_what_the_manifests_wait_for() -> None:
    text = " ".join((DAEMONSET / "gates" / "README.md").read_text().replace("\\\n", " ").split())
    assert "subjectAltName=DNS:sharepod-scheduler-feed.sharepod.svc" in text
    files = "--from-file=tls.crt=feed.crt --from-file=tls.key=feed.key --from-file=ca.crt=feed.crt"
    assert f"create secret generic sharepod-scheduler-feed {files}" in text


def test_the_metrics_are_documented() -> None:
    assert (DAEMONSET.parent / "docs" / "scheduler-metrics.md").read_text() == manual()


def test_it_may_hold_its_lease_and_read_its_rules_and_no_more() -> None:
    names = {name for rule in one("Role")["rules"] for name in rule.get("resourceNames", ())}
    assert names == {name.removeprefix("sharepod/") for name in (SETTINGS.lease, SETTINGS.queues)}
    assert one("ConfigMap", "queues")["metadata"]["name"] in names
    for binding in (one("RoleBinding"), one("ClusterRoleBinding")):
        role = one(binding["roleRef"]["kind"])
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        [subject] = binding["subjects"]
        assert subject["name"] == POD["spec"]["serviceAccountName"]


def test_the_rules_that_are_installed_can_be_read() -> None:
    assert read_queues(one("ConfigMap", "queues")["data"]) == Queues()
