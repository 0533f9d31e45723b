"""`metadata.managedFields`, as Kubernetes writes it (FieldsV1): which manager has written which field last. Pure.

Simplified: every manager's operation is Update. The lists that have keys are those of strategic merge patches, `ATOMIC`
names the maps that are one value, and all else is noted leaf by leaf.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .patch import MERGE_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Body = dict[str, Any]
Path = tuple[str, ...]
"""Elements as FieldsV1 writes them: `f:name`, `k:{"name":"main"}`."""

ATOMIC = ("nodeSelector", "selector", "limits", "requests")
_METADATA = ("labels", "annotations", "ownerReferences")


@dataclass(slots=True)
class _Owner:
    """A manager's fields, by one way of writing."""

    manager: str
    subresource: str
    fields: set[Path]
    entry: Body
    """As it was written last."""


def note_update(
    before: Mapping[str, Any], after: Body, manager: str, subresource: str, api_version: str, now: str
) -> None:
    """Write into `after` that the fields which a write has changed are its manager's now."""
    was, now_there = _leaves(before), _leaves(after)
    changed = {path for path, value in now_there.items() if path not in was or was[path] != value}
    owners = _owners_of(before)
    if not changed and was.keys() <= now_there.keys():
        if owners:
            after["metadata"]["managedFields"] = before["metadata"]["managedFields"]
        return
    for owner in owners:
        owner.fields = {path for path in owner.fields - changed if path in now_there}
    own = next((owner for owner in owners if (owner.manager, owner.subresource) == (manager, subresource)), None)
    if own is None:
        own = _Owner(manager, subresource, set(), {})
        owners.append(own)
    own.fields |= changed
    entries = [_entry(owner, api_version, now) for owner in owners if owner.fields]
    after["metadata"].pop("managedFields", None)
    if entries:
        after["metadata"]["managedFields"] = entries


def _leaves(body: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the noted fields of an object, with their values."""
    found: dict[Path, Any] = {}
    for key, value in body.items():
        if key == "metadata":
            for name in _METADATA:
                if value.get(name):
                    _flatten(value[name], name, ("f:metadata", f"f:{name}"), found)
        elif key not in ("apiVersion", "kind"):
            _flatten(value, key, (f"f:{key}",), found)
    return found


def _flatten(value: Any, name: str, path: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value and name not in ATOMIC:
        for key, item in value.items():
            _flatten(item, key, (*path, f"f:{key}"), found)
    elif isinstance(value, list) and value and _is_keyed(name, value):
        for item in value:
            key = json.dumps({MERGE_KEYS[name]: item[MERGE_KEYS[name]]}, separators=(",", ":"))
            _flatten(item, "", (*path, f"k:{key}"), found)
    elif value is not None:
        found[path] = value


def _is_keyed(name: str, items: Iterable[Any]) -> bool:
    return name in MERGE_KEYS and all(isinstance(item, dict) and MERGE_KEYS[name] in item for item in items)


def _owners_of(body: Mapping[str, Any]) -> list[_Owner]:
    """Return which manager wrote which fields, as an object's managedFields say."""
    return [
        _Owner(entry["manager"], entry.get("subresource", ""), set(_decoded(entry.get("fieldsV1", {}), ())), entry)
        for entry in body.get("metadata", {}).get("managedFields") or []
    ]


def _decoded(tree: Mapping[str, Any], above: Path) -> Iterable[Path]:
    for name, below in tree.items():
        if below:
            yield from _decoded(below, (*above, name))
        else:
            yield (*above, name)


def _entry(owner: _Owner, api_version: str, now: str) -> Body:
    tree: Body = {}
    for path in sorted(owner.fields):
        at = tree
        for name in path:
            at = at.setdefault(name, {})
    if owner.entry.get("fieldsV1") == tree:
        return owner.entry
    entry: Body = {"manager": owner.manager, "operation": "Update", "apiVersion": api_version, "time": now}
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": tree}
    return entry | ({"subresource": owner.subresource} if owner.subresource else {})
