"""Server-side apply: who owns which field, and who may change it. Pure.

Simplified: the lists that have keys are those of strategic merge patches, `ATOMIC` names the maps that are one value,
all else is owned leaf by leaf. `metadata.managedFields` is as Kubernetes writes it (FieldsV1).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .patch import MERGE_KEYS, MERGED_SETS
from .refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Body = dict[str, Any]
Path = tuple[str, ...]
"""Elements as FieldsV1 writes them: `f:name`, `k:{"name":"main"}`, `v:"item"`."""

ATOMIC = ("nodeSelector", "selector", "labelSelector", "limits", "requests")
_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


@dataclass(slots=True)
class Owner:
    """A manager's fields, by one way of writing."""

    manager: str
    operation: str
    """Apply or Update."""
    subresource: str
    fields: set[Path]
    entry: Body
    """As it was written last."""


def leaves(body: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the owned fields of an object, with their values."""
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
    elif isinstance(value, list) and name in MERGED_SETS:
        for item in value:
            found[*path, "v:" + json.dumps(item)] = item
    elif isinstance(value, list) and value and _is_keyed(name, value):
        for item in value:
            _flatten(item, "", (*path, _key_of(name, item)), found)
    elif value is not None:
        found[path] = value


def _is_keyed(name: str, items: Iterable[Any]) -> bool:
    return name in MERGE_KEYS and all(isinstance(item, dict) and MERGE_KEYS[name] in item for item in items)


def _key_of(name: str, item: Mapping[str, Any]) -> str:
    return "k:" + json.dumps({MERGE_KEYS[name]: item[MERGE_KEYS[name]]}, separators=(",", ":"))


def owners_of(body: Mapping[str, Any]) -> list[Owner]:
    """Return who owns what, as an object's managedFields say."""
    return [
        Owner(
            entry["manager"], entry["operation"], entry.get("subresource", ""),
            set(_decoded(entry.get("fieldsV1", {}), ())), entry,
        )
        for entry in body.get("metadata", {}).get("managedFields") or []
    ]  # fmt: skip


def _decoded(tree: Mapping[str, Any], above: Path) -> Iterable[Path]:
    for name, below in tree.items():
        if name == ".":
            yield above
        elif below:
            yield from _decoded(below, (*above, name))
        else:
            yield (*above, name)


def _encoded(fields: Iterable[Path]) -> Body:
    tree: Body = {}
    for path in sorted(fields):
        at = tree
        for name in path:
            at = at.setdefault(name, {})
    return tree


def _set_owners(body: Body, owners: Iterable[Owner], api_version: str, now: str) -> None:
    entries = []
    for owner in owners:
        if not owner.fields:
            continue
        tree = _encoded(owner.fields)
        entry = owner.entry
        if entry.get("fieldsV1") != tree:
            entry = {"manager": owner.manager, "operation": owner.operation, "apiVersion": api_version, "time": now}
            entry |= {"fieldsType": "FieldsV1", "fieldsV1": tree}
            if owner.subresource:
                entry["subresource"] = owner.subresource
        entries.append(entry)
    if entries:
        body["metadata"]["managedFields"] = entries
    else:
        body["metadata"].pop("managedFields", None)


def _owner(owners: list[Owner], manager: str, operation: str, subresource: str) -> Owner:
    for owner in owners:
        if (owner.manager, owner.operation, owner.subresource) == (manager, operation, subresource):
            return owner
    owners.append(Owner(manager, operation, subresource, set(), {}))
    return owners[-1]


def note_update(
    before: Mapping[str, Any], after: Body, manager: str, subresource: str, api_version: str, now: str
) -> None:
    """Write into `after` that the fields which an ordinary write has changed are its manager's now."""
    was, now_there = leaves(before), leaves(after)
    changed = {path for path, value in now_there.items() if path not in was or was[path] != value}
    owners = owners_of(before)
    if not changed and was.keys() <= now_there.keys():
        if owners:
            after["metadata"]["managedFields"] = before["metadata"]["managedFields"]
        return
    for owner in owners:
        owner.fields = {path for path in owner.fields - changed if path in now_there}
    _owner(owners, manager, "Update", subresource).fields |= changed
    _set_owners(after, owners, api_version, now)


def note_applied(body: Body, wanted: Mapping[str, Any], manager: str, api_version: str, now: str) -> None:
    """Write into a new object that what was applied is its manager's."""
    _set_owners(body, [Owner(manager, "Apply", "", set(leaves(wanted)), {})], api_version, now)


def applied(
    live: Body, wanted: Mapping[str, Any], manager: str, subresource: str, api_version: str, now: str, *, force: bool
) -> Body:
    """Return an object to which a manager has applied what it wants. Raises Refusal (409) for what is others'."""
    wants, owners, there = leaves(wanted), owners_of(live), leaves(live)
    own = _owner(owners, manager, "Apply", subresource)
    others = [owner for owner in owners if owner is not own]
    disputed = [
        (owner, path) for owner in others for path in sorted(owner.fields)
        if path in wants and there.get(path) != wants[path]
    ]  # fmt: skip
    if disputed and not force:
        raise _conflict(disputed)
    for owner, path in disputed:
        owner.fields.discard(path)
    merged = _merge(live, wanted)
    given_up = own.fields - wants.keys()
    for path in sorted(given_up, key=_is_key):  # an item is found by its key, so that goes last
        if not any(path in owner.fields for owner in others):
            _remove(merged, path)
    own.fields = set(wants)
    _set_owners(merged, owners, api_version, now)
    return merged


def _merge(live: Body, wanted: Mapping[str, Any]) -> Body:
    for key, value in wanted.items():
        before = live.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and key not in ATOMIC:
            live[key] = _merge(before, value)
        elif isinstance(value, list) and isinstance(before, list) and key in MERGED_SETS:
            live[key] = before + [item for item in value if item not in before]
        elif isinstance(value, list) and isinstance(before, list) and _is_keyed(key, [*before, *value]):
            by = {_key_of(key, item): item for item in before}
            for item in value:
                name = _key_of(key, item)
                by[name] = _merge(by.get(name, {}), item)
            live[key] = list(by.values())
        else:
            live[key] = value
    return live


def _remove(body: Any, path: Path) -> None:
    """Take a field away, and the items of keyed lists, and maps, that are empty then."""
    name, rest = path[0], path[1:]
    if name.startswith("f:"):
        key = name[2:]
        if not isinstance(body, dict) or key not in body:
            return
        if rest:
            _remove(body[key], rest)
        if not rest or body[key] in ({}, []):
            del body[key]
    elif name.startswith("v:") and isinstance(body, list):
        body[:] = [item for item in body if item != json.loads(name[2:])]
    elif name.startswith("k:") and isinstance(body, list):
        key = json.loads(name[2:])
        for item in [item for item in body if key.items() <= item.items()]:
            if not _is_key(path):
                _remove(item, rest)
            elif not item.keys() - key.keys():
                body.remove(item)


def _is_key(path: Path) -> bool:
    """Tell whether a field is the key of a list's item."""
    return len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])


def _conflict(disputed: list[tuple[Owner, Path]]) -> Refusal:
    texts: dict[str, list[str]] = {}
    causes = []
    for owner, path in disputed:
        field = "".join(f".{word[2:]}" if word.startswith("f:") else f"[{word[2:]}]" for word in path)
        using = f'"{owner.manager}" using {owner.entry.get("apiVersion", "")}'
        texts.setdefault(using, []).append(field)
        causes.append({"reason": "FieldManagerConflict", "message": f"conflict with {using}", "field": field})
    listed = "; ".join(f"conflict with {using}: {', '.join(fields)}" for using, fields in texts.items())
    number = f"{len(disputed)} conflict{'s' if len(disputed) > 1 else ''}"
    return Refusal(409, "Conflict", f"Apply failed with {number}: {listed}", causes=causes)
