"""What a node's kubelet and container runtime can do, by the versions that its Node object tells. Pure values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

KUBELET_SINCE: Final = (1, 29)
"""The release whose kubelet passes CDI names of device plugins on by default."""
RUNTIMES_SINCE: Final[Mapping[str, tuple[int, int]]] = {"containerd": (2, 0), "cri-o": (1, 23)}
"""The releases that look CDI names up by default. containerd 1.7 does where its configuration says `enable_cdi`: there
an operator sets late binding. Every other one leaves names out without a word, and the container would start bare."""
_KUBELET: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")
_RUNTIME: Final = re.compile(r"([a-z-]{1,32})://v?([0-9]{1,4})\.([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Runtime:
    """What runs the containers of a node, as kubelet tells it: "v1.36.2", "containerd://2.1.9"."""

    kubelet: str
    container_runtime: str

    @property
    def has_cdi(self) -> bool:
        """Whether a CDI name that a device plugin gives out surely reaches the container. Unknown: it does not."""
        kubelet, runtime = _KUBELET.match(self.kubelet), _RUNTIME.match(self.container_runtime)
        if not kubelet or not runtime or _release(kubelet[1], kubelet[2]) < KUBELET_SINCE:
            return False
        since = RUNTIMES_SINCE.get(runtime[1])
        return since is not None and _release(runtime[2], runtime[3]) >= since


def read_runtime(node: Mapping[str, Any]) -> Runtime | None:
    """Return what a Node object tells, None when it tells nothing."""
    status = node.get("status")
    info = status.get("nodeInfo") if isinstance(status, dict) else None
    if not isinstance(info, dict):
        return None
    return Runtime(str(info.get("kubeletVersion", "")), str(info.get("containerRuntimeVersion", "")))


def _release(major: str, minor: str) -> tuple[int, int]:
    return int(major), int(minor)
