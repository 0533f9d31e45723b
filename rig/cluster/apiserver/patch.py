"""Patches: JSON merge patches (RFC 7396) and strategic merge patches. Pure.

What is patched is changed in place, or not at all where a Refusal is raised: give a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .refusal import bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

Body = dict[str, Any]

MERGE_KEYS = {"schedulingGates": "name", "conditions": "type"}
"""Lists that are merged by a field of their items. All others are replaced: Kubernetes knows more that are merged."""


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
    """Return a body merged with a patch: lists of MERGE_KEYS item by item, with `$patch: delete`."""
    for key, value in patch.items():
        if value is None:
            body.pop(key, None)
        elif isinstance(value, dict):
            before = body.get(key)
            body[key] = strategic_merge_patch(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS and all(isinstance(item, dict) for item in value):
            body[key] = _merged(key, body.get(key) or [], value)
        else:
            body[key] = value
    return body


def _merged(name: str, items: list[Body], patches: list[Body]) -> list[Body]:
    by = MERGE_KEYS[name]
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
            merged[at] = strategic_merge_patch(merged[at], patch)
    return merged
