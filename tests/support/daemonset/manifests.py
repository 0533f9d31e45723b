"""Renders the manifests of daemonset/ for the tests that read them."""

from collections.abc import Iterable
from typing import Any

from kustomize import render

from rig import REPO_ROOT

Object = dict[str, Any]
VERSIONS = ("1.31", "1.34", "1.37")
"""The oldest Kubernetes that is served, and the two that `make e2e` starts."""
DAEMONSET = REPO_ROOT / "daemonset"
INSTALLS = {"default": DAEMONSET, **{path.name: path for path in sorted((DAEMONSET / "overlays").iterdir())}}
"""What `kubectl apply -k` may be given to install SharePod."""
CERTIFICATES = {name: DAEMONSET / name for name in ("gates/cert-manager", "compatibility/cert-manager")}
PARTS = ("policy", "monitoring", "gates", "compatibility", "kueue", "kueue/example")
ADDITIONS = {**{name: DAEMONSET / name for name in PARTS}, **CERTIFICATES}
"""The folders that may be applied in addition to one of the installs."""
OBJECTS = {name: render(path) for name, path in {**INSTALLS, **ADDITIONS}.items()}
"""The objects that each folder makes."""


def one(objects: Iterable[Object], kind: str, name: str = "") -> Object:
    """Return the only object of a kind that has this part in its name."""
    [found] = [item for item in objects if item["kind"] == kind and name in item["metadata"]["name"]]
    return found


def named(items: Iterable[Object], name: str) -> Object:
    """Return the only item of that name."""
    [found] = [item for item in items if item["name"] == name]
    return found


def pod_of(name: str) -> Object:
    """Return the pod that a folder's DaemonSet or Deployment makes: its metadata and its spec."""
    [found] = [item for item in OBJECTS[name] if item["kind"] in ("DaemonSet", "Deployment")]
    return dict(found["spec"]["template"])
