"""Label and field selectors, as queries and as objects have them. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .refusal import Refusal, bad_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Matches = Callable[[Mapping[str, Any]], bool]

_POD = ("spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase")
_EVENT = (
    "involvedObject.kind", "involvedObject.name", "involvedObject.namespace", "involvedObject.uid", "reason", "type",
)  # fmt: skip
FIELDS: dict[str, tuple[str, ...]] = {
    "pods": _POD, "events": _EVENT, "nodes": ("spec.unschedulable",), "namespaces": ("status.phase",),
    "secrets": ("type",),
}  # fmt: skip
"""What a field selector may name of a kind, beside the name and the namespace."""

_SET = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)\s*")
_TERM = re.compile(r"(?:[^,(]|\([^)]*\))+")


def field_selector(plural: str, text: str) -> Matches:
    """Return what tells whether an object matches. Raises Refusal for fields that cannot be selected."""
    known = ("metadata.name", "metadata.namespace", *FIELDS.get(plural, ()))
    terms = []
    for term in filter(None, text.split(",")):
        name, sign, value = re.split(r"(!=|==|=)", term, maxsplit=1) if "=" in term else (term, "", "")
        if not sign:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        if name not in known:
            raise Refusal(400, "BadRequest", f'field label not supported: "{name}"')
        terms.append((name.split("."), sign != "!=", value))
    return lambda body: all((_field(body, path) == value) is equal for path, equal, value in terms)


def label_selector(text: str) -> Matches:
    """Return what tells whether an object's labels match: `a=b`, `a!=b`, `a`, `!a`, `a in (b,c)`, `a notin (b,c)`."""
    tests = [_requirement(term) for term in _TERM.findall(text) if term.strip()]
    return lambda body: all(test(body.get("metadata", {}).get("labels") or {}) for test in tests)


def _requirement(term: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.fullmatch(term):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["how"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    term = term.strip()
    if "!=" in term:
        key, _, value = (part.strip() for part in term.partition("!="))
        return lambda labels: labels.get(key) != value
    if "=" in term:
        key, _, value = (part.strip() for part in term.replace("==", "=").partition("="))
        return lambda labels: labels.get(key) == value
    if not re.fullmatch(r"!?[A-Za-z0-9._/-]+", term):
        raise bad_request(f"unable to parse requirement: {term}")
    if term.startswith("!"):
        return lambda labels: term[1:] not in labels
    return lambda labels: term in labels


def labels_match(selector: Mapping[str, Any] | None, labels: Mapping[str, str], *, empty: bool) -> bool:
    """Tell whether labels match a LabelSelector; `empty`: what one that selects by nothing says."""
    wanted, expressions = (selector or {}).get("matchLabels") or {}, (selector or {}).get("matchExpressions") or []
    if not wanted and not expressions:
        return empty
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _expression(one, labels) for one in expressions
    )


def _expression(one: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    there = labels.get(one["key"])
    return {
        "In": there is not None and there in one.get("values", ()),
        "NotIn": there not in one.get("values", ()),
        "Exists": there is not None,
        "DoesNotExist": there is None,
    }[one["operator"]]


def _field(body: Mapping[str, Any], path: list[str]) -> str:
    value: Any = body
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
