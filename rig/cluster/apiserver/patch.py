"""Patches: JSON merge patches (RFC 7396) and strategic merge patches. Pure.

The body is changed in place, or not at all if a Refusal is raised: so give a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .refusal import bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

Body = dict[str, Any]

MERGE_KEYS = {"schedulingGates": "name", "conditions": "type"}
"""Lists that are merged by a field of their items. All other lists are replaced; Kubernetes merges more of them."""


def patched(body: Body, patch: Mapping[str, Any], merge_keys: Mapping[str, str]) -> Body:
    """Return a body merged with a patch: null removes a field, a list is replaced.

    Lists of `merge_keys` are merged item by item, with `$patch: delete`. A merge patch has no such lists, a strategic
    one has MERGE_KEYS.
    """
    for key, value in patch.items():
        if value is None:
            body.pop(key, None)
        elif isinstance(value, dict):
            before = body.get(key)
            body[key] = patched(before if isinstance(before, dict) else {}, value, merge_keys)
        elif isinstance(value, list) and key in merge_keys and all(isinstance(item, dict) for item in value):
            body[key] = _merged(merge_keys[key], body.get(key) or [], value, merge_keys)
        else:
            body[key] = value
    return body


def _merged(by: str, items: list[Body], patches: list[Body], merge_keys: Mapping[str, str]) -> list[Body]:
    """Merge each patch into the item with the same value of the field `by`, or append it as a new item.

    Returns the new list. Raises Refusal.
    """
    merged = list(items)
    for patch in patches:
        if by not in patch:
            raise bad_request(f"map: {patch} does not contain declared merge key: {by}")
        at = next((number for number, item in enumerate(merged) if item.get(by) == patch[by]), None)
        if patch.get("$patch") == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(patch)
        else:
            merged[at] = patched(merged[at], patch, merge_keys)
    return merged
