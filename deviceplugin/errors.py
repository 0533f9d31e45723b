"""What can go wrong between kubelet and a share. Every text is one line: what is wrong, the limit, the remedy."""

from __future__ import annotations


class PluginError(Exception):
    """An error that kubelet is told. The pod's owner is told by an Event.

    `retriable`: it may pass by itself (no room, a server is away), so kubelet should try again. Otherwise the pod's
    owner has to change something.
    """

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable
