"""The NVML session that the looking threads share: opened once, and again when no device answers any more.

It is closed while an operator resets a device, changes MIG or loads another driver: the driver refuses these while a
process has NVML open.

If the driver is loaded again under a running agent, every call fails until NVML is opened again. In a container that
has lost its device rules opening fails, too: then only a new container helps.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.agent.devices import nvml
from sharepod.agent.errors import AgentUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sharepod.agent.shares.share import DeviceUuid

    Broken = Callable[[str], None]

FAILED_LOOKS: Final = 4
"""NVML is opened again when this many looks in a row have failed on each GPU (10 s); then after twice as many, …"""
FAILED_LOOKS_MAX: Final = 64
CALM_S: Final = 10.0
"""How long a thread that is inside NVML is waited for before a close: NVML is not closed under it."""
_CONTAINER_INITS: Final = frozenset({"tini", "docker-init", "dumb-init", "catatonit", "s6-svscan"})
NOT_BACK: Final = f"a call of NVML has not come back for {CALM_S:g} s"


def is_restarted(pid: int, parent: int, environment: Mapping[str, str], first: str) -> bool:
    """Tell whether something restarts a process when it ends: the kubelet, systemd, a container runtime.

    `first`: the name of PID 1, which may be a container's init in front of the process.
    """
    of_container = pid == 1 or (parent == 1 and first in _CONTAINER_INITS)
    return of_container or "KUBERNETES_SERVICE_HOST" in environment or str(pid) == environment.get("SYSTEMD_EXEC_PID")


def is_this_restarted() -> bool:
    """Tell whether something restarts this process when it ends."""
    try:
        first = Path("/proc/1/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        first = ""
    return is_restarted(os.getpid(), os.getppid(), os.environ, first)


class Session:
    """NVML, open from construction on.

    Invariant: while it is closed, or being opened anew, no thread is inside `use`.
    """

    def __init__(self, simulate: str) -> None:
        """Open NVML; `simulate` names simulated devices. Raises AgentUnavailable when there is no driver."""
        self._simulate = simulate
        self._changed = threading.Condition()
        self._inside = 0
        """How many threads are inside `use`."""
        self._barred = False
        """No thread may enter `use`: NVML is closed, or is being closed or opened anew."""
        self._generation = 0
        """How often NVML has been opened anew."""
        self._failed: dict[DeviceUuid, int] = {}
        """By GPU: how many looks in a row have failed."""
        self._patience = FAILED_LOOKS
        """NVML is opened anew when so many looks in a row have failed on each GPU."""
        nvml.open_nvml(simulate)

    @contextlib.contextmanager
    def use(self) -> Iterator[int]:
        """Call NVML inside this context. Waits while an operator has a device, or while NVML is being opened anew.

        Yields the session's generation: handles of another generation are not valid.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._barred)
            self._inside += 1
            generation = self._generation
        try:
            yield generation
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def looked(self, device: DeviceUuid, *, failed: bool) -> str | None:
        """Count the result of a look at a GPU. If looks at all GPUs have failed often enough, open NVML again.

        `device`: the GPU, or its first MIG instance. Called outside `use`, on the thread that looked. Returns None if
        it was not time to open NVML again, "" if NVML works again, else why it does not.
        """
        with self._changed:
            self._failed[device] = self._failed.get(device, 0) + 1 if failed else 0
            if not failed:
                self._patience = FAILED_LOOKS
            if self._barred or min(self._failed.values()) < self._patience:
                return None
            self._patience = min(2 * self._patience, FAILED_LOOKS_MAX)
            self._failed = dict.fromkeys(self._failed, 0)
            is_alone = self._enter_alone()
        cause = NOT_BACK
        try:
            if is_alone:
                cause = self._open_anew()
        finally:
            with self._changed:
                self._barred = False
                self._generation += is_alone
                self._changed.notify_all()
        return cause

    def forget(self, device: DeviceUuid) -> None:
        """Forget a device that is looked at by another name now: `looked` would wait for a count that stands still."""
        with self._changed:
            self._failed.pop(device, None)

    def close(self) -> str:
        """Close NVML until `reopen`; until then there are no looks. Return why it cannot be closed; empty if it is."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._barred, CALM_S):
                return NOT_BACK
            if self._enter_alone():
                nvml.close_nvml()
                return ""
            self._barred = False  # NVML stays open: let threads in again
            self._changed.notify_all()
            return NOT_BACK

    def reopen(self) -> str:
        """Open NVML after `close`. Return why it cannot be opened (then it stays closed); empty if it is open."""
        if cause := self._open_anew():
            nvml.close_nvml()
            return cause
        with self._changed:
            self._barred = False
            self._generation += 1
            self._failed = dict.fromkeys(self._failed, 0)
            self._changed.notify_all()
        return ""

    def _enter_alone(self) -> bool:
        """Keep threads out of `use`; tell whether those inside have left within CALM_S. The caller holds the lock.

        Threads are kept out in either case, until the caller clears `_barred`.
        """
        self._barred = True
        return self._changed.wait_for(lambda: not self._inside, CALM_S)

    def _open_anew(self) -> str:
        """Close NVML and open it again. Return why it cannot be used then; empty if it can.

        No thread may be inside `use`.
        """
        nvml.close_nvml()
        try:
            nvml.open_nvml(self._simulate)
            return "" if nvml.gpu_count() else "NVML lists no GPU"
        except AgentUnavailable as error:
            return str(error)
        except nvml.Failure as error:
            return nvml.fault_of(error)
