"""Lists: which version is listed, which objects of it, and in which pages."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from .refusal import Refusal, bad_request, expired
from .selector import field_selector
from .store import Compacted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .kinds import Place
    from .store import Kept, Key, Store

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You must start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True, slots=True)
class Page:
    """Where a list begins, and which version it shows."""

    version: int
    after: Key


def matcher(place: Place, query: Mapping[str, str]) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that tells whether a request selects an object. Raises Refusal."""
    fields = field_selector(place.kind.plural, query.get("fieldSelector", ""))
    if "labelSelector" in query:
        raise bad_request("the double selects by fields alone")
    name, namespace = place.name, place.namespace

    def matches(body: Mapping[str, Any]) -> bool:
        metadata = body["metadata"]
        if (name and metadata.get("name") != name) or (namespace and metadata.get("namespace", "") != namespace):
            return False
        return fields(body)

    return matches


def listed(store: Store, place: Place, query: Mapping[str, str], behind: int) -> dict[str, Any]:
    """Return a list. Raises Refusal.

    `behind`: how many versions the cache lags. A list at version 0 comes from the cache.
    """
    matches = matcher(place, query)
    limit, wanted = number(query, "limit"), query.get("resourceVersion", "")
    page = _page(query.get("continue", ""))
    version = _version(store, query, behind) if page is None else page.version
    if page is not None and wanted not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    try:
        objects = store.all_at(place.kind.plural, version, place.namespace)
        chosen: list[tuple[Key, Kept]] = [
            (key, kept) for key, kept in objects if (page is None or key > page.after) and matches(kept.body)
        ]
    except Compacted:
        raise expired(_TOO_OLD if page is not None else f"The resourceVersion {version} is too old.") from None
    metadata: dict[str, object] = {"resourceVersion": str(version)}
    from_cache = page is None and wanted == "0"  # a list from the cache is never split, whatever the limit
    if limit and len(chosen) > limit and not from_cache:
        metadata["continue"] = _token(version, chosen[limit - 1][0])
        chosen = chosen[:limit]
    head = {"kind": f"{place.kind.kind}List", "apiVersion": place.kind.api_version, "metadata": metadata}
    return head | {"items": [kept.body for _, kept in chosen]}


def _version(store: Store, query: Mapping[str, str], behind: int) -> int:
    """Return the version that a list shows: the present one, or that of the cache if the request asks for version 0.

    Raises Refusal for a version that does not exist yet.
    """
    wanted = number(query, "resourceVersion")
    if wanted > store.version:
        why = f"Too large resource version: {wanted}, current: {store.version}"
        raise Refusal(
            504, "Timeout", why, causes=[{"reason": "ResourceVersionTooLarge", "message": why}], retry_after_s=1
        )
    if query.get("resourceVersion") == "0":
        return max(store.floor, store.version - behind)
    return store.version


def number(query: Mapping[str, str], name: str) -> int:
    """Return a number of a query; 0 if it is missing."""
    return int(query.get(name) or 0)


def _token(version: int, after: Key) -> str:
    """Return the `continue` for the next page, which begins behind the object `after`."""
    return base64.urlsafe_b64encode(orjson.dumps({"rv": version, "start": list(after)})).decode("ascii").rstrip("=")


def _page(token: str) -> Page | None:
    """Return the page that a `continue` asks for; None: the list begins here."""
    if not token:
        return None
    found = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return Page(found["rv"], tuple(found["start"]))
