"""Remembers how pods have been told to yield, until the API server shows that they do. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharepod.scheduler.state.pod import Pod


@dataclass(frozen=True, slots=True)
class _Assumed:
    """How a pod has been told to yield."""

    yields: str
    shown: str
    """What the API server shows."""
    until_s: float


class AssumedYields:
    """The assumptions by the pod's uid; all of them last for the same time."""

    def __init__(self) -> None:
        self._assumed: dict[str, _Assumed] = {}
        """In the order in which they were made."""

    def put(self, pod: Pod, yields: str, until_s: float) -> Pod:
        """Assume that a pod, as it counts now, yields this way (Pod.yields); return it as the API server shows it.

        Nothing is assumed if the API server shows it already.
        """
        before = self._assumed.pop(pod.uid, None)
        shown = before.shown if before else pod.yields
        if yields != shown:
            self._assumed[pod.uid] = _Assumed(yields, shown, until_s)
        return replace(pod, yields=shown)

    def drop(self, uid: str) -> None:
        """Drop what is assumed of a pod."""
        self._assumed.pop(uid, None)

    def applied(self, pod: Pod) -> Pod:
        """Return a pod of the API server as it counts; an assumption that the API server shows is dropped."""
        assumed = self._assumed.get(pod.uid)
        if assumed is None or assumed.yields == pod.yields:
            self.drop(pod.uid)
            return pod
        return replace(pod, yields=assumed.yields)

    def expire(self, now_s: float) -> list[tuple[str, str]]:
        """Drop assumptions that were not seen in time; return their uids with what the API server shows instead."""
        found = []
        for uid, assumed in self._assumed.items():
            if assumed.until_s > now_s:
                break
            found.append((uid, assumed.shown))
        for uid, _ in found:
            self.drop(uid)
        return found
