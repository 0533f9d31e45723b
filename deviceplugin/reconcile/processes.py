"""The pods that have live processes, from the cgroups of all processes of the node. Owns nothing, changes nothing.

This needs the host's pid namespace: in a namespace of its own the plugin would see no tenant, and would take every
container for gone. Kubelet's socket shows which namespace this is. The kernel tells the pid of the process at the other
end, as our pid namespace sees it; 0: it does not see it. Kubelet sees what it starts, so a process that sees kubelet
sees the pods' processes too. (The inode number of the first pid namespace is no test: a whole cluster may live in
another namespace, as one made by kind does.)

Kubelet puts every process of a pod, also the sandbox's, into a cgroup that is named for the pod:

    cgroupfs driver   /kubepods/burstable/pod<uid>/<container>
    systemd driver    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice/<container>
    seen from a private cgroup namespace, the path begins at the reader's own cgroup: /../../pod<uid>/<container>

The uid of a static pod is the hash of its manifest: 32 digits without a dash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
from pathlib import Path
from typing import Final

from sharepod.deviceplugin.errors import PluginError

PROC: Final = Path("/proc")
_READ_MAX: Final = 8192
"""Bytes that are read of a process's cgroups. cgroup v1 has about 13 lines, and each of them names the pod."""
_POD: Final = re.compile(
    rb"^(?![^\n]* \(deleted\)$)[0-9]+:[^:\n]*:/(?:[^\n]*?[/-])??pod"
    rb"([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=[/\n ]|$)",
    re.MULTILINE,
)
"""Finds the first pod in a path. A container may make cgroups of any name, but they lie deeper: they can't keep another
pod alive. A deleted cgroup does not count: only zombies are left in it, processes that no parent has waited for."""


_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


class HostProcesses:
    """The processes of the node, if the plugin can see them all."""

    def __init__(self, kubelet_socket: Path, proc: Path = PROC) -> None:
        """`kubelet_socket` is a socket at which kubelet itself listens; see `check`."""
        self._socket = kubelet_socket
        self._proc = proc

    def check(self) -> bool:
        """Return whether a process listens at kubelet's socket.

        Raises PluginError if one does and cannot be seen here: the plugin is in another pid namespace, or /proc is
        mounted with hidepid.
        """
        pid = _listener(self._socket)
        if pid is not None and (pid == 0 or _cgroups_of(self._proc, pid) is None):
            raise PluginError(
                "kubelet's process is not to be seen, so those of pods are not either, and whether a container is gone "
                "cannot be told: set hostPID: true for the device plugin's pod (and mount /proc without hidepid)",
                retriable=False,
            )
        return pid is not None

    def pod_of_process(self, pid: int) -> str | None:
        """Return the uid of the pod of a process; None: the process has no pod, is gone, or cannot be seen."""
        cgroups = _cgroups_of(self._proc, pid)
        return pod_of(cgroups) if cgroups else None

    async def live_pods(self) -> frozenset[str]:
        """Return the uids of the pods that have a process now. Raises PluginError when that cannot be told."""
        if not self.check():
            raise PluginError(f"kubelet is not at {self._socket}, so it is not known which processes can be seen")
        try:
            return await asyncio.to_thread(live_pods, self._proc)
        except OSError as error:
            raise PluginError(f"processes cannot be looked at: {error}: it is tried again") from None


def _listener(path: Path) -> int | None:
    """Return the pid of the process that listens at a socket; 0: our pid namespace lacks it; None: none answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, contextlib.suppress(OSError):
        client.setblocking(False)
        client.connect(str(path))
        raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(raw)[0])
    return None


def _cgroups_of(proc: Path, pid: int) -> bytes | None:
    """Return the cgroups of a process; None when it is gone or may not be read."""
    try:
        return (proc / str(pid) / "cgroup").read_bytes()
    except OSError:
        return None


def pod_of(cgroups: bytes) -> str | None:
    """Return the uid, with dashes, of the pod that /proc/PID/cgroup names; None: the process belongs to no pod."""
    match = _POD.search(cgroups)
    return match[1].decode("ascii").replace("_", "-") if match else None


def live_pods(proc: Path = PROC) -> frozenset[str]:
    """Return the uids of the pods that have a process now.

    A process that ends meanwhile may count or not. Raises OSError when processes cannot be read: an empty result would
    mean that no process lives.
    """
    texts: set[bytes] = set()
    root = os.fspath(proc)
    for name in os.listdir(root):  # noqa: PTH208 - a Path for each would double the time
        if not name.isdecimal():
            continue
        try:
            handle = os.open(f"{root}/{name}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):  # ProcessLookupError: it ended during the open
            continue
        try:
            texts.add(os.read(handle, _READ_MAX))
        except ProcessLookupError:  # it has ended since
            continue
        finally:
            os.close(handle)
    return frozenset(uid for text in texts if (uid := pod_of(text)) is not None)
