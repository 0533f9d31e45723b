"""The rules for Events of core/v1, which kubelet and our processes write. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from .refusal import bad_request, invalid

Body = dict[str, Any]


def check_event(body: Body, namespace: str) -> None:
    """Refuse a body that does not decode as an Event (400) or breaks its one rule, about namespaces (422)."""
    for key, kind in {"count": int, "reason": str, "message": str, "type": str, "source": dict}.items():
        if not isinstance(body.get(key, kind()), kind):
            raise bad_request(f"Event in version v1 cannot be handled: {key}")
    for key in ("firstTimestamp", "lastTimestamp"):
        try:
            datetime.strptime(body.get(key) or "2026-01-01T00:00:00Z", "%Y-%m-%dT%H:%M:%S%z")
        except (TypeError, ValueError):
            raise bad_request(f"Event in version v1 cannot be handled: parsing time of {key}") from None
    about = body.get("involvedObject", {})
    if (about.get("namespace", "") or "default") != namespace:  # Events about cluster objects are in "default"
        name = body["metadata"]["name"]
        raise invalid("Event", name, [("involvedObject.namespace", "Invalid value: does not match event.namespace")])
