"""What every object goes through: names, uids, times, labels, what may never change. Pure but for random names.

The rules of single kinds are in their modules.
"""

from __future__ import annotations

import random
import re
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .refusal import MODIFIED, bad_request, conflict, invalid

if TYPE_CHECKING:
    from .kinds import Kind, Place

Body = dict[str, Any]

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_MAX = 58
_ANNOTATIONS_MAX = 256 * 1024
_OURS = ("uid", "creationTimestamp", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds")


def time_of(unix_s: float) -> str:
    """Return a time as objects have it: whole seconds."""
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def made(place: Place, body: Body, unix_s: float) -> Body:
    """Return an object as it is before its first write: with a name, a uid, a time of birth. Raises Refusal."""
    kind = place.kind
    metadata = body.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise bad_request("metadata is no object")
    if place.namespace:
        if metadata.get("namespace", place.namespace) != place.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = place.namespace
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    for name in _OURS:
        metadata.pop(name, None)
    if not metadata.get("name"):
        if not metadata.get("generateName"):
            raise invalid(kind.kind, "", [("metadata.name", "Required value: name or generateName is required")])
        end = "".join(random.choices(_LETTERS, k=5))
        metadata["name"] = metadata["generateName"][:_GENERATED_MAX] + end
    metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": time_of(unix_s)}
    check_metadata(kind, metadata)
    return body


def check_metadata(kind: Kind, metadata: Body) -> None:
    """Raise Refusal for names, labels and annotations that cannot be."""
    name = metadata["name"]
    faults = []
    if not isinstance(name, str) or len(name) > 253 or not SUBDOMAIN.fullmatch(name):
        faults.append(("metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of …'))
    for key, value in (metadata.get("labels") or {}).items():
        if not isinstance(value, str):
            raise bad_request(f"json: cannot unmarshal {type(value).__name__} into metadata.labels of type string")
        if len(value) > 63 or not _LABEL.fullmatch(value):
            faults.append(("metadata.labels", f'Invalid value: "{value}": a valid label must be …'))
        faults += _check_key(key, "metadata.labels")
    size = 0
    for key, value in (metadata.get("annotations") or {}).items():
        if not isinstance(value, str):
            raise bad_request(f"json: cannot unmarshal {type(value).__name__} into metadata.annotations of type string")
        size += len(key.encode()) + len(value.encode())
        faults += _check_key(key.lower(), "metadata.annotations")
    if size > _ANNOTATIONS_MAX:
        faults.append(("metadata.annotations", f"Too long: must have at most {_ANNOTATIONS_MAX} bytes"))
    if faults:
        raise invalid(kind.kind, str(name), faults)


def _check_key(key: str, field: str) -> list[tuple[str, str]]:
    prefix, slash, name = key.rpartition("/")
    fits = 0 < len(name) <= 63 and _LABEL.fullmatch(name)
    if slash:
        fits = fits and len(prefix) <= 253 and SUBDOMAIN.fullmatch(prefix)
    return [] if fits else [(field, f'Invalid value: "{key}": name part must consist of …')]


def check_name(place: Place, metadata: Body) -> None:
    """Raise Refusal for an object with another name than its path's."""
    name = metadata.get("name", place.name)
    if name != place.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({place.name})")


def check_changed(place: Place, before: Body, after: Body) -> None:
    """Raise Refusal where a write changes what never changes; what it leaves out is as it was."""
    kind, old, new = place.kind, before["metadata"], after.setdefault("metadata", {})
    new.setdefault("name", old["name"])
    check_name(place, new)
    if place.namespace and new.setdefault("namespace", place.namespace) != place.namespace:
        why = f"the namespace of the object ({new['namespace']}) does not match the namespace on the request"
        raise bad_request(why)
    if new.get("resourceVersion") and new["resourceVersion"] != old.get("resourceVersion"):
        raise conflict(kind.title, place.name, MODIFIED)
    faults = []
    for name in _OURS:
        if new.get(name) is None:
            new.pop(name, None)
        if name in new and new[name] != old.get(name) and name in ("uid", "deletionTimestamp"):
            faults.append((f"metadata.{name}", f'Invalid value: "{new[name]}": field is immutable'))
        elif name in old:
            new[name] = old[name]
        else:
            new.pop(name, None)
    if old.get("deletionTimestamp") and set(new.get("finalizers") or ()) - set(old.get("finalizers") or ()):
        faults.append(
            ("metadata.finalizers", "Forbidden: no new finalizers can be added if the object is being deleted")
        )
    if "generation" in old:
        new["generation"] = old["generation"]
    if faults:
        raise invalid(kind.kind, place.name, faults)
    check_metadata(kind, new)


def same_but_version(before: Body, after: Body) -> bool:
    """Tell whether a write changes nothing: it is not written then, and the version stays."""
    return _without_version(before) == _without_version(after)


def _without_version(body: Body) -> Body:
    metadata = {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
    return {**{key: value for key, value in body.items() if value not in ({}, None)}, "metadata": metadata}
