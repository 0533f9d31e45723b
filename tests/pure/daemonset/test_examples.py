"""The examples: valid pods, whose annotations are admitted by the policies and understood by the device plugin."""

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from manifests import DAEMONSET, VERSIONS
from test_policy import RIGHT, WRONG, pod, refusals

EXAMPLES = sorted(path.parent for path in DAEMONSET.glob("examples/*/pods.yaml"))
Object = dict[str, Any]


def pods_of(folder: Path) -> list[Object]:
    return [item for item in yaml.safe_load_all((folder / "pods.yaml").read_text()) if item]


def understood(item: Object) -> list[Any]:
    """Return the terms of each container that holds a share, as the device plugin reads them."""
    if importlib.util.find_spec("sharepod.deviceplugin") is None:
        return []
    terms = importlib.import_module("sharepod.deviceplugin.terms")
    containers = item["spec"]["containers"]
    counts = {
        one["name"]: int(one.get("resources", {}).get("limits", {}).get("sharepod.io/gpu", 0)) for one in containers
    }
    annotations = item["metadata"].get("annotations", {})
    return [
        terms.read_terms(annotations, name, count, containers=tuple(counts)) for name, count in counts.items() if count
    ]


def test_there_is_one_for_each_thing_that_pods_may_ask_for() -> None:
    assert len(EXAMPLES) == 5
    said = "".join((folder / "pods.yaml").read_text() for folder in EXAMPLES)
    for key in ("limit", "memory", "class", "devices", "same-device"):
        assert re.search(rf"sharepod\.io/([a-z]+\.)?{key}:", said)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid_admitted_and_understood(folder: Path) -> None:
    for item in pods_of(folder):
        for version in VERSIONS:
            kubernetes_validate.validate(item, version, strict=True)
        item["metadata"]["namespace"] = "default"
        assert refusals("annotations", item) == []
        assert refusals("devices", item) == []
        understood(item)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_what_to_expect_of_each_of_its_pods(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    for item in pods_of(folder):
        name = item["metadata"]["name"]
        assert f"pod/{name} created" in readme
        for container in item["spec"]["containers"]:
            units = container["resources"]["limits"]["sharepod.io/gpu"]
            devices = int(item["metadata"].get("annotations", {}).get("sharepod.io/devices", 1))
            assert re.search(rf"^[a-z0-9]{{10}} .* {units // devices} % ", readme, re.MULTILINE)
    assert f"[{folder.name}]({folder.name})" in (DAEMONSET / "examples" / "README.md").read_text()


def test_what_the_policies_admit_the_plugin_understands() -> None:
    for units, annotations in RIGHT:
        if units != (None,):
            understood(pod(*units, annotations=annotations))


@pytest.mark.parametrize(("units", "annotations", "message"), WRONG)
def test_what_the_policies_refuse_the_plugin_refuses_too(
    units: tuple[object, ...], annotations: dict[str, str], message: str
) -> None:
    if importlib.util.find_spec("sharepod.deviceplugin") is None:
        return
    terms = importlib.import_module("sharepod.deviceplugin.terms")
    with pytest.raises(terms.TermsError):
        understood(pod(*units, annotations=annotations))
