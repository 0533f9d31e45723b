"""Lists the pods that want to be on one device with each other, or apart, by the words that they give. Pure.

A word is the value of a pod's annotation `device-affinity` or `device-anti-affinity`; it counts within a namespace.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from sharepod.scheduler.state.pod import Pod

WITH: Final = "with"
APART: Final = "apart"


class DeviceAffinity:
    """The pods of a cluster by the words that they give for their device affinity."""

    def __init__(self) -> None:
        self._uids: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
        """By namespace, WITH or APART, and the word; no set is empty."""

    def put(self, pod: Pod) -> None:
        """Add a pod with its words."""
        for key in _keys(pod):
            self._uids[key].add(pod.uid)

    def drop(self, pod: Pod) -> None:
        """Remove a pod, given as it was put."""
        for key in _keys(pod):
            self._uids[key].discard(pod.uid)
            if not self._uids[key]:
                del self._uids[key]

    def uids(self, namespace: str, how: str, word: str) -> Collection[str]:
        """Return the uids of the pods that give this word; `how` is WITH or APART."""
        return self._uids.get((namespace, how, word), ())


def _keys(pod: Pod) -> list[tuple[str, str, str]]:
    """Return the keys under which a pod is listed, one for each word that it gives."""
    words = ((WITH, pod.affinity), (APART, pod.anti_affinity))
    return [(pod.namespace, how, word) for how, word in words if word]
