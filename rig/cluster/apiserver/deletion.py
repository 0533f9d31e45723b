"""Ends objects: preconditions, grace periods, and the part of a kubelet if a test asks for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .objects import time_of
from .refusal import conflict, not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .kinds import Place
    from .store import Kept, Store

Body = dict[str, Any]


class Deletion:
    """Ends the objects of one store."""

    def __init__(self, store: Store, unix: Callable[[], float]) -> None:
        self._store, self._unix = store, unix
        self.kubelet_s: float | None = None
        """After this time a kubelet ends deleted pods; None: there is no kubelet, and they stay."""
        self._kubelet: set[asyncio.TimerHandle] = set()

    def close(self) -> None:
        """Forget the deleted pods that were still to be ended."""
        for handle in self._kubelet:
            handle.cancel()

    def delete(self, place: Place, options: Mapping[str, Any]) -> Body | None:
        """Delete an object, or mark it as being deleted if it has a grace period. Raises Refusal.

        Returns its present state; None: it is gone.
        """
        plural, kept = place.kind.plural, self._get(place)
        _check_preconditions(place, kept.body, options.get("preconditions") or {})
        body = kept.copy()
        metadata, grace = body["metadata"], _grace_of(plural, body, options.get("gracePeriodSeconds"))
        if metadata.get("deletionTimestamp") and grace >= metadata.get("deletionGracePeriodSeconds", 0) and grace:
            return kept.body  # a second deletion can only shorten the grace period
        if grace:
            metadata["deletionTimestamp"] = time_of(self._unix() + grace)
            metadata["deletionGracePeriodSeconds"] = grace
            self._store.put(plural, place.key, body)
            if self.kubelet_s is not None:
                self._end_pod_later(place, metadata["uid"], self.kubelet_s)
            return self._get(place).body
        self._store.delete(plural, place.key)
        return None

    def _end_pod_later(self, place: Place, uid: str, seconds: float) -> None:
        """Remove a pod after this time, unless a pod with another uid has its name then."""

        def end() -> None:
            self._kubelet.discard(handle)
            kept = self._store.get("pods", place.key)
            if kept is not None and kept.body["metadata"].get("uid") == uid:
                self._store.delete("pods", place.key)

        handle = asyncio.get_running_loop().call_later(seconds, end)
        self._kubelet.add(handle)

    def _get(self, place: Place) -> Kept:
        """Return an object. Raises Refusal if there is none."""
        kept = self._store.get(place.kind.plural, place.key)
        if kept is None:
            raise not_found(place.kind.title, place.name)
        return kept


def _check_preconditions(place: Place, body: Body, preconditions: Mapping[str, Any]) -> None:
    """Raise Refusal if the deletion asks for another uid than the object's."""
    uid = body["metadata"].get("uid")
    if preconditions.get("uid") not in (None, uid):
        why = (
            f"the UID in the precondition ({preconditions['uid']}) does not match the UID in record ({uid}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(place.kind.title, place.name, why)


def _grace_of(plural: str, body: Body, asked: int | None) -> int:
    """Return the grace period of an object in seconds; 0 unless it is a pod that is bound and has not ended.

    `asked` is what the request asks for; None: the pod's own period counts.
    """
    if plural != "pods" or not body.get("spec", {}).get("nodeName"):
        return 0
    if body.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(body["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)
