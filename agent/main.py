"""Starts and stops the agent: its directories, locks, devices, arbiter, metrics and socket. One agent per host.

Nothing is decided here. A start that fails leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import grp
import importlib.metadata
import logging
import os
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

# Before grpc loads its C core, which would log to stderr in its own way.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from sharepod import hook, simgpu
from sharepod.agent.api.feed import Feed, Target
from sharepod.agent.api.hello import Hello
from sharepod.agent.api.service import NodeService
from sharepod.agent.api.users import UsersService
from sharepod.agent.devices import bus
from sharepod.agent.devices.inventory import OPEN_TIMEOUT_S, Inventory
from sharepod.agent.devices.lock import HostLock
from sharepod.agent.devices.nvml import LIBRARY_NAME, load_library
from sharepod.agent.devices.on_thread import on_thread
from sharepod.agent.devices.releases import Releases
from sharepod.agent.devices.session import is_this_restarted
from sharepod.agent.errors import AgentUnavailable, ShareError
from sharepod.agent.metrics import collector
from sharepod.agent.metrics.feed import Counters
from sharepod.agent.native import NativeArbiter
from sharepod.agent.node import Identity, Node
from sharepod.agent.settings import (
    HELLO_SOCKET_NAME,
    OPTIONS,
    SOCKET_NAME,
    USERS_SOCKET_NAME,
    Settings,
    check_on_tmpfs,
)
from sharepod.agent.shares import hook_file
from sharepod.agent.shares.registry import Registry
from sharepod.process import metrics_server
from sharepod.process.credentials import Credentials
from sharepod.process.errors import EXIT_FAILURE, SettingsError
from sharepod.process.run import awaited, run, take_open_files
from sharepod.process.setting import shown
from sharepod.proto import v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.agent.devices.device import DeviceInfo, DeviceLook
    from sharepod.agent.devices.inventory import Claim

log = logging.getLogger("sharepod.agent")

TICK_S: Final = 1.0
PUBLISH_TICKS: Final = 2
"""Ticks between two checkpoints."""
SLOW_OPEN_S: Final = 5.0
"""When NVML takes longer to open, that is logged."""
STOP_GRACE_S: Final = 0.5
PLANNED_STOP_GRACE_S: Final = 0.02
"""How long calls under way may last before the gates open: a stream that watches usage never ends by itself."""
OPEN_FILES_MIN: Final = 256
"""With fewer descriptors a few shares exhaust the limit, and then the agent cannot accept a connection."""


def simulated_environment(settings: Settings) -> dict[str, str]:
    """Return what a program needs to see the simulated devices: libraries, devices, state. Empty on real devices."""
    if not settings.simulate:
        return {}
    return {
        "LD_LIBRARY_PATH": str(Path(simgpu.__file__).parent / "lib"),
        "SIMGPU_DEVICES": settings.simulate,
        "SIMGPU_STATE": os.environ.get("SIMGPU_STATE", f"{settings.runtime_directory}/simgpu"),
    }


def _prepare_runtime_directory(settings: Settings) -> None:
    """Create the runtime directory, or check that it is ours. Raises SettingsError."""
    check_on_tmpfs(settings)
    runtime = Path(settings.runtime_directory)
    try:
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"runtime directory {runtime}: {error.strerror}: choose another with --runtime-directory"
        ) from None
    info = runtime.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise SettingsError(
            f"runtime directory {runtime} belongs to user {info.st_uid}: choose another with --runtime-directory"
        )
    if info.st_mode & (stat.S_ISVTX | stat.S_IWOTH):  # /dev/shm itself: the agent would close it to everybody else
        raise SettingsError(
            f"runtime directory {runtime} is everybody's: give the agent one of its own, like {runtime}/sharepod"
        )


def _prepare_others(settings: Settings) -> None:
    """Create the other directories, give the runtime directory its mode, and remove sockets of an earlier agent.

    The agent has the host's lock by now. Raises SettingsError.
    """
    # Other users may pass through the directory to the socket and to their share, but not list or write it. For root's
    # agent that always holds: a program that root starts and that then drops its privileges must find the hook, or the
    # loader prints an error.
    Path(settings.runtime_directory).chmod(0o711 if settings.public or os.getuid() == 0 else 0o700)
    try:
        Path(settings.shares_directory).mkdir(mode=0o711, exist_ok=True)
        Path(settings.state_directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(settings.hook_directory).mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in (SOCKET_NAME, USERS_SOCKET_NAME, HELLO_SOCKET_NAME):
            Path(settings.runtime_directory, name).unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{error.filename}: {error.strerror}: "
            "choose another --runtime-directory, --state-directory or --hook-directory"
        ) from None


class Agent:
    """A running agent: what it opened, in the order in which it is closed again."""

    def __init__(self, settings: Settings, *, may_end: bool, troubles: Sequence[str]) -> None:
        """Take the settings. `may_end`: the agent may end by itself, if something starts it again.

        `troubles`: what an operator should know of the process, each as "what: cause: remedy".
        """
        self._settings = settings
        self._troubles = [*troubles]
        self.may_end: Final = may_end
        self._stack = contextlib.ExitStack()
        self._environment = simulated_environment(settings)
        self.feed_tally: Final = Counters()
        self.claim: Claim
        """Claims a device for this agent, so that no other one serves it. Set by `open`."""

    def prepare(self) -> HostLock:
        """Lock the directory against other agents, and do what comes before NVML is opened. Return the lock.

        Raises ShareError, CannotStart and OSError: `close` then undoes what was done.
        """
        settings = self._settings
        lock = self._lock_directory()
        self._stack.callback(self._remove_unused)
        _prepare_others(settings)
        if settings.simulate:
            os.environ.update({key: self._environment[key] for key in ("SIMGPU_DEVICES", "SIMGPU_STATE")})
            load_library(f"{self._environment['LD_LIBRARY_PATH']}/{LIBRARY_NAME}")
        return lock

    def open(self, lock: HostLock, inventory: Inventory) -> Node:
        """Lock the devices against other agents, and build the node with the shares that an earlier agent left.

        `lock` is what `prepare` returned; `close` closes the inventory, too. Raises as `prepare`.
        """
        settings = self._settings
        self._stack.callback(inventory.close)

        def claim(info: DeviceInfo) -> None:
            """Claim a device, so that no other agent serves it. Raises AgentUnavailable.

            Simulated devices have the file of their state instead of the kernel's file: two agents meet on one only if
            they have the same state.
            """
            simulated = self._environment.get("SIMGPU_STATE", "")
            file = Path(simulated) if simulated else bus.file_of(info.address)
            lock.claim_device(f"{simulated}/{info.uuid}", info.index, file)

        self.claim = claim
        for info in inventory.devices:
            claim(info)
        arbiter = NativeArbiter()
        close_arbiter = self._stack.enter_context(contextlib.ExitStack())
        close_arbiter.callback(arbiter.close)
        registry = Registry(arbiter, Path(settings.shares_directory), inventory.devices, overcommit=settings.overcommit)
        hook_path = self._serve_hook()
        identity = self._identity(inventory, arbiter.region_abi_version, hook_path)
        parts = identity, registry, arbiter, Path(settings.state_directory)
        node = Node(*parts, settings.monitoring, settings.keep_series, self._troubles)
        node.adopt(inventory.unlisted)
        if not registry.devices:
            raise AgentUnavailable("no GPU can be used: all are in MIG mode and have no instance: create some")
        for info in node.missing:
            claim(info)
        if not node.statuses():
            hook_file.remove(Path(settings.hook_directory), keep=hook_path)
        if settings.metrics_listen:
            self._serve_metrics(collector.NodeMetrics(node, self.feed_tally))
        close_arbiter.pop_all()  # the node closes the arbiter from now on
        self._stack.callback(node.close)  # it opens the gates: before the metrics go, which may take half a second
        return node

    def _serve_metrics(self, collector: collector.NodeMetrics) -> None:
        """Serve the collector's metrics on a thread until the agent closes. Raises CannotStart."""
        settings = self._settings
        files = settings.metrics_tls_certificate, settings.metrics_tls_key, settings.metrics_token_file
        self._stack.callback(metrics_server.serve(collector, settings.metrics_listen, Credentials(*files)))

    def _lock_directory(self) -> HostLock:
        """Make the runtime directory and lock it. Raises SettingsError, or AgentUnavailable if another agent has it."""
        while True:
            # An agent that ends removes the directory: it may do so between our look at it and our lock in it.
            with contextlib.suppress(FileNotFoundError):
                _prepare_runtime_directory(self._settings)
                return self._stack.enter_context(HostLock(Path(self._settings.runtime_directory), self._troubles))

    def _serve_hook(self) -> Path:
        """Put the hook where programs find it, and return its path. Raises AgentUnavailable.

        If programs get the package's own file, which an upgrade replaces under them, that is logged.
        """
        directory, version = Path(self._settings.hook_directory), importlib.metadata.version("sharepod")
        path, cause = hook_file.serve(hook.LIBRARY, directory, version)
        if cause:
            remedy = "stop the programs before an upgrade replaces it, or choose another --hook-directory"
            log.warning("hook served from the package", extra={"hook": str(path), "cause": cause, "remedy": remedy})
        return path

    def _identity(self, inventory: Inventory, region_abi_version: int, hook_path: Path) -> Identity:
        """Return what is told of this agent and does not change while it runs."""
        settings = self._settings
        features = ["adoption", "turns"]
        features += ["simulated"] if settings.simulate else []
        features += ["overcommit"] if settings.overcommit else []
        features += ["metrics"] if settings.metrics_listen else []
        features += ["memory-by-hook"]
        return Identity(
            node_name=settings.node_name or socket.gethostname(),
            version=importlib.metadata.version("sharepod"),
            region_abi_version=region_abi_version,
            agent_pid=os.getpid(),
            driver_version=inventory.driver_version,
            runtime_directory=settings.runtime_directory,
            policy=settings.policy,
            metrics_address=settings.metrics_listen,
            hook_path=str(hook_path),
            features=tuple(features),
            settings=shown(settings),
            environment=self._environment,
        )

    def _remove_unused(self) -> None:
        """Remove our directories, the hook and the simulated devices when no share needs them."""
        settings = self._settings
        runtime = Path(settings.runtime_directory)
        with contextlib.suppress(OSError):
            # If a share's directory is left in this one, the rmdir fails, and nothing is removed.
            Path(settings.shares_directory).rmdir()
            hook_file.remove(Path(settings.hook_directory))
            if settings.simulate and self._environment["SIMGPU_STATE"] == f"{runtime}/simgpu":
                for name in ("simgpu", "simgpu.kernels", "simgpu.pids"):
                    (runtime / name).unlink(missing_ok=True)
            if settings.state_directory != settings.runtime_directory:
                Path(settings.state_directory).rmdir()

    def close(self) -> None:
        """Undo `prepare` and `open`, as far as they came, last first."""
        self._stack.close()


def _open_socket_to(path: Path, mode: int, group: str) -> None:
    """Give a socket its mode and group. Raises SettingsError if the group cannot be given.

    Until here only this user can connect: grpc creates the socket with mode 0755.
    """
    if group:
        try:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
        except OSError as error:
            raise SettingsError(
                f"socket group {group}: {error.strerror}: run as root or as a member of the group"
            ) from None
    path.chmod(mode)


async def _opened(simulate: str, stopping: asyncio.Event) -> Inventory | None:
    """Return the inventory, which opens NVML on a thread and may take a minute; None: `stopping` was set before.

    `simulate` names simulated devices. If it takes longer than SLOW_OPEN_S, that is logged. Raises AgentUnavailable.
    """
    opening = asyncio.create_task(on_thread("inventory", lambda: Inventory(simulate)))
    stop = asyncio.create_task(stopping.wait())
    wait = functools.partial(asyncio.wait, (opening, stop), return_when=asyncio.FIRST_COMPLETED)
    done, _ = await wait(timeout=SLOW_OPEN_S)
    if not done:
        remedy = "run nvidia-persistenced, so that the driver is ready"
        log.warning("NVML opens slowly", extra={"gives_up_after_s": OPEN_TIMEOUT_S, "remedy": remedy})
        done, _ = await wait()
    stop.cancel()
    if opening not in done:
        opening.cancel()
        return None
    return await opening


async def _serve(settings: Settings, stopping: asyncio.Event, *, private: bool, troubles: Sequence[str]) -> None:
    """Run the agent until `stopping` is set. The rest is as in `run_agent`. Raises ShareError and CannotStart."""
    take_open_files(OPEN_FILES_MIN)
    os.umask(0o022)  # not that of the process that started it: every mode is given where a file is made
    if settings.wait_for and not await awaited(settings.wait_for, stopping, lambda: _say_that_it_waits(settings)):
        return
    agent = Agent(settings, may_end=not private, troubles=troubles)
    try:
        try:
            lock = agent.prepare()
            if (inventory := await _opened(settings.simulate, stopping)) is None:
                return
            node = agent.open(lock, inventory)
        except OSError as error:
            raise AgentUnavailable(
                f"{error.filename or settings.runtime_directory}: {error.strerror}: "
                "put it right, or choose another --runtime-directory"
            ) from None
        await _answer(node, inventory, settings, stopping, agent)
    finally:
        agent.close()


def _say_that_it_waits(settings: Settings) -> None:
    """Log that there is no driver yet."""
    remedy = "load it; a node of a cluster that has no GPU needs no agent: label it sharepod.io/agent=disabled"
    log.warning("no NVIDIA driver on this node: waiting", extra={"file": settings.wait_for, "remedy": remedy})


def _feed(node: Node, settings: Settings, counters: Counters) -> Feed | None:
    """Start the feed to the schedulers and return it; None: the settings name no scheduler."""
    if not settings.scheduler_address:
        return None
    target = Target.of(settings.scheduler_address, settings.scheduler_ca, settings.scheduler_token_file)
    return Feed(target, node.identity.node_name, node.identity.version, counters)


async def _answer(node: Node, inventory: Inventory, settings: Settings, stopping: asyncio.Event, agent: Agent) -> None:
    """Serve gRPC until `stopping` is set. Raises AgentUnavailable when NVML has failed and a new process may help."""
    loop = asyncio.get_running_loop()
    parts = node, Releases(node.devices, inventory.session), (hello := Hello())
    sockets = [(NodeService(*parts), settings.socket_path, settings.socket_mode, settings.socket_group)]
    if settings.users_socket_mode:
        place = settings.users_socket_path, settings.users_socket_mode, settings.users_socket_group
        sockets.append((UsersService(*parts), *place))
    hello_path = Path(settings.runtime_directory) / HELLO_SOCKET_NAME
    servers = [grpc.aio.server() for _ in sockets]
    feed = _feed(node, settings, agent.feed_tally)
    try:
        await hello.serve(hello_path)  # before the others: a caller that finds these looks for it
        if settings.users_socket_mode:
            hello_path.chmod(0o666)  # a ticket gives no right: it says only which process the caller is
        else:
            _open_socket_to(hello_path, settings.socket_mode, settings.socket_group)
        for server, (service, path, mode, group) in zip(servers, sockets, strict=True):
            rpc.add_NodeServiceServicer_to_server(service, server)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            _open_socket_to(Path(path), mode, group)

        def deliver(looks: Sequence[DeviceLook]) -> None:
            """Hand looks to the node, on its event loop. Called on the threads that look."""
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(node.looked, looks)

        broken: list[str] = []

        def end_if_restarted(cause: str) -> None:
            """End the agent if something starts it again: a new process may reach NVML. Called on any thread."""
            if agent.may_end and is_this_restarted() and not broken:
                broken.append(cause)
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(stopping.set)

        node.serve_threads(loop)
        inventory.start(deliver, end_if_restarted, node.devices.missing, agent.claim)
        log.info("agent started", extra={"socket": settings.socket_path, "devices": len(inventory.devices)})
        gc.freeze()  # what is there now stays: no collection has to look through it again
        await _tick_until(stopping, node, feed)
        shares = [status.share for status in node.statuses()]
        log.info("agent stopping", extra={"shares": len(shares), "paused": sum(share.paused for share in shares)})
        if broken:
            raise AgentUnavailable(f"NVML does not come back: {broken[0]}: started anew, the agent looks again")
    finally:
        if feed is not None:
            await feed.close()
        grace_s = PLANNED_STOP_GRACE_S if stopping.is_set() else STOP_GRACE_S
        await asyncio.gather(*[server.stop(grace_s) for server in servers])
        await hello.close()
        for _, path, _, _ in sockets:
            Path(path).unlink(missing_ok=True)
        hello_path.unlink(missing_ok=True)


async def _tick_until(stopping: asyncio.Event, node: Node, feed: Feed | None) -> None:
    """Do every second what is due, until `stopping` is set: samples, checkpoints, the feed if there is one.

    Each second has one reading of all shares: a published status every PUBLISH_TICKS, else a sample for the rates.
    """
    ticks = 0
    while not stopping.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), TICK_S)
        ticks += 1
        node.notice_hanging()
        if ticks % PUBLISH_TICKS == 0:
            node.look_after_shares()
            status = node.published
        elif feed is None:
            node.sample()
            continue
        else:
            status = node.status()  # which is a sample, too
        if feed is not None:
            feed.tell(status)


def run_agent(settings: Settings, *, private: bool = False, troubles: Sequence[str] = ()) -> int:
    """Run the agent until SIGTERM, SIGINT or SIGHUP. Returns the exit code: 0, or 1 when it could not start.

    A planned stop opens the gates and keeps the shares of running programs for the next agent. `private`: nothing
    starts this agent again, so it never ends by itself. `troubles`: what an operator should know of this process, each
    as "what: cause: remedy".
    """
    serve = functools.partial(_serve, private=private, troubles=troubles)
    return run(OPTIONS.program, settings, serve, expected={ShareError: EXIT_FAILURE}, hang_up=True)


if __name__ == "__main__":
    sys.exit(run_agent(OPTIONS.start()))
