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
        for handle in self._kubelet:
            handle.cancel()

    def delete(self, place: Place, options: Mapping[str, Any]) -> Body | None:
        """Delete an object. Return its present state, None when it is gone. Raises Refusal."""
        plural, kept = place.kind.plural, self._get(place)
        _check_preconditions(place, kept.body, options.get("preconditions") or {})
        body = kept.copy()
        metadata, grace = body["metadata"], _grace_of(plural, body, options.get("gracePeriodSeconds"))
        if metadata.get("deletionTimestamp") and grace >= metadata.get("deletionGracePeriodSeconds", 0) and grace:
            return kept.body
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
        def end() -> None:
            self._kubelet.discard(handle)
            kept = self._store.get("pods", place.key)
            if kept is not None and kept.body["metadata"].get("uid") == uid:
                self._store.delete("pods", place.key)

        handle = asyncio.get_running_loop().call_later(seconds, end)
        self._kubelet.add(handle)

    def _get(self, place: Place) -> Kept:
        kept = self._store.get(place.kind.plural, place.key)
        if kept is None:
            raise not_found(place.kind.title, place.name)
        return kept


def _check_preconditions(place: Place, body: Body, wanted: Mapping[str, Any]) -> None:
    uid = body["metadata"].get("uid")
    if wanted.get("uid") not in (None, uid):
        why = (
            f"the UID in the precondition ({wanted['uid']}) does not match the UID in record ({uid}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(place.kind.title, place.name, why)


def _grace_of(plural: str, body: Body, asked: int | None) -> int:
    """Return the grace period of an object in seconds: only a pod on a node that has not ended has one."""
    if plural != "pods" or not body.get("spec", {}).get("nodeName"):
        return 0
    if body.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(body["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)
