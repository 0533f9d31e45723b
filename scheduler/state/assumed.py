"""What pods have been told to yield, until the API server shows that they do. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharepod.scheduler.state.pod import Pod


@dataclass(frozen=True, slots=True)
class _Presumed:
    yields: str
    shown: str
    """What the API server shows."""
    until_s: float


class Presumptions:
    """What is presumed, by the pod's uid; each for as long as any other."""

    def __init__(self) -> None:
        self._presumed: dict[str, _Presumed] = {}
        """In the order in which it was presumed."""

    def put(self, pod: Pod, yields: str, until_s: float) -> Pod:
        """Presume that a pod, as it counts now, yields so (Pod.yields); return it as the API server shows it."""
        before = self._presumed.pop(pod.uid, None)
        shown = before.shown if before else pod.yields
        if yields != shown:
            self._presumed[pod.uid] = _Presumed(yields, shown, until_s)
        return replace(pod, yields=shown)

    def drop(self, uid: str) -> None:
        """Presume nothing of a pod."""
        self._presumed.pop(uid, None)

    def applied(self, pod: Pod) -> Pod:
        """Return a pod as it counts, of one that the API server shows; what is shown is presumed no more."""
        presumed = self._presumed.get(pod.uid)
        if presumed is None or presumed.yields == pod.yields:
            self.drop(pod.uid)
            return pod
        return replace(pod, yields=presumed.yields)

    def expire(self, now_s: float) -> list[tuple[str, str]]:
        """Presume no more what was not seen in time; return the uids, and what the API server shows of them."""
        found = []
        for uid, presumed in self._presumed.items():
            if presumed.until_s > now_s:
                break
            found.append((uid, presumed.shown))
        for uid, _ in found:
            self.drop(uid)
        return found
