"""Computes the difference of two JSON values as a patch (RFC 6902). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]
"""An object in JSON's sense."""
Operation = dict[str, Any]


def difference(before: object, after: object, path: str = "") -> Iterator[Operation]:
    """Yield the operations that turn `before` into `after`. `path` is the JSON pointer to both; empty: the document.

    Objects are compared key by key, lists of equal length item by item. Any other value is replaced as a whole.
    """
    if before is after:  # parts that nobody changed are not walked through: a hostile pod may be deep
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            pointer = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in after:
                yield {"op": "remove", "path": pointer}
            elif key not in before:
                yield {"op": "add", "path": pointer, "value": after[key]}
            else:
                yield from difference(before[key], after[key], pointer)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from difference(old, new, f"{path}/{index}")
    elif before != after:
        yield {"op": "replace", "path": path, "value": after}
