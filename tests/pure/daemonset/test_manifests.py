"""What is applied to a cluster: valid for every Kubernetes that is tested or claimed, and with the least privilege."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import kueue_api
import pytest
import yaml
from kustomize import KEYS, render
from manifests import ADDITIONS, DAEMONSET, INSTALLS, VERSIONS

from sharepod.agent.settings import OPTIONS
from sharepod.scheduler.usage_identity import AUDIENCE

FOREIGN = {"PodMonitor", "PrometheusRule", "Issuer", "Certificate", *kueue_api.PLURALS}
"""Kinds of the Prometheus operator, of cert-manager and of Kueue, of which Kubernetes has no schema."""
Object = dict[str, Any]


def containers(pod: Object) -> list[Object]:
    return [*pod["initContainers"], *pod["containers"]]


def named(pod: Object, name: str) -> Object:
    [found] = [item for item in containers(pod) if item["name"] == name]
    return found


def check(item: Object, version: str) -> None:
    if item["kind"] not in FOREIGN:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_with_unknown_fields_forbidden(install: list[Object], version: str) -> None:
    for item in install:
        check(item, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(ADDITIONS))
def test_what_is_added_is_valid(name: str, version: str) -> None:
    for item in render(ADDITIONS[name]):
        check(item, version)


def test_a_field_that_does_not_exist_would_be_found(install: list[Object]) -> None:
    [item] = [item for item in install if item["kind"] == "DaemonSet"]
    item["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        check(item, VERSIONS[-1])


@pytest.mark.parametrize("folder", [*INSTALLS.values(), *ADDITIONS.values()], ids=lambda path: path.name)
def test_kubectl_renders_what_is_checked_here(folder: Path) -> None:
    """With the kubectl on the path, and those named in $SHAREPOD_TEST_KUBECTL."""
    found = [shutil.which("kubectl"), *os.environ.get("SHAREPOD_TEST_KUBECTL", "").split(":")]
    for kubectl in filter(None, found):
        done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)
        theirs = [item for item in yaml.safe_load_all(done.stdout) if item]
        assert normal(theirs) == normal(render(folder))


def normal(objects: list[Object]) -> list[Any]:
    """Return objects in an order of their own, without the hash in the names of ConfigMaps."""

    def sort(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            name = value.get("name", "")
            hashed = re.fullmatch("(sharepod-agent)-[a-z0-9]{10}", str(name))
            plain = {"name": hashed[1]} if hashed else {}
            return {inner: sort(item, inner) for inner, item in {**value, **plain}.items()}
        if isinstance(value, list):
            items = [sort(item) for item in value]
            return sorted(items, key=lambda item: str(item[KEYS[key]])) if key in KEYS else items
        return value

    return sorted((sort(item) for item in objects), key=lambda item: json.dumps(item, sort_keys=True))


def test_every_object_says_what_it_belongs_to(install: list[Object]) -> None:
    for item in install:
        if item["kind"] != "ConfigMap":
            assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sharepod"


def test_pods_and_nodes_are_read_and_events_written_and_nothing_more(install: list[Object]) -> None:
    roles = [item for item in install if item["kind"] in ("ClusterRole", "Role")]
    assert [role["rules"] for role in roles] == [
        [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        ]
    ]
    [binding] = [item for item in install if item["kind"] in ("ClusterRoleBinding", "RoleBinding")]
    assert binding["roleRef"]["name"] == roles[0]["metadata"]["name"]
    [account] = [item for item in install if item["kind"] == "ServiceAccount"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": account["metadata"]["namespace"]}
    ]


def test_the_plugin_alone_has_the_token(pod: Object) -> None:
    assert pod["automountServiceAccountToken"] is False
    places = [item["name"] for item in containers(pod) if "token" in {mount["name"] for mount in item["volumeMounts"]}]
    assert places == ["device-plugin"]


def test_the_agent_has_a_token_that_the_scheduler_takes_and_no_api_server(pod: Object) -> None:
    tokens = [
        (volume["name"], source["serviceAccountToken"].get("audience"))
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    ]
    assert tokens == [("scheduler", AUDIENCE), ("token", None)]
    places = [item["name"] for item in containers(pod) if "scheduler" in {m["name"] for m in item["volumeMounts"]}]
    assert places == ["agent"]


def test_the_settings_of_the_feed_are_ones_that_the_agent_takes(pod: Object) -> None:
    found_maps = [item for item in render(ADDITIONS["gates"]) if item["kind"] == "ConfigMap"]
    [settings] = [item for item in found_maps if item["metadata"]["name"].endswith("-feed")]
    agent = named(pod, "agent")
    assert {"name": settings["metadata"]["name"], "optional": True} in [
        item["configMapRef"] for item in agent["envFrom"]
    ]
    found = OPTIONS.load({}, settings["data"])
    [mount] = [item for item in agent["volumeMounts"] if item["name"] == "scheduler"]
    [volume] = [item for item in pod["volumes"] if item["name"] == "scheduler"]
    token, secret = volume["projected"]["sources"]
    assert found.scheduler_token_file == f"{mount['mountPath']}/{token['serviceAccountToken']['path']}"
    assert found.scheduler_ca == f"{mount['mountPath']}/{secret['secret']['items'][0]['path']}"
    assert secret["secret"]["optional"] is True
    assert found.scheduler_address.partition(".")[2].startswith(f"{settings['metadata']['namespace']}.svc:")


def test_nobody_has_a_capability_without_need(pod: Object) -> None:
    for item in containers(pod):
        context = item["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["capabilities"].get("add", []) == (["SYS_PTRACE"] if item["name"] == "agent" else [])
        assert context.get("privileged", False) is False
        assert context["allowPrivilegeEscalation"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod.get("hostNetwork", False) is False
    assert pod.get("hostIPC", False) is False


WRITES = {
    "install": {"/var/lib/sharepod", "/run/sharepod-gpus"},
    "agent": {"/run/sharepod", "/var/lib/sharepod", "/run/sharepod-gpus"},
    "device-plugin": {"/run/sharepod", "/var/lib/sharepod", "/var/lib/kubelet/device-plugins", "/var/run/cdi"},
}
READS = {"device-plugin": {"/var/lib/kubelet/pod-resources", "/etc/cdi"}}


def test_each_container_sees_of_the_node_what_it_needs(pod: Object) -> None:
    on_node = {item["name"]: item["hostPath"]["path"] for item in pod["volumes"] if "hostPath" in item}
    used = set()
    for item in containers(pod):
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


def test_each_path_of_the_node_has_a_reason_beside_it() -> None:
    found = 0
    for path in [DAEMONSET / "base" / "daemonset.yaml", *DAEMONSET.glob("overlays/*/daemonset.yaml")]:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "hostPath:" in line:
                assert lines[number - 1].strip().startswith("- name:")
                assert lines[number - 2].strip().startswith("# "), f"{path}: line {number + 1} has no reason"
                found += 1
    assert found >= 7


def test_a_new_version_goes_from_node_to_node_and_restarts_no_other_pod(daemonset: Object, pod: Object) -> None:
    assert daemonset["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    assert pod["priorityClassName"] == "system-node-critical"
    assert {"operator": "Exists", "effect": "NoExecute"} in pod["tolerations"]
    assert pod["terminationGracePeriodSeconds"] >= 10


def test_every_container_is_bounded_and_every_long_one_is_probed(pod: Object) -> None:
    for item in containers(pod):
        assert set(item["resources"]["requests"]) == {"cpu", "memory"}
        assert set(item["resources"]["limits"]) == {"memory"}
        assert not item["image"].endswith(":latest")
        assert ":" in item["image"]
    for item in pod["containers"]:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            command = item[probe]["exec"]["command"]
            assert command[0] == "sharepod-probe"
            assert float(command[3]) < item[probe]["timeoutSeconds"], "the probe ends by itself"


def test_the_agents_settings_are_ones_that_it_takes(install: list[Object], pod: Object, tmp_path: Path) -> None:
    [settings] = [item for item in install if item["kind"] == "ConfigMap"]
    file = tmp_path / "agent.yaml"
    file.write_text(settings["data"]["agent.yaml"])
    agent = named(pod, "agent")
    environment = {item["name"]: item.get("value", "node-1") for item in agent["env"]}
    found = OPTIONS.load({}, environment, str(file))
    mounts = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert found.node_name == "node-1"
    assert found.runtime_directory == mounts["runtime"]
    assert found.hook_directory == mounts["state"]
    assert found.state_directory == found.runtime_directory, "written every two seconds: not on a disk"
    [volume] = [item for item in pod["volumes"] if item["name"] == "settings"]
    assert volume["configMap"]["name"] == settings["metadata"]["name"]
    probed = {probe["exec"]["command"][1] for probe in (agent["livenessProbe"], agent["readinessProbe"])}
    assert probed == {found.socket_path}


def test_variables_of_services_do_not_become_settings(pod: Object) -> None:
    assert pod["enableServiceLinks"] is False


def test_simulated_devices_have_a_directory_of_their_own() -> None:
    [found] = [item for item in render(INSTALLS["simulated"]) if item["kind"] == "DaemonSet"]
    pod = found["spec"]["template"]["spec"]
    state = Path(next(item["value"] for item in named(pod, "agent")["env"] if item["name"] == "SIMGPU_STATE"))
    assert named(pod, "install")["args"] == ["--simulated", str(state)]
    for name in ("install", "agent"):
        assert str(state.parent) in {mount["mountPath"] for mount in named(pod, name)["volumeMounts"]}
    assert not state.is_relative_to("/run/sharepod"), "what is mounted into pods must not be the agent's own"


def test_images_have_the_version_of_the_package(pod: Object) -> None:
    from importlib.metadata import version

    assert {item["image"] for item in containers(pod)} == {f"sharepod:{version('sharepod')}"}
