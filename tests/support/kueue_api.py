"""What Kueue's API (kueue.x-k8s.io/v1beta2) says of the kinds and fields that our manifests use: for strict validation.

Kueue itself is no dependency of the tests. A field or a value that is not here is refused, though Kueue may have it; to
validate by all that Kueue has, name a folder with its CustomResourceDefinitions in $SHAREPOD_TEST_KUEUE_CRDS.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

Schema = dict[str, Any]
GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = "v1beta2"
PLURALS: Final = {
    "ResourceFlavor": "resourceflavors",
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "WorkloadPriorityClass": "workloadpriorityclasses",
}

_QUANTITY: Final[Schema] = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([kMGTPE]i?|m)?$"}
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final[Schema] = {"type": "string", "maxLength": 253, "pattern": rf"^{_LABEL}(\.{_LABEL})*$"}
_WORDS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, **({"required": list(required)} if required else {})}


def _list(of: Schema, most: int) -> Schema:
    return {"type": "array", "items": of, "minItems": 1, "maxItems": most}


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


_QUOTA: Final = _object(
    ("name", "nominalQuota"),
    name={"type": "string"},
    nominalQuota=_QUANTITY,
    borrowingLimit=_QUANTITY,
    lendingLimit=_QUANTITY,
)
_GROUPS: Final = _list(
    _object(
        ("coveredResources", "flavors"),
        coveredResources=_list({"type": "string"}, 64),
        flavors=_list(_object(("name", "resources"), name=_NAME, resources=_list(_QUOTA, 64)), 64),
    ),
    16,
)
_FAIR: Final = _object(weight=_QUANTITY)
_STOP: Final = _one_of("None", "Hold", "HoldAndDrain")
_SPECS: Final[dict[str, Schema]] = {
    "ResourceFlavor": _object(nodeLabels={**_WORDS, "maxProperties": 8}, topologyName=_NAME),
    "Cohort": _object(parentName=_NAME, resourceGroups=_GROUPS, fairSharing=_FAIR),
    "LocalQueue": _object(clusterQueue=_NAME, stopPolicy=_STOP, fairSharing=_FAIR),
    "ClusterQueue": _object(
        cohortName=_NAME,
        resourceGroups=_GROUPS,
        queueingStrategy=_one_of("StrictFIFO", "BestEffortFIFO"),
        namespaceSelector=_object(matchLabels=_WORDS),
        stopPolicy=_STOP,
        fairSharing=_FAIR,
        preemption=_object(
            withinClusterQueue=_one_of("Never", "LowerPriority", "LowerOrNewerEqualPriority"),
            reclaimWithinCohort=_one_of("Never", "LowerPriority", "Any"),
        ),
    ),
}


def schema_of(kind: str) -> Schema:
    """Return what an object of a kind may be, as its CustomResourceDefinition has it."""
    if folder := os.environ.get("SHAREPOD_TEST_KUEUE_CRDS"):
        found = yaml.safe_load((Path(folder) / f"{GROUP}_{PLURALS[kind]}.yaml").read_text())
        [version] = [item for item in found["spec"]["versions"] if item["name"] == VERSION]
        return dict(version["schema"]["openAPIV3Schema"])
    text: Schema = {"type": "string"}
    head = {"apiVersion": text, "kind": text, "metadata": {"type": "object"}}
    if kind == "WorkloadPriorityClass":
        return _object(("value",), **head, value={"type": "integer"}, description={**text, "maxLength": 2048})
    return _object(**head, spec=_SPECS[kind])


def check(item: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError when a field is unknown or a value is not one that it may have."""
    assert item["apiVersion"] == f"{GROUP}/{VERSION}"
    jsonschema.validate(item, _strict(copy.deepcopy(schema_of(item["kind"]))))


def _strict(schema: Schema) -> Schema:
    """Forbid what is not named, but in the metadata, which are Kubernetes' own."""
    if schema.get("properties"):
        schema.setdefault("additionalProperties", False)
    if schema.pop("x-kubernetes-int-or-string", None):  # its pattern is of the string that it is turned into
        schema.pop("pattern", None)
    for name, inner in schema.get("properties", {}).items():
        if name != "metadata":
            _strict(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            _strict(schema[key])
    return schema
