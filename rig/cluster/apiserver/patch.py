"""Patches: JSON patches (RFC 6902), JSON merge patches (RFC 7396) and strategic merge patches. Pure.

What is patched is changed in place, or not at all where a Refusal is raised: give a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .refusal import Refusal, bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

Body = dict[str, Any]

MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "env": "name", "volumes": "name",
    "imagePullSecrets": "name", "schedulingGates": "name", "secrets": "name",
    "ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath", "conditions": "type",
    "ownerReferences": "uid", "topologySpreadConstraints": "topologyKey", "hostAliases": "ip", "addresses": "type",
}  # fmt: skip
"""Lists that are merged by a field of their items; all others are replaced."""
MERGED_SETS = ("finalizers",)
_DELETE_FROM = "$deleteFromPrimitiveList/"


def json_patch(body: Body, operations: object) -> Body:
    """Return a body with operations done. Raises Refusal for one that cannot be."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    whole: Any = {"": body}
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request("an operation of a JSON patch has a path")
        try:
            _operate(whole, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {operation}: {error}"
            raise Refusal(422, "Invalid", message) from None
    if not isinstance(whole[""], dict):
        raise bad_request("a JSON patch left no object")
    return whole[""]


def _operate(whole: Any, operation: Mapping[str, Any]) -> None:
    kind, path = operation.get("op"), operation["path"]
    if kind in ("add", "replace", "test") and "value" not in operation:
        raise ValueError("it has no value")
    if kind == "add":
        _add(whole, path, operation["value"])
    elif kind == "replace":
        _take(whole, path, remove=True)
        _add(whole, path, operation["value"])
    elif kind == "remove":
        _take(whole, path, remove=True)
    elif kind == "test":
        if _take(whole, path) != operation["value"]:
            raise ValueError("testing path failed")
    elif kind in ("move", "copy"):
        value = _take(whole, operation["from"], remove=kind == "move")
        _add(whole, path, value)
    else:
        raise ValueError(f"unknown operation {kind!r}")


def _words(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise ValueError("a path begins with /")
    return ["", *(word.replace("~1", "/").replace("~0", "~") for word in path.split("/")[1:])]


def _parent(whole: Any, path: str) -> tuple[Any, str]:
    *above, last = _words(path)
    for word in above:
        whole = whole[_index(whole, word) if isinstance(whole, list) else word]
    return whole, last


def _take(whole: Any, path: str, *, remove: bool = False) -> Any:
    parent, last = _parent(whole, path)
    key = _index(parent, last) if isinstance(parent, list) else last
    value = parent[key]
    if remove and path:
        del parent[key]
    return value


def _add(whole: Any, path: str, value: Any) -> None:
    parent, last = _parent(whole, path)
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(parent, last, end=True), value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise TypeError("it is no object and no list")


def _index(items: list[Any], word: str, *, end: bool = False) -> int:
    if not word.isdecimal() or (word != "0" and word.startswith("0")) or int(word) >= len(items) + end:
        raise IndexError(f"no index {word}")
    return int(word)


def merge_patch(body: Body, patch: Mapping[str, Any]) -> Body:
    """Return a body merged with a patch: null takes away, lists are replaced."""
    for key, value in patch.items():
        if value is None:
            body.pop(key, None)
        elif isinstance(value, dict):
            before = body.get(key)
            body[key] = merge_patch(before if isinstance(before, dict) else {}, value)
        else:
            body[key] = value
    return body


def strategic_merge_patch(body: Body, patch: Mapping[str, Any]) -> Body:
    """Return a body merged with a patch: lists of MERGE_KEYS item by item, with `$patch: delete` and `replace`."""
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            body[name] = [item for item in body.get(name) or [] if item not in value]
        elif key.startswith("$"):
            continue  # of the order of lists, and of unions: they change no content
        elif value is None:
            body.pop(key, None)
        elif isinstance(value, dict):
            if value.get("$patch") == "delete":
                body.pop(key, None)
                continue
            before = body.get(key)
            body[key] = strategic_merge_patch(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list) and key in MERGED_SETS:
            before = body.get(key) or []
            body[key] = before + [item for item in value if item not in before]
        elif isinstance(value, list) and key in MERGE_KEYS and all(isinstance(item, dict) for item in value):
            body[key] = _merged(key, body.get(key) or [], value)
        else:
            body[key] = value
    return body


def _merged(name: str, items: list[Body], patches: list[Body]) -> list[Body]:
    by = MERGE_KEYS[name]
    if any(patch.get("$patch") == "replace" for patch in patches):
        return [patch for patch in patches if "$patch" not in patch]
    merged = list(items)
    for patch in patches:
        if by not in patch:
            raise bad_request(f"map: {patch} does not contain declared merge key: {by}")
        at = next((number for number, item in enumerate(merged) if item.get(by) == patch[by]), None)
        if patch.get("$patch") == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(strategic_merge_patch({}, patch))
        else:
            merged[at] = strategic_merge_patch(merged[at], patch)
    return merged
