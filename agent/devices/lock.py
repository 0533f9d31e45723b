"""One agent per host: a file lock on the runtime directory, and a name per device in the kernel's socket namespace.

The kernel releases both when the process ends, however it ends. A second agent ends with a line that has the first
agent's pid and the remedy.

Agents with different runtime directories, or in different containers, find each other by the name if they share a
network namespace: there is no directory that all of them could write to. But any user can take a name. So root's agent
ignores a name that another user has taken, takes a second name beside it, and asks the kernel for the users of all such
names. Agents in different network namespaces find each other by a lock on the kernel's file for the device, if they
share its mount. Any user can lock that file, too, and root's agent ignores such a lock in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from sharepod.agent.devices import processes, socket_names
from sharepod.agent.errors import AgentUnavailable

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger("sharepod.agent")

NAME: Final = "agent.lock"
TROUBLES_MAX: Final = 16
"""A user may take any number of names, as any number of users of a namespace."""
_REMOVED: Final = " (deleted)"
"""What the kernel adds to the path of an open file that has been removed."""
ALREADY_RUNS: Final = "an agent already runs in"
"""The beginning of the second agent's error; `sharepod run --private` then waits for the first agent."""


class HostLock:
    """The lock of the host's one agent; a context manager, which removes the lock file at its exit."""

    def __init__(self, runtime_directory: Path, troubles: list[str] | None = None) -> None:
        """Take the directory, which must exist at `__enter__`. Nothing is locked yet.

        If strangers (users other than root and our own) hold the name or the file of a device that is claimed, this is
        added to `troubles`, as "what: remedy".
        """
        self.troubles: Final = [] if troubles is None else troubles
        self._path = runtime_directory / NAME
        self._file = -1
        self._names: list[socket.socket] = []
        self._locked: dict[Path, int] = {}
        """The devices' files, open and locked."""

    def __enter__(self) -> Self:
        """Take the lock. Raises AgentUnavailable if another agent has it, OSError if there is no directory."""
        while self._file < 0:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.pread(file, 32, 0).decode("ascii", "replace").strip()
                os.close(file)
                # The other agent may have the lock and not have written its pid yet.
                which = f" (pid {pid}): use it, or stop it with `kill {pid}`" if pid else ", just started: use it"
                raise AgentUnavailable(f"{ALREADY_RUNS} {self._path.parent}{which}") from None
            # The holder may have removed the file between our open and our lock: then the lock is worth nothing.
            if self._is_current(file):
                self._file = file
            else:
                os.close(file)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode("ascii"), 0)
        return self

    def _is_current(self, file: int) -> bool:
        """Tell whether the open file still is the one at the lock's path."""
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except FileNotFoundError:
            return False

    def claim_device(self, key: str, index: int, file: Path | None = None) -> None:
        """Claim a device for this agent until its end, whatever its runtime directory. Raises AgentUnavailable.

        `key` names the device, the same in every agent; `index` is for errors and the log. `file`: the kernel's file
        for the device; None if it is not known.
        """
        before = len(self._names)
        try:
            self._claim_name(key, index)
            if file is not None and file not in self._locked:
                self._lock_file(file, index)
        except AgentUnavailable:
            for name in self._names[before:]:  # nothing of a claim that failed may keep the other agent away
                name.close()
            del self._names[before:]
            raise

    def _lock_file(self, path: Path, index: int) -> None:
        """Lock the kernel's file for a device. Raises AgentUnavailable if another agent may have the lock.

        If only strangers have it, root's agent logs them and goes on without the lock.
        """
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no such file here: then only the name excludes other agents
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holders = processes.holders(os.fstat(file))
            if os.getuid() or not holders or not all(map(socket_names.is_strangers, holders.values())):
                os.close(file)
                raise _taken(index, next(iter(holders), None)) from None
            for uid in holders.values():
                self._tell("file of a device is locked", index, uid, f"`lslocks` shows it, by {path}")
        self._locked[path] = file

    def _claim_name(self, key: str, index: int) -> None:
        """Take the name of a device; `key` names it. Raises AgentUnavailable if another agent may have it.

        If a stranger has it, root's agent takes a second name beside it, logs the stranger, and goes on.
        """
        device_name = b"\0sharepod/device/" + key.encode()[-78:]  # cut: a name has at most 108 bytes
        mine, is_free, is_root = device_name, self._bind(device_name), os.getuid() == 0
        if not is_free and is_root:
            mine = device_name + b"/" + secrets.token_hex(4).encode()
            self._bind(mine)
        try:
            others = [one for name, one in socket_names.holders(device_name).items() if name != mine]
        except OSError:  # an old kernel, or not Linux: assume that an agent has taken the name
            others = [] if is_free else [socket_names.Holder(os.getuid(), 0)]
        strangers = [one.uid for one in others if is_root and socket_names.is_strangers(one.uid)]
        if len(strangers) < len(others) or not (is_free or is_root):  # one of the others may be an agent
            agents = [one for one in others if one.uid not in strangers]
            raise _taken(index, processes.with_socket(agents[0].inode) if agents else None)
        for uid in strangers:
            self._tell("name of a device is a stranger's", index, uid, "`ss -xlp | grep sharepod/device` shows it")

    def _tell(self, what: str, index: int, uid: int, shown: str) -> None:
        """Log what a stranger holds, and keep it for `troubles`; `shown`: what shows the stranger's process."""
        remedy = f"end its process: {shown}"
        log.warning(what, extra={"index": index, "uid": uid, "remedy": remedy})
        text = f"{what} (device {index}, user {uid}), as of the agent's start: {shown}; end its process"
        if text not in self.troubles and len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(text)

    def _bind(self, address: bytes) -> bool:
        """Take a name of an abstract socket (it begins with a zero byte) until the end. False: it is taken."""
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            name.bind(address)
        except OSError:
            name.close()
            return False
        self._names.append(name)
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock and the devices, and remove the directory if it is empty."""
        for name in self._names:
            name.close()
        for file in self._locked.values():
            os.close(file)
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()
        os.close(self._file)


def _taken(index: int, pid: int | None) -> AgentUnavailable:
    """Return the error for a device that another agent has. `pid`: the agent's process, None if it is not known."""
    where, remedy = (
        "it is of another user or container, and its pid is not shown here",
        "use that one, or stop it there",
    )
    if pid is not None:
        where, remedy = f"pid {pid}", f"use that one, or stop it with `kill {pid}`"
        files = sorted(processes.open_files(pid))
        if path := next((path for path in files if Path(path.removesuffix(_REMOVED)).name == NAME), ""):
            where += f", in {Path(path).parent}"
            if path.endswith(_REMOVED):
                where, remedy = f"{where}, which has been removed", f"stop it with `kill {pid}`: nothing reaches it"
    return AgentUnavailable(f"device {index} belongs to another agent on this host ({where}): {remedy}")
