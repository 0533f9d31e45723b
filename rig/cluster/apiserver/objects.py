"""Rules for all objects: names, uids, times, and fields that may never change. Pure but for random uids.

The rules of single kinds are in their modules.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .refusal import MODIFIED, bad_request, conflict, invalid

if TYPE_CHECKING:
    from .kinds import Place

Body = dict[str, Any]

_OURS = ("uid", "creationTimestamp", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds")
"""The fields of metadata that only the server sets."""


def time_of(unix_s: float) -> str:
    """Return a time in the format of objects: whole seconds."""
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def made(place: Place, body: Body, unix_s: float) -> Body:
    """Prepare an object for its first write, in place: with a name, a uid and a creation time. Return it.

    Raises Refusal.
    """
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
        raise invalid(place.kind.kind, "", [("metadata.name", "Required value")])
    metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": time_of(unix_s)}
    return body


def check_name(place: Place, metadata: Body) -> None:
    """Raise Refusal for an object with another name than in its path."""
    name = metadata.get("name", place.name)
    if name != place.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({place.name})")


def check_changed(place: Place, before: Body, after: Body) -> None:
    """Raise Refusal if a write changes a field that never changes, or is based on an old version of the object.

    `after` is completed in place: it gets the name and the server's own fields of `before`.
    """
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
    if faults:
        raise invalid(kind.kind, place.name, faults)
