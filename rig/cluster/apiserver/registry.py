"""The verbs that write: create, replace, patch, bind, evict; each with its checks and rules.

It owns the order of these. There is no await between reading an object and writing it. It knows no HTTP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import evict, rules
from .deletion import Deletion
from .events import check_event
from .objects import check_changed, check_name, made, time_of
from .patch import MERGE_KEYS, patched
from .refusal import already_exists, bad_request, forbidden, invalid, not_found
from .store import copied

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kinds import Place
    from .store import Kept, Store

Body = dict[str, Any]

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class Registry:
    """Writes to one store, under the rules."""

    def __init__(self, store: Store, unix: Callable[[], float]) -> None:
        """`unix` is the wall clock."""
        self.store, self._unix = store, unix
        self.reviews: dict[str, Body] = {}
        """By token: the status with which a TokenReview is answered. Other tokens are not authenticated."""
        self.deletion = Deletion(store, unix)
        self.evicted: list[str] = []
        """The names of evicted pods, in the order of their evictions."""

    def get(self, place: Place) -> Kept:
        """Return an object. Raises Refusal if there is none.

        A budget first gets the status that a disruption controller would have written by now.
        """
        if place.kind.plural == "poddisruptionbudgets":
            self.settle_budgets(place.namespace)
        kept = self.store.get(place.kind.plural, place.key)
        if kept is None:
            raise not_found(place.kind.title, place.name)
        return kept

    def create(self, place: Place, body: Body) -> Body:
        """Make an object. Raises Refusal."""
        kind = place.kind
        _check_kind(place, body)
        if not kind.stored:
            return self._reviewed(body)
        self._check_namespace(place)
        made(place, body, self._unix())
        key = place.namespace, body["metadata"]["name"]
        if kind.plural == "pods":
            rules.begin(body)
        elif kind.plural == "events":
            check_event(body, place.namespace)
        if self.store.get(kind.plural, key) is not None:
            raise already_exists(kind.title, key[1])
        kept = self.store.put(kind.plural, key, body)
        if kind.plural == "namespaces":
            self.begin_namespace(key[1])
        return kept.body

    def begin_namespace(self, name: str) -> None:
        """Put the objects of controllers into a new namespace."""
        account = {"metadata": {"name": "default", "namespace": name, "uid": f"uid-{name}-default"}}
        self.store.put("serviceaccounts", (name, "default"), account)

    def update(self, place: Place, body: Body) -> Body:
        """Replace an object. Raises Refusal."""
        _check_kind(place, body)
        metadata = body.get("metadata") or {}
        check_name(place, metadata)
        if place.kind.needs_version and not metadata.get("resourceVersion"):
            why = "Invalid value: 0x0: must be specified for an update"
            raise invalid(place.kind.kind, place.name, [("metadata.resourceVersion", why)])
        return self._change(place, lambda _: copied(body))

    def patch(self, place: Place, media: str, patch: Body) -> Body:
        """Change an object by a patch. Raises Refusal."""
        merge_keys = {} if media == MERGE else MERGE_KEYS
        return self._change(place, lambda body: patched(body, copied(patch), merge_keys))

    def bind(self, place: Place, binding: Body) -> None:
        """Bind a pod to a node. Raises Refusal."""
        bound = rules.bound(self.get(place).copy(), binding, time_of(self._unix()))
        self.store.put("pods", place.key, bound)

    def evict(self, place: Place, eviction: Body) -> None:
        """Delete a pod if its budgets allow it. Raises Refusal."""
        if (version := eviction.get("apiVersion")) != "policy/v1":
            raise bad_request(f'no kind "Eviction" is registered for version "{version}"')
        if eviction.get("metadata", {}).get("name") != place.name:
            raise bad_request("name in URL does not match name in Eviction object")
        pod = self.get(place).body
        options = eviction.get("deleteOptions") or {}
        if evict.is_guarded(pod):
            self.settle_budgets(place.namespace)
            budgets = [kept.body for _, kept in self.store.all("poddisruptionbudgets", place.namespace)]
            evict.check(evict.budgets_of(pod, budgets))
        self.deletion.delete(replace(place, subresource=""), options)
        self.evicted.append(place.name)

    def settle_budgets(self, namespace: str) -> None:
        """Do a disruption controller's work. Called whenever its results are read."""
        for key, kept in list(self.store.all("poddisruptionbudgets", namespace)):
            pods = (found.body for _, found in self.store.all("pods", key[0]))
            status = evict.status_of(kept.body, pods)
            if status != kept.body.get("status"):
                self.store.put("poddisruptionbudgets", key, {**kept.body, "status": status})

    def _change(self, place: Place, change: Callable[[Body], Body]) -> Body:
        """Write what `change` makes of an object, if the rules allow it. Return what was written. Raises Refusal.

        `change` gets a copy.
        """
        kept = self.get(place)
        before, plural = kept.body, place.kind.plural
        head = {"apiVersion": place.kind.api_version, "kind": place.kind.kind}
        body = change(head | copied(before))
        _check_kind(place, body)
        check_changed(place, before, body)
        self._keep_other_part(place, before, body)
        if plural == "pods":
            rules.check_changed(before, body)
        elif plural == "events":
            check_event(body, place.namespace)
        return self.store.put(plural, place.key, body).body

    def _keep_other_part(self, place: Place, before: Body, body: Body) -> None:
        """Keep the part that this path does not write: the status, or everything but the status."""
        if "status" not in place.kind.subresources:
            return
        if place.subresource == "status":
            for key in {*before, *body} - {"status", "metadata"}:
                body.pop(key, None)
                if key in before:
                    body[key] = copied({"": before[key]})[""]  # a copy of any value, not only of an object
        else:
            body.pop("status", None)
            if "status" in before:
                body["status"] = copied(before["status"])

    def _check_namespace(self, place: Place) -> None:
        """Raise Refusal if a new object's namespace does not exist or is being deleted."""
        if not place.kind.namespaced:
            return
        if not place.namespace:
            raise bad_request("an object needs a namespace")
        found = self.store.get("namespaces", ("", place.namespace))
        if found is None:
            raise not_found("namespaces", place.namespace)
        if found.body.get("status", {}).get("phase") == "Terminating":
            why = f"unable to create new content in namespace {place.namespace} because it is being terminated"
            raise forbidden(place.kind.title, "", why)

    def _reviewed(self, body: Body) -> Body:
        """Return a TokenReview with its answer, by `reviews`."""
        token = body.get("spec", {}).get("token", "")
        status = self.reviews.get(token, {"authenticated": False, "error": "the token is not known"})
        return body | {"status": status}


def _check_kind(place: Place, body: Body) -> None:
    """Remove kind and version from a body: stored bodies have neither. Raises Refusal if they are another kind's."""
    kind, version = body.pop("kind", None), body.pop("apiVersion", None)
    if (kind or place.kind.kind) != place.kind.kind or (version or place.kind.api_version) != place.kind.api_version:
        why = f"the API version in the data ({version}, {kind}) does not match the expected API version"
        raise bad_request(f"{why} ({place.kind.api_version}, {place.kind.kind})")
