"""Remembers how pods have been told to yield, until the API server shows that they do. Pure.

How a pod yields is a text, Pod.yields: "limit", "pause", or empty for a pod that does not yield. Times are seconds of
one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharepod.scheduler.state.pod import Pod


@dataclass(frozen=True, slots=True)
class _Assumed:
    """How a pod has been told to yield, until when that counts, and what counts after it."""

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
        """Assume until `until_s` that a pod yields this way, in place of what was assumed before.

        `pod`: as it counts now. Returns it as the API server shows it; `applied` turns that into the pod as it counts
        from now on. Nothing is assumed if the API server shows `yields` already.
        """
        before = self._assumed.pop(pod.uid, None)
        shown = before.shown if before else pod.yields
        if yields != shown:
            self._assumed[pod.uid] = _Assumed(yields, shown, until_s)
        return replace(pod, yields=shown)

    def drop(self, uid: str) -> None:
        """Drop what is assumed of a pod, if anything is."""
        self._assumed.pop(uid, None)

    def applied(self, pod: Pod) -> Pod:
        """Return a pod as it counts: `pod`, as the API server shows it, with what is assumed of it.

        An assumption that the API server shows by now is dropped.
        """
        assumed = self._assumed.get(pod.uid)
        if assumed is None or assumed.yields == pod.yields:
            self.drop(pod.uid)
            return pod
        return replace(pod, yields=assumed.yields)

    def expire(self, now_s: float) -> list[tuple[str, str]]:
        """Drop what the API server did not show in time; return the pods' uids, each with how it yields instead."""
        found = []
        for uid, assumed in self._assumed.items():
            if assumed.until_s > now_s:
                break
            found.append((uid, assumed.shown))
        for uid, _ in found:
            self.drop(uid)
        return found
