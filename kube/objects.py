"""Reads JSON of any shape: a value that is missing or of another type counts as empty. Pure."""

from __future__ import annotations

Object = dict[str, object]


def at(parent: Object, key: str) -> Object:
    """Return the object under `key`; an empty one when it is missing, null or no object."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def entries(parent: Object, key: str) -> list[Object]:
    """Return the objects in the list under `key`; none when it is missing or no list."""
    value = parent.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text(parent: Object, key: str) -> str:
    """Return the text under `key`; an empty one when it is missing or no text."""
    value = parent.get(key)
    return value if isinstance(value, str) else ""


def texts(parent: Object, key: str) -> dict[str, str]:
    """Return the texts in the object under `key`, by name: labels, annotations, quantities.

    A quantity may be written as a whole number. It becomes text, too.
    """
    found = at(parent, key)
    return {
        name: value if isinstance(value, str) else str(value)
        for name, value in found.items()
        if isinstance(value, str) or type(value) is int
    }
