"""Tells whether a node's kubelet and container runtime can carry shares, by the versions in its Node object. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.kube.objects import at, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod.kube.objects import Object

KUBELET_SINCE: Final = (1, 31)
"""The oldest release of kubelet that is served."""
RUNTIMES_SINCE: Final[Mapping[str, tuple[int, int]]] = {"containerd": (2, 0), "cri-o": (1, 23)}
"""The releases that resolve CDI names by default. containerd 1.7 does so if its configuration says `enable_cdi`, which
no version tells. Any other runtime silently ignores a CDI name, and the container would start without its share."""
_KEEP_OUT: Final = "keep SharePod off it by the label sharepod.io/agent=disabled"
_KUBELET: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")
_RUNTIME: Final = re.compile(r"([a-z-]{1,32})://v?([0-9]{1,4})\.([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Kubelet and container runtime of a node, as kubelet reports them: "v1.36.2", "containerd://2.1.9"."""

    kubelet: str
    container_runtime: str

    def lack(self, *, cdi_is_on: bool) -> str | None:
        """Return why no share reaches a container here, and the remedy; None: shares reach containers.

        A version that is not known counts as too old. `cdi_is_on`: the operator says that CDI is on in the runtime,
        whatever its version.
        """
        kubelet, runtime = _KUBELET.match(self.kubelet), _RUNTIME.match(self.container_runtime)
        if not kubelet or _release(kubelet[1], kubelet[2]) < KUBELET_SINCE:
            return (
                f"kubelet is {self.kubelet or 'of no known version'} on this node, and 1.31 or later is needed: "
                f"upgrade the node, or {_KEEP_OUT}"
            )
        since = RUNTIMES_SINCE.get(runtime[1]) if runtime else None
        if cdi_is_on or (runtime and since and _release(runtime[2], runtime[3]) >= since):
            return None
        return (
            f"the container runtime of this node is {self.container_runtime or 'not known'}, which has no CDI by "
            "default: use containerd 2.0 or CRI-O 1.23 or later, or turn CDI on (containerd 1.7: enable_cdi = true) "
            f"and set runtime_cdi to on, or {_KEEP_OUT}"
        )


def read_runtime(node: Object) -> Runtime | None:
    """Return the versions in a Node object; None: it has none."""
    info = at(node, "status").get("nodeInfo")
    if not isinstance(info, dict):
        return None
    return Runtime(text(info, "kubeletVersion"), text(info, "containerRuntimeVersion"))


def _release(major: str, minor: str) -> tuple[int, int]:
    """Return a release as numbers, which can be compared."""
    return int(major), int(minor)
