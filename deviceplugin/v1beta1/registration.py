"""Registers the plugin with kubelet, and again whenever kubelet's socket or its own is replaced.

Kubelet empties its directory when it starts. So the plugin makes its socket anew when the socket is gone, and registers
again when kubelet.sock is a new socket. It looks at both names five times a second: a watch on the directory would need
a library, and could miss a change that came before it.

The plugin that registers last serves. Its socket replaces the other plugin's. The other plugin sees this and stands by.
So an upgrade may start the new plugin before the old one ends, and two plugins started by mistake do not alternate.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import secrets
import socket
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import grpc

from sharepod.deviceplugin.core.unit import RESOURCE
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.v1beta1.service import OPTIONS, PluginService, listen
from sharepod.proto import deviceplugin_pb2 as pb
from sharepod.proto import deviceplugin_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

log = logging.getLogger("sharepod.deviceplugin.kubelet")

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
POLL_S: Final = 0.2
REGISTER_TIMEOUT_S: Final = 15.0
"""Kubelet connects to us before it answers, and takes up to 10 s for that."""
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
UNWATCHED_S: Final = 5.0
"""A kubelet that has not read our units for this time has forgotten us."""
STAND_BY_LOOKS: Final = 15
"""The other plugin counts as dead after so many looks in a row at which it did not serve. It may be away for a moment:
after a restart of kubelet it makes its socket anew."""
GRACE_S: Final = 5.0
"""The time that calls under way have to finish when a server ends."""
_PATH_MAX: Final = 107
"""Bytes in the address of a unix socket, without the NUL at its end."""


class State(enum.Enum):
    """The plugin's standing with kubelet."""

    WAITING = "waiting"
    """Kubelet is away, or has refused us."""
    REGISTERED = "registered"
    STANDING_BY = "standing by"
    """Another plugin serves the resource. The shares on the node are that plugin's business."""


class _Socket(NamedTuple):
    """Which socket a name stands for. The inode's number alone can't tell: the next socket may get the same one."""

    device: int
    inode: int
    modified_ns: int


class Registration:
    """Our socket in kubelet's directory, and kubelet's knowledge of it."""

    def __init__(self, service: PluginService, directory: Path, *, resource: str = RESOURCE) -> None:
        """Take the directory of device plugins. Raises PluginError when the path of a socket in it is too long."""
        self.path: Final = directory / f"{resource.replace('/', '_')}.sock"
        if len(str(self._new_path())) > _PATH_MAX:
            raise PluginError(
                f"{self.path} is too long for a socket, {_PATH_MAX} bytes with what is added to it are the limit: "
                "choose a shorter directory",
                retriable=False,
            )
        self._kubelet_path = directory / KUBELET_SOCKET
        self._resource = resource
        self._service = service
        self._state = State.WAITING
        self._server: grpc.aio.Server | None = None
        self._own: _Socket | None = None
        """Our socket; None: it is not made yet, or it is gone."""
        self._known_to: _Socket | None = None
        """The socket of the kubelet that we are registered with; None: we are not registered."""
        self._tried: _Socket | None = None
        """The socket of the kubelet that `_failures` and `_retry_at` are about."""
        self._failures = 0
        """How often the registration failed lately: it sets the delay before the next try."""
        self._retry_at = 0.0
        """No registration is tried before this time of the loop's clock."""
        self._seen_at = 0.0
        """When kubelet was last seen to read our units, by the same clock."""
        self._dead_looks = 0
        """While standing by: the looks in a row at which the other plugin did not serve."""
        self._logged = ""
        """What was last logged about kubelet; empty: nothing since the last registration."""
        self._registered_at = 0.0
        """When kubelet last accepted the registration, by the loop's clock."""
        self._looking: asyncio.Task[None]
        self._ending: set[asyncio.Task[None]] = set()
        """The tasks that stop servers."""
        self.registered: Callable[[], None] = lambda: None
        """Called when kubelet has accepted the registration."""
        self.taking_over: Callable[[], None] = lambda: None
        """Called before the plugin serves for the first time, and before it replaces another plugin that has served."""
        self._has_served = False
        """Whether this process has ever had its socket at `path`."""

    @property
    def state(self) -> State:
        """The plugin's standing with kubelet."""
        return self._state

    async def __aenter__(self) -> Self:
        """Begin to serve and to register, now or when kubelet is there."""
        self._looking = asyncio.create_task(self._look_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the streams and the server, and remove our socket."""
        self._looking.cancel()
        await asyncio.wait([self._looking])
        if self._own and _socket_at(self.path) == self._own:  # else it is another plugin's
            self.path.unlink(missing_ok=True)
        self._end_server()
        await asyncio.gather(*self._ending)

    async def _look_for_ever(self) -> None:
        """Look every POLL_S. An unexpected error is logged, and the next look tries again."""
        while True:
            try:
                await self._look()
            except Exception:
                log.exception("registration failed")
            await asyncio.sleep(POLL_S)

    async def _look(self) -> None:
        """Look at kubelet's socket and ours once: make ours, register, or stand by, if a change asks for it."""
        now = asyncio.get_running_loop().time()
        if self._state is State.STANDING_BY:
            if not self._other_is_dead():
                return
            self.taking_over()
            self._state = State.WAITING
        self._check_own()
        if self._state is State.STANDING_BY:  # since this look
            return
        kubelet = _socket_at(self._kubelet_path)
        if kubelet != self._tried:
            self._tried, self._failures, self._retry_at = kubelet, 0, 0.0
        if kubelet is None:
            self._set_waiting("kubelet is away", f"{self._kubelet_path} is not there")
        elif self._own and kubelet == self._known_to and self._is_watched(now):
            return
        elif now >= self._retry_at:
            await self._announce(kubelet)

    def _other_is_dead(self) -> bool:
        """Count a look at the other plugin's socket. Tell whether it counts as dead: see STAND_BY_LOOKS."""
        self._dead_looks = 0 if _is_served(self.path) else self._dead_looks + 1
        return self._dead_looks >= STAND_BY_LOOKS

    def _check_own(self) -> None:
        """Forget our socket if it was removed: it is made anew. Stand by if another plugin's socket has replaced it."""
        if not self._own:
            return
        found = _socket_at(self.path)
        if found == self._own:
            return
        self._own = self._known_to = None
        if not found:
            log.info("socket removed", extra={"socket": str(self.path)})
            return
        log.warning(
            "another device plugin has taken over: this one stands by",
            extra={"socket": str(self.path), "remedy": "stop one of the two, unless this is an upgrade"},
        )
        self._state, self._logged, self._dead_looks = State.STANDING_BY, "", 0
        self._end_server()

    def _is_watched(self, now: float) -> bool:
        """Tell whether kubelet reads our units, or did so in the last UNWATCHED_S. If not, plan a new registration."""
        if self._service.watchers:
            self._seen_at = now
            # A plugin of another vendor may have our resource name: each registration ends the other's. The failures
            # count on for RETRY_MAX_S, so that the two do not take turns without a delay.
            if now - self._registered_at > RETRY_MAX_S:
                self._failures = 0
        if now - self._seen_at < UNWATCHED_S:
            return True
        self._known_to = None
        self._retry_later("kubelet does not read the units: registering again", f"none read for {UNWATCHED_S:g} s")
        return False

    async def _announce(self, kubelet: _Socket) -> None:
        """Serve if our socket is not there. Then register with the kubelet at this socket.

        In this order: kubelet connects to us before it answers. After a failure it is tried again later.
        """
        old_server = self._server
        try:
            if not self._own:
                await self._serve()
            await self._register()
        except OSError as error:
            self._retry_later("no socket for kubelet", f"{error.filename or self.path}: {error.strerror or error}")
            return
        except grpc.aio.AioRpcError as error:
            away = error.code() is grpc.StatusCode.UNAVAILABLE
            event = "kubelet is away" if away else "kubelet refused the registration"
            self._retry_later(event, f"{error.code().name}: {error.details()}")
            return
        finally:
            if old_server is not self._server:  # its socket was removed, and the new server has another
                self._end(old_server)
        self._known_to, self._state, self._logged = kubelet, State.REGISTERED, ""
        self._registered_at = self._seen_at = asyncio.get_running_loop().time()
        self.registered()
        log.info("registered with kubelet", extra={"resource": self._resource, "socket": str(self.path)})

    async def _serve(self) -> None:
        """Listen on a new socket, and rename it over any other at `path`: a crashed plugin leaves one there.

        Raises OSError.
        """
        if _is_served(self.path):
            log.warning(
                "another device plugin serves: taking over from it",
                extra={"socket": str(self.path), "remedy": "stop one of the two, unless this is an upgrade"},
            )
        # When a server ends, grpc removes the name that it was given. `path` may be another plugin's socket by then.
        new_path = self._new_path()
        server = await listen(self._service, new_path)
        try:
            own = _socket_at(new_path)
            if not self._has_served:  # before a later takeover `_look` calls it
                self.taking_over()
            new_path.rename(self.path)
            self._has_served = True
        except BaseException:
            await server.stop(None)
            raise
        self._server, self._own = server, own

    async def _register(self) -> None:
        """Tell kubelet the name of our socket and the resource that is served there. Raises AioRpcError."""
        request = pb.RegisterRequest(
            version=VERSION, endpoint=self.path.name, resource_name=self._resource, options=OPTIONS
        )
        # A subchannel pool of its own: otherwise another channel's failure to connect would delay this one.
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet_path}", options=options) as channel:
            await rpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)

    def _set_waiting(self, event: str, cause: str) -> None:
        """Become unregistered, and log `event` with its `cause`, unless `event` is what was logged last."""
        self._state, self._known_to = State.WAITING, None
        if self._logged != event:
            self._logged = event
            log.warning(event, extra={"cause": cause, "resource": self._resource})

    def _retry_later(self, event: str, cause: str) -> None:
        """Become unregistered, and set the time of the next try. The delay doubles with each failure, to RETRY_MAX_S.

        The parameters are those of `_set_waiting`.
        """
        self._set_waiting(event, cause)
        delay_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2**self._failures)
        self._failures = min(self._failures + 1, 16)  # a bound for the power: the delay has long reached its maximum
        self._retry_at = asyncio.get_running_loop().time() + delay_s

    def _end_server(self) -> None:
        """End kubelet's streams and the server, and forget our socket. The file at `path` stays."""
        self._service.end_streams()
        self._end(self._server)
        self._server = self._own = None

    def _end(self, server: grpc.aio.Server | None) -> None:
        """Stop a server in the background; its calls have GRACE_S to finish. None: there is no server."""
        if server:
            task = asyncio.ensure_future(server.stop(GRACE_S))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _new_path(self) -> Path:
        """Return a new path beside `path`, which no other plugin uses."""
        return self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")


def _socket_at(path: Path) -> _Socket | None:
    """Return which socket is at a path; None: no file is there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return _Socket(found.st_dev, found.st_ino, found.st_mtime_ns)


def _is_served(path: Path) -> bool:
    """Return whether a process listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except BlockingIOError:  # it listens, but its queue of connections is full
            return True
        except OSError:
            return False
        return True
