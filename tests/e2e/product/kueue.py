"""Runs Kueue's own manager on our cluster, from Kueue's manifests, configured as daemonset/kueue says."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from build_tools import KUEUE
from cluster import Cluster
from image import Image

from rig import REPO_ROOT

IMAGE = "docker.io/library/kueue:e2e"
NAMESPACE = "kueue-system"
CONFIGURATION = REPO_ROOT / "daemonset" / "kueue" / "configuration.yaml"
SETTINGS = "controller_manager_config.yaml"
FRAMEWORKS = ("batch/job", "pod")  # other frameworks' kinds are not installed here
Object = dict[str, Any]


def fitted(item: Object) -> Object:
    """Return an object of Kueue's manifests with the image that we import and the configuration that ours needs."""
    if item["kind"] == "ConfigMap" and SETTINGS in item.get("data", {}):
        settings = yaml.safe_load(item["data"][SETTINGS]) | yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
        settings["integrations"] = {"frameworks": list(FRAMEWORKS)}
        item["data"][SETTINGS] = yaml.safe_dump(settings)
    if item["kind"] == "Deployment":
        [container] = item["spec"]["template"]["spec"]["containers"]
        container |= {"image": IMAGE, "imagePullPolicy": "Never"}
    return item


def make_image(cluster: Cluster, manager: Path) -> None:
    """Import an image on the nodes with Kueue's program and nothing else."""
    root = cluster.shared / "kueue"
    root.mkdir(exist_ok=True)
    shutil.copy(manager, root)
    cluster.import_image(Image(IMAGE, (), user="65532", entrypoint=["/manager"]), root)


@contextmanager
def kueue_on(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Install Kueue from the folder of its module; remove it at the end."""
    kubectl = cluster.kubectl
    make_image(cluster, folder / "manager")
    shown = kubectl("kustomize", str(folder / KUEUE.copied / "default"))
    objects = [fitted(item) for item in yaml.safe_load_all(shown) if item]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()
    try:
        # One of Kueue's kinds is too large for the annotation that a client-side apply writes.
        kubectl("apply", "--server-side", "-f", "-", stdin=listed, timeout_seconds=120)
        kubectl.rolled_out("deployment/kueue-controller-manager", NAMESPACE)
        yield
    finally:
        kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=listed, timeout_seconds=120)
