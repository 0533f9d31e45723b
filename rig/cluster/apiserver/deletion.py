"""How objects end: preconditions, grace, finalizers, what is in a namespace; and a kubelet, if asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .kinds import Place, kind_named
from .objects import time_of
from .refusal import conflict, not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .store import Kept, Store

Body = dict[str, Any]

_CONTENTS = ("pods", "poddisruptionbudgets", "configmaps", "secrets", "leases", "events", "serviceaccounts")


class Deletion:
    """The ends of one store's objects."""

    def __init__(self, store: Store, unix: Callable[[], float]) -> None:
        self._store, self._unix = store, unix
        self.kubelet_s: float | None = None
        """A kubelet ends deleted pods so much later; None: there is none, and they stay."""
        self._kubelet: set[asyncio.TimerHandle] = set()

    def close(self) -> None:
        for handle in self._kubelet:
            handle.cancel()

    def delete(self, place: Place, options: Mapping[str, Any]) -> Body | None:
        """Delete an object; return how it is now, None when it has gone. Raises Refusal."""
        plural, kept = place.kind.plural, self._get(place)
        _check_preconditions(place, kept.body, options.get("preconditions") or {})
        body = kept.copy()
        if plural == "namespaces":
            return self._end_namespace(place, body)
        metadata, grace = body["metadata"], _grace_of(plural, body, options.get("gracePeriodSeconds"))
        if metadata.get("deletionTimestamp") and grace >= metadata.get("deletionGracePeriodSeconds", 0) and grace:
            return kept.body
        if grace or metadata.get("finalizers"):
            metadata["deletionTimestamp"] = time_of(self._unix() + grace)
            metadata["deletionGracePeriodSeconds"] = grace
            self._store.put(plural, place.key, body)
            if grace and self.kubelet_s is not None:
                self._end_pod_later(place, metadata["uid"], self.kubelet_s)
            left = self._store.get(plural, place.key)
            return None if left is None else left.body
        self.remove(place)
        return None

    def remove(self, place: Place) -> None:
        """Take an object away, and the namespace that waited for it."""
        self._store.delete(place.kind.plural, place.key)
        namespace = self._store.get("namespaces", ("", place.namespace))
        if namespace is None or namespace.body.get("status", {}).get("phase") != "Terminating":
            return
        if not any(True for kind in _CONTENTS for _ in self._store.all(kind, place.namespace)):
            self._store.delete("namespaces", ("", place.namespace))

    def _end_namespace(self, place: Place, body: Body) -> Body | None:
        """Take away what is in a namespace, and it when it is empty; pods with finalizers keep it."""
        body["metadata"].setdefault("deletionTimestamp", time_of(self._unix()))
        body["status"] = {"phase": "Terminating"}
        self._store.put("namespaces", place.key, body)
        for plural in _CONTENTS:
            for key, _ in list(self._store.all(plural, place.name)):
                there = Place(kind_named(plural), *key)
                self.delete(there, {"gracePeriodSeconds": 0})
        left = self._store.get("namespaces", place.key)
        return None if left is None else left.body

    def _end_pod_later(self, place: Place, uid: str, seconds: float) -> None:
        def end() -> None:
            self._kubelet.discard(handle)
            kept = self._store.get("pods", place.key)
            if kept is not None and kept.body["metadata"].get("uid") == uid:
                if not kept.body["metadata"].get("finalizers"):
                    self.remove(place)
                else:
                    body = kept.copy()
                    body["metadata"]["deletionGracePeriodSeconds"] = 0
                    self._store.put("pods", place.key, body)

        handle = asyncio.get_running_loop().call_later(seconds, end)
        self._kubelet.add(handle)

    def _get(self, place: Place) -> Kept:
        kept = self._store.get(place.kind.plural, place.key)
        if kept is None:
            raise not_found(place.kind.title, place.name)
        return kept


def _check_preconditions(place: Place, body: Body, wanted: Mapping[str, Any]) -> None:
    metadata = body["metadata"]
    for name, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(name) and wanted[name] != metadata.get(name):
            why = (
                f"the {word} in the precondition ({wanted[name]}) does not match the {word} in record "
                f"({metadata.get(name)}). The object might have been deleted and then recreated"
            )
            raise conflict(place.kind.title, place.name, why)


def _grace_of(plural: str, body: Body, asked: int | None) -> int:
    """Return the seconds that an object has to end: only a pod on a node, that has not ended, has any."""
    if plural != "pods" or not body.get("spec", {}).get("nodeName"):
        return 0
    if body.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(body["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)
