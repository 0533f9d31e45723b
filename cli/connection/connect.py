"""Finds the agent's socket, and starts a private agent if none runs."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.agent.devices.lock import ALREADY_RUNS
from sharepod.agent.errors import NOT_SIMULATED
from sharepod.agent.settings import (
    OPTIONS,
    SOCKET_NAME,
    SOCKET_PATH_MAX,
    USERS_SOCKET_NAME,
    runtime_directories,
)
from sharepod.cli.connection.private import cgroup
from sharepod.cli.console import note
from sharepod.cli.errors import EXIT_NO_AGENT, CliError, UsageError
from sharepod.process.errors import SettingsError

if TYPE_CHECKING:
    from sharepod.cli.connection.client import Client
    from sharepod.proto import v1_pb2 as pb

_START_TIMEOUT_S: Final = 75.0
"""How long to wait for a private agent: longer than the agent itself waits for NVML."""
_SLOW_START_S: Final = 5.0
"""The user is told that the start is slow after this time."""
_OTHER_STARTS_S: Final = 2.0
"""How long to wait for the agent that another command starts, before this one tries again."""
_LOOK_S: Final = 0.02
_SYSTEMD_RUNS: Final = Path("/run/systemd/system")
"""A directory that exists when systemd is the machine's init."""
_NODE_DIRECTORY: Final = Path("/run/sharepod")
"""The directory of the whole node's agent, when root runs one."""


def socket_path(given: str | None) -> str:
    """Return the agent's socket: the given one, else the default one. Raises UsageError when the path is too long."""
    path = given or _default_socket()
    if (length := len(os.fsencode(path))) > SOCKET_PATH_MAX:
        raise UsageError(
            f"socket {path} is {length} bytes long, the kernel's limit is {SOCKET_PATH_MAX}: choose a shorter path"
        )
    return path


def _default_socket() -> str:
    """Return the socket to use if none is given: in the first default directory that has one, else in the first.

    It is the operators' socket, unless this user may use only the users' socket.
    """
    places = [Path(directory) / SOCKET_NAME for directory in default_directories()]
    found = next((place for place in places if _is_there(place)), places[0])
    users = found.with_name(USERS_SOCKET_NAME)
    return str(users if os.access(users, os.W_OK) and not os.access(found, os.W_OK) else found)


def default_directories() -> list[str]:
    """Return the directories in which an agent is looked for if no path is given: this user's, then the node's."""
    chosen = os.environ.get("SHAREPOD_RUNTIME_DIRECTORY")
    first, *others = [chosen] if chosen else runtime_directories(os.environ)
    # The others lie where all users may write: another user could have made a directory of that name.
    ours = [place for place in others if os.path.exists(place) and os.stat(place).st_uid == os.getuid()]  # noqa: PTH110, PTH116
    return list(dict.fromkeys([first, *ours, str(_NODE_DIRECTORY)]))


def _is_there(path: Path) -> bool:
    """Tell whether `path` exists. If this user may not look, it counts as existing: `connect` then says what to do."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def connect(path: str) -> Client:
    """Return a connection to the agent at `path`. Raises CliError when there is none.

    If `path` lies in a default directory, the error names the other default directories too, or the agent that listens
    in one of them.
    """
    # Before grpc is loaded: its own log would appear between our lines.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from sharepod.cli.connection.client import Client

    places = default_directories()
    own = str(Path(path).parent)
    others = [place for place in places if place != own] if own in places else []
    sockets = {place: _listening_socket(place) for place in others}
    silent = [place for place, socket in sockets.items() if not socket]
    return Client(path, silent, next(filter(None, sockets.values()), ""))


def check_simulate(devices: str) -> None:
    """Raise UsageError unless the agent accepts `devices` as simulated devices."""
    try:
        OPTIONS.load({"simulate": devices}, {})
    except SettingsError as error:
        raise UsageError(str(error)) from None


def check_devices(node: pb.GetNodeResponse, path: str, simulate: str) -> None:
    """Raise UsageError unless the agent at `path`, which may have run before, simulates these devices."""
    has = node.environment.get("SIMGPU_DEVICES", "real devices")
    if has != simulate:
        raise UsageError(
            f"--simulate {simulate}: the agent at {path} (pid {node.agent_pid}) runs already, with {has}: "
            "leave --simulate out, or give another --socket"
        )


def ensure_agent(path: str, simulate: str | None) -> None:
    """Return when an agent listens at `path`. If none does, start a private one, which ends with its last share.

    `simulate` names the devices that a started one simulates; None: real ones. Raises CliError when no agent listens
    after _START_TIMEOUT_S, or when a private agent cannot have this path or these devices.
    """
    if listens(path):
        return
    if Path(path).name != SOCKET_NAME:
        raise UsageError(f"--socket {path} cannot be a private agent's: name it DIRECTORY/{SOCKET_NAME}")
    start = _Start(time.monotonic())
    while cause := _start_agent(path, simulate, start):
        if simulate and cause.startswith(f"devices {simulate} {NOT_SIMULATED}"):
            raise UsageError(f"--simulate: {cause}")
        # ALREADY_RUNS: another agent has the path. It is about to listen, if two commands started one each, or it is
        # just ending. So this is tried again.
        if not cause.startswith(ALREADY_RUNS) or time.monotonic() > start.deadline:
            raise CliError(f"the private agent does not start: {cause}", EXIT_NO_AGENT)
        start.wait(path, _OTHER_STARTS_S)
        if listens(path):
            return


class _Start:
    """The start of a private agent, by this command or by another one at the same time."""

    def __init__(self, now: float) -> None:
        """Begin at `now`, by time.monotonic."""
        self.deadline: Final = now + _START_TIMEOUT_S
        self._slow_at = now + _SLOW_START_S
        """When to tell the user that the start is slow."""

    def wait(self, path: str, seconds: float, ended: int | None = None) -> None:
        """Return when an agent listens at `path`, or after `seconds`, or at the deadline.

        Return also when the pipe `ended` becomes readable: then the agent, which holds the other end, has ended.
        """
        end = min(self.deadline, time.monotonic() + seconds)
        while not listens(path) and (now := time.monotonic()) < end:
            if now > self._slow_at:
                note("waiting for the private agent: the driver answers slowly")
                self._slow_at = self.deadline  # told once
            if select.select([] if ended is None else [ended], [], [], _LOOK_S)[0]:
                return


def _start_agent(path: str, simulate: str | None, start: _Start) -> str:
    """Start a private agent, and wait until an agent listens at `path`. Return "", or why none listens.

    `simulate` names the simulated devices; None: the real ones. The agent that listens may be one that another command
    has started.
    """
    command = [sys.executable, "-m", "sharepod.cli.connection.private", str(Path(path).absolute())]
    command += [simulate] if simulate else []
    ended, alive = os.pipe()
    with tempfile.TemporaryFile() as log, open(ended, "rb"):  # noqa: PTH123 - a descriptor
        try:
            # The agent detaches: this process becomes the program, which must not find a child that it never started.
            # The agent keeps `alive` open for its whole life.
            own_cgroup = _in_own_cgroup()
            for words in (own_cgroup, []) if own_cgroup else ([],):  # []: in our cgroup, if it cannot have its own
                done = subprocess.run(
                    [*words, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[alive],
                    check=False,
                )
                if not done.returncode:
                    break
                if words:
                    note("systemd gives the private agent no control group: it ends with this session or job")
            if not own_cgroup and (group := cgroup()) != "/":
                note(f"the private agent is in this control group, {group}: it ends with this session or job")
        finally:
            os.close(alive)
        start.wait(path, _START_TIMEOUT_S, ended)
        if not listens(path) and not select.select([ended], [], [], 0)[0]:
            return f"it does not listen after {_START_TIMEOUT_S:g} s"
        if listens(path):
            return ""
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines() or ["it ended without a word"]
        return lines[-1].removeprefix("sharepod agent: ")


def _in_own_cgroup() -> list[str]:
    """Return the words before a command that move it out of our cgroup; none if systemd does not run.

    When a service, a session or a job ends, its whole cgroup ends with it. An agent in it would end, too, although
    programs elsewhere may need it.
    """
    user = [] if os.getuid() == 0 else ["--user"]
    manager = Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "systemd/private")
    if not _SYSTEMD_RUNS.is_dir() or (user and not manager.exists()) or not shutil.which("systemd-run"):
        return []
    return ["systemd-run", *user, "--scope", "--quiet", "--collect", "--"]


def _listening_socket(directory: str) -> str:
    """Return a socket in the directory at which an agent accepts this user's connections; "" if there is none."""
    paths = (f"{directory}/{name}" for name in (SOCKET_NAME, USERS_SOCKET_NAME))
    return next(filter(listens, paths), "")


def listens(path: str) -> bool:
    """Tell whether an agent accepts connections at `path`."""
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
