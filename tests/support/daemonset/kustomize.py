"""Renders manifests with the part of kustomize that daemonset/ uses, so that tests need no kubectl.

A test compares it with kubectl where that is installed; the e2e cluster applies the manifests with a real kubectl.
"""

from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}
"""The key by which Kubernetes merges each of these lists; any other list is replaced."""
KNOWN = {"resources", "generatorOptions", "configMapGenerator", "patches"}


def render(folder: Path) -> list[Object]:
    """Return the objects of a folder with a kustomization.yaml; generated ConfigMaps have no hash in their names."""
    content = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(content) <= KNOWN, f"{folder}: kustomize.py does not know {set(content) - KNOWN}"
    objects: list[Object] = []
    for name in content.get("resources", ()):
        path = folder / name
        objects += render(path) if path.is_dir() else [item for item in yaml.safe_load_all(path.read_text()) if item]
    for generator in content.get("configMapGenerator", ()):
        data = {Path(name).name: (folder / name).read_text() for name in generator["files"]}
        labels = content.get("generatorOptions", {}).get("labels")
        metadata = {key: generator[key] for key in ("name", "namespace")} | ({"labels": labels} if labels else {})
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for entry in content.get("patches", ()):
        patch = yaml.safe_load((folder / entry["path"]).read_text())
        [target] = [item for item in objects if identity(item) == identity(patch)]
        _merge(target, patch)
    return objects


def identity(item: Object) -> tuple[str, str, str, str]:
    """Return what identifies an object: API version, kind, namespace and name."""
    return item["apiVersion"], item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _merge(into: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif key in KEYS and isinstance(into.get(key), list):
            _merge_list(into[key], value, KEYS[key])
        else:
            into[key] = value


def _merge_list(into: list[Object], patch: list[Object], key: str) -> None:
    """Merge item by item; patched items come first, as kubectl orders them."""
    before = {item[key]: item for item in into}
    for value in patch:
        _merge(before.setdefault(value[key], {}), value)
    patched = [value[key] for value in patch]
    into[:] = [before.pop(name) for name in patched] + list(before.values())
