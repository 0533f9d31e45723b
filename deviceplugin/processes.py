"""The pods that have live processes, from the cgroups of all processes of the node. Owns nothing, changes nothing.

It needs the host's pid namespace: in one of its own it would see no tenant. Kubelet puts every process of a pod, the
sandbox's too, into a cgroup that is named for the pod:

    cgroupfs driver   /kubepods/burstable/pod<uid>/<container>
    systemd driver    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice/<container>
    from a private cgroup namespace, all of it relative to one's own: /../../pod<uid>/<container>

The uid of a static pod is the hash of its manifest: 32 digits without a dash.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_READ_MAX: Final = 8192
"""Version 1 has a line for each of about 13 hierarchies, and the pod is in all of them."""
_POD: Final = re.compile(
    rb"^[0-9]+:[^:\n]*:/(?:[^\n]*?[/-])??pod"
    rb"([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=[/\n ]|$)",
    re.MULTILINE,
)
"""The first pod of a path: what a container names its own cgroups lies deeper, and cannot keep another pod alive."""


def pod_of(cgroups: bytes) -> str | None:
    """Return the uid of the pod that /proc/PID/cgroup names, with dashes; None: the process is of no pod."""
    match = _POD.search(cgroups)
    return match[1].decode("ascii").replace("_", "-") if match else None


def live_pods(proc: Path = PROC) -> frozenset[str]:
    """Return the uids of the pods with a process now.

    A process that ends meanwhile counts or not. Raises OSError when processes cannot be looked at, rather than say
    that nothing lives.
    """
    texts: set[bytes] = set()
    root = os.fspath(proc)
    for name in os.listdir(root):  # noqa: PTH208 - a Path for each would double the time
        if not name.isdecimal():
            continue
        try:
            handle = os.open(f"{root}/{name}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            texts.add(os.read(handle, _READ_MAX))
        except ProcessLookupError:
            continue
        finally:
            os.close(handle)
    return frozenset(uid for text in texts if (uid := pod_of(text)) is not None)
