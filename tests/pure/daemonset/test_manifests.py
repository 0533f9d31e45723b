"""Test the manifests: they are valid and complete, give least privilege, and hold settings that processes accept."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kustomize import identity
from manifests import ADDITIONS, CERTIFICATES, DAEMONSET, INSTALLS, OBJECTS, VERSIONS, Object, named, one, pod_of

from sharepod.agent.settings import OPTIONS as AGENT
from sharepod.process.options import Options
from sharepod.scheduler.controller.queues import Queues, read_queues
from sharepod.scheduler.feed.usage_identity import AGENT_USER, AUDIENCE
from sharepod.scheduler.metrics import manual
from sharepod.scheduler.placement.constraints import read_constraints
from sharepod.scheduler.settings import OPTIONS as SCHEDULER
from sharepod.webhook.settings import OPTIONS as WEBHOOK

FOREIGN = ("monitoring.coreos.com/", "cert-manager.io/", "kueue.x-k8s.io/")
"""API groups that Kubernetes has no schema for; the e2e tests apply Kueue's objects to Kueue itself."""
PODS = [*sorted(INSTALLS), "gates", "compatibility"]


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


@pytest.fixture(params=sorted(INSTALLS))
def node_pod(request: pytest.FixtureRequest) -> Object:
    """Return the spec of the node's pod in one way to install SharePod."""
    return dict(pod_of(request.param)["spec"])


# ---- what is installed


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_every_object_is_valid_with_unknown_fields_forbidden_and_says_what_it_belongs_to(name: str) -> None:
    for item in OBJECTS[name]:
        if not item["apiVersion"].startswith(FOREIGN):
            for release in VERSIONS:
                kubernetes_validate.validate(item, release, strict=True)
        if item["metadata"]["name"] != "sharepod-agent":  # kustomize makes this ConfigMap from a file
            assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sharepod"


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_kubectl_renders_what_is_checked_here(name: str) -> None:
    if (kubectl := shutil.which("kubectl")) is None:
        return  # no other test here needs kubectl
    command = [kubectl, "kustomize", {**INSTALLS, **ADDITIONS}[name]]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    theirs = yaml.safe_load_all(re.sub(r"(sharepod-agent)-[a-z0-9]{10}\b", r"\1", shown))
    assert sorted(filter(None, theirs), key=identity) == sorted(OBJECTS[name], key=identity)


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


TOGETHER = {
    **{name: (name,) for name in INSTALLS},
    **{name: ("default", name) for name in ("compatibility", "monitoring", "policy")},
    "gates": ("default", "compatibility", "gates"),
}
"""What the manuals install together: an installation, and for each addition what it depends on."""


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_what_is_installed_refers_to_nothing_that_is_not(name: str) -> None:
    objects = [item for part in TOGETHER[name] for item in OBJECTS[part]]
    pages = [{**INSTALLS, **ADDITIONS}[part] / "README.md" for part in TOGETHER[name]]
    said = " ".join(page.read_text() for page in pages if page.is_file())
    made = {("Secret", secret) for secret in re.findall(r"create secret (?:generic|tls) ([a-z-]+)", said)}
    applied = {(item["kind"], item["metadata"]["name"]) for item in objects}
    needed = set(references(objects))
    assert ("ServiceAccount", "sharepod-node") in needed
    assert needed - applied - made - {("ConfigMap", "kube-root-ca.crt")} == set()


@pytest.mark.parametrize("folder", CERTIFICATES)
def test_cert_manager_makes_the_secret_that_the_page_makes_for_the_name_of_the_service(folder: str) -> None:
    part = folder.partition("/")[0]
    service = one(OBJECTS[part], "Service")["metadata"]
    [certificate] = [item for item in OBJECTS[folder] if "dnsNames" in item["spec"]]
    name = f"{service['name']}.{service['namespace']}.svc"
    assert certificate["spec"]["dnsNames"] == [name]
    secret = named(pod_of(part)["spec"]["volumes"], "certificate")["secret"]["secretName"]
    assert certificate["spec"]["secretName"] == secret
    issuers = [{"kind": item["kind"], "name": item["metadata"]["name"]} for item in OBJECTS[folder]]
    assert certificate["spec"]["issuerRef"] in issuers
    page = (DAEMONSET / part / "README.md").read_text()
    assert f"DNS:{name}" in page
    assert re.search(rf"create secret (?:generic|tls) {secret} ", page)


# ---- privileges

RIGHTS = {
    ("sharepod-node", "pods"): {"get", "list", "watch"},
    ("sharepod-node", "nodes"): {"get"},
    ("sharepod-node", "events"): {"create", "patch"},
    ("sharepod-scheduler", "pods"): {"get", "list", "watch", "patch"},
    ("sharepod-scheduler", "nodes"): {"get", "list", "watch"},
    ("sharepod-scheduler", "events"): {"create", "patch"},
    ("sharepod-scheduler", "pods/eviction"): {"create"},
    ("sharepod-scheduler", "tokenreviews"): {"create"},
    ("sharepod-scheduler", "leases"): {"create"},
    ("sharepod-scheduler", "leases sharepod-gates-leader"): {"get", "update"},
    ("sharepod-scheduler", "configmaps sharepod-gates-queues"): {"get", "list", "watch"},
}
"""What each role allows. The webhook has none."""


def test_each_role_allows_what_its_process_needs_and_nothing_more() -> None:
    objects = [item for parts in TOGETHER.values() for part in parts for item in OBJECTS[part]]
    rights = {
        (item["metadata"]["name"], " ".join([resource, *rule.get("resourceNames", ())])): set(rule["verbs"])
        for item in objects
        if item["kind"] in ("ClusterRole", "Role")
        for rule in item["rules"]
        for resource in rule["resources"]
    }
    assert rights == RIGHTS
    accounts = {name: pod_of(name)["spec"]["serviceAccountName"] for name in PODS}
    for name in PODS:
        for item in OBJECTS[name]:
            if item["kind"] in ("ClusterRoleBinding", "RoleBinding"):
                assert item["roleRef"]["name"] == accounts[name]
                assert [subject["name"] for subject in item["subjects"]] == [accounts[name]]


@pytest.mark.parametrize("name", PODS)
def test_no_pod_has_a_privilege_without_need_or_variables_that_nobody_gave_it(name: str) -> None:
    pod = pod_of(name)["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "variables of services would be taken for settings, and be unknown"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any(pod.get(key) for key in ("hostIPC", "hostNetwork"))
    if name not in INSTALLS:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert not pod.get("hostPID")
        assert not any("hostPath" in volume for volume in pod["volumes"])
    for item in containers(pod):
        context = item["securityContext"]
        assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
        assert "privileged" not in context
        added = {"add": ["SYS_PTRACE"]} if item["name"] == "agent" else {}
        assert context["capabilities"] == {"drop": ["ALL"], **added}
        assert set(item["resources"]["requests"]) == {"cpu", "memory"}
        assert set(item["resources"]["limits"]) == {"memory"}
        assert item["image"] == f"sharepod:{version('sharepod')}", "one update of the image reaches all"


def test_the_plugin_alone_has_a_token_of_the_api_server_and_the_agent_one_of_the_scheduler(node_pod: Object) -> None:
    audiences = {
        volume["name"]: source["serviceAccountToken"].get("audience")
        for volume in node_pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    }
    assert audiences == {"scheduler": AUDIENCE, "token": None}
    mounted = {(item["name"], mount["name"]) for item in containers(node_pod) for mount in item["volumeMounts"]}
    assert {pair for pair in mounted if pair[1] in audiences} == {("agent", "scheduler"), ("device-plugin", "token")}


WRITES = {
    "install": {"/var/lib/sharepod", "/run/sharepod-gpus"},
    "agent": {"/run/sharepod", "/var/lib/sharepod", "/run/sharepod-gpus"},
    "device-plugin": {"/run/sharepod", "/var/lib/sharepod", "/var/lib/kubelet/device-plugins", "/var/run/cdi"},
}
READS = {"device-plugin": {"/var/lib/kubelet/pod-resources", "/etc/cdi"}}


def test_each_container_sees_of_the_node_what_it_needs(node_pod: Object) -> None:
    on_node = {item["name"]: item["hostPath"]["path"] for item in node_pod["volumes"] if "hostPath" in item}
    used = set()
    for item in containers(node_pod):
        for mount in item["volumeMounts"]:
            path = on_node.get(mount["name"])
            if path is None:
                assert mount["readOnly"] is True
                continue
            used.add(mount["name"])
            assert mount["mountPath"] == path, "containers of pods are given paths of the node"
            allowed = READS if mount.get("readOnly") else WRITES
            assert path in allowed.get(item["name"], set())
    assert used == set(on_node)


# ---- the life of a pod; the e2e tests show what else its settings and its ports have to be


@pytest.mark.parametrize("name", [*sorted(INSTALLS), "gates"])
def test_every_long_container_is_probed_and_the_probe_ends_by_itself(name: str) -> None:
    for item in pod_of(name)["spec"]["containers"]:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            command = item[probe]["exec"]["command"]
            assert command[0] == "sharepod-probe"
            assert float(command[3]) < item[probe]["timeoutSeconds"]


@pytest.mark.parametrize("name", sorted(INSTALLS))
def test_agent_and_plugin_wait_for_the_driver_unless_it_is_simulated(name: str) -> None:
    given = [env for item in pod_of(name)["spec"]["containers"] for env in item.get("env", [])]
    awaited = {env["name"]: env.get("value", "") for env in given if env["name"].endswith("_WAIT_FOR")}
    file = "" if name == "simulated" else "/proc/driver/nvidia/version"
    assert awaited == {"SHAREPOD_WAIT_FOR": file, "SHAREPOD_PLUGIN_WAIT_FOR": file}


DRIVER_UPGRADE = "paused-for-driver-upgrade"
"""What NVIDIA's operator sets instead of true, while it takes the driver away."""


@pytest.mark.parametrize(
    ("labels", "is_there"),
    [
        ({}, True),
        ({"nvidia.com/gpu.deploy.client": "true"}, True),
        ({"nvidia.com/gpu.deploy.client": DRIVER_UPGRADE}, False),
        ({"nvidia.com/gpu.deploy.client": "false"}, False),
        ({"sharepod.io/agent": "disabled"}, False),
        ({"sharepod.io/agent": "disabled", "nvidia.com/gpu.deploy.client": "true"}, False),
        ({"kubernetes.io/os": "windows"}, False),
        ({"kubernetes.io/os": "windows", "nvidia.com/gpu.deploy.client": "true"}, False),
    ],
)
def test_the_nodes_pod_leaves_a_node_from_which_the_driver_is_to_be_taken(
    labels: dict[str, str], is_there: bool, node_pod: Object
) -> None:
    node = {"kubernetes.io/os": "linux"} | labels
    assert read_constraints(node_pod).suit("n1", node, ()) == is_there


def test_the_agent_alone_asks_nvidias_runtime_for_devices_unless_they_are_simulated(node_pod: Object) -> None:
    asked = {
        item["name"]: env["value"]
        for item in containers(node_pod)
        for env in item.get("env", ())
        if env["name"] == "NVIDIA_VISIBLE_DEVICES"
    }
    simulated = any(item["name"] == "simulated" for item in node_pod["volumes"])
    assert asked == {"agent": "void" if simulated else "all"}


@pytest.mark.parametrize("name", sorted(INSTALLS))
def test_the_nodes_pod_comes_before_those_that_hold_shares_and_goes_after_them(name: str) -> None:
    pod = pod_of(name)["spec"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert {"operator": "Exists", "effect": "NoExecute"} in pod["tolerations"]
    assert pod["terminationGracePeriodSeconds"] >= 10


def test_agents_take_their_settings_keep_their_state_in_memory_and_report_to_the_controllers_service(
    tmp_path: Path,
) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(one(OBJECTS["default"], "ConfigMap")["data"]["agent.yaml"])
    found = AGENT.load({}, one(OBJECTS["gates"], "ConfigMap", "feed")["data"], str(file))
    assert found.state_directory == found.runtime_directory, "written every two seconds: not on a disk"
    service = one(OBJECTS["gates"], "Service")
    name, port = service["metadata"], service["spec"]["ports"][0]["port"]
    assert found.scheduler_address == f"{name['name']}.{name['namespace']}.svc:{port}"
    assert service["spec"]["clusterIP"] == "None", "to each replica"


def settings_of(name: str, options: Options[Any]) -> Any:
    """Return the settings that a Deployment gives its process."""
    [container] = pod_of(name)["spec"]["containers"]
    return options.parse(container["command"][3:], {item["name"]: item["value"] for item in container["env"]})


@pytest.mark.parametrize(("name", "options"), [("gates", SCHEDULER), ("compatibility", WEBHOOK)])
def test_a_deployment_gives_settings_that_its_process_takes_and_the_time_to_drain(
    name: str, options: Options[Any]
) -> None:
    drain_seconds = settings_of(name, options).drain_seconds
    assert drain_seconds + 10 <= pod_of(name)["spec"]["terminationGracePeriodSeconds"]


def test_the_controller_may_use_the_lease_and_the_rules_that_its_settings_name() -> None:
    found = settings_of("gates", SCHEDULER)
    named_rights = {right.split()[1] for _, right in RIGHTS if " " in right}
    assert named_rights == {place.removeprefix("sharepod/") for place in (found.lease, found.queues)}
    assert read_queues(one(OBJECTS["gates"], "ConfigMap", "queues")["data"]) == Queues()
    assert found.listen.startswith("127.0.0.1:"), "its status is nobody else's"
    assert (found.usage_audience, found.usage_account) == (AUDIENCE, AGENT_USER)


def test_the_manual_of_the_controllers_metrics_is_current() -> None:
    assert (DAEMONSET.parent / "docs" / "scheduler-metrics.md").read_text() == manual()
