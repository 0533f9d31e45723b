"""Field selectors of requests and label selectors of objects. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .refusal import bad_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Matches = Callable[[Mapping[str, Any]], bool]

_EVERY = ("metadata.name", "metadata.namespace")
_PODS = ("spec.nodeName", "status.phase")
"""Fields of a pod that a field selector may name, besides those of every kind. Kubernetes knows more."""


def field_selector(plural: str, text: str) -> Matches:
    """Return a function that tells whether an object matches. Raises Refusal for fields that cannot be selected."""
    known = (*_EVERY, *_PODS) if plural == "pods" else _EVERY
    terms = []
    for term in filter(None, text.split(",")):
        name, sign, value = re.split(r"(!=|==|=)", term, maxsplit=1) if "=" in term else (term, "", "")
        if not sign:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        if name not in known:
            raise bad_request(f'field label not supported: "{name}"')
        terms.append((name.split("."), sign != "!=", value))
    return lambda body: all((_field(body, path) == value) is equal for path, equal, value in terms)


def labels_match(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Tell whether labels match a LabelSelector. Only `matchLabels` is known."""
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items())


def _field(body: Mapping[str, Any], path: list[str]) -> str:
    """Return the text of the field at a path; empty: the object does not have it."""
    value: Any = body
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return "" if value is None else str(value)
