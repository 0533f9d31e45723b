"""Registration with kubelet: sockets that come and go.

Kubelet empties its directory when it starts, so a socket that is gone is made anew, and a kubelet.sock that is another
one is told of us again. The names are looked at five times a second: that sees all there is to see, needs no library,
and cannot miss what happened before it began to look.

The last plugin that registers serves: its socket takes the place of the other's, which sees that and stands by. So an
upgrade may start the new plugin before the old one ends, and two by mistake do not take turns.
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
"""A kubelet that has not read our units for so long does not have us any more."""
STAND_BY_LOOKS: Final = 15
"""So often the plugin that took our place may be found dead: after a restart of kubelet it makes its socket anew."""
GRACE_S: Final = 5.0
"""For calls that are under way when a server ends."""
_PATH_MAX: Final = 107


class State(enum.Enum):
    """How we stand with kubelet."""

    WAITING = "waiting"
    """Kubelet is away, or has refused us."""
    REGISTERED = "registered"
    STANDING_BY = "standing by"
    """Another plugin serves the resource. What is on the node is its business."""


class _Socket(NamedTuple):
    """What tells a socket from the next one of its name; a file system may give an inode's number out again at once."""

    device: int
    inode: int
    modified_ns: int


class Registration:
    """Our socket in kubelet's directory, and kubelet's knowledge of it."""

    def __init__(self, service: PluginService, directory: Path, *, resource: str = RESOURCE) -> None:
        """Take the directory of device plugins. Raises PluginError when a socket in it has too long a path."""
        self.path: Final = directory / f"{resource.replace('/', '_')}.sock"
        if len(str(self._new_path())) > _PATH_MAX:
            raise PluginError(
                f"{self.path} is too long for a socket, {_PATH_MAX} bytes with what is added to it are the limit: "
                "choose a shorter directory",
                retriable=False,
            )
        self._kubelet = directory / KUBELET_SOCKET
        self._resource = resource
        self._service = service
        self._state = State.WAITING
        self._server: grpc.aio.Server | None = None
        self._own: _Socket | None = None
        """Our socket; None: none is made, or it is gone."""
        self._known_to: _Socket | None = None
        """The kubelet that has us."""
        self._tried: _Socket | None = None
        """The kubelet that `_failures` and `_retry_at` are about."""
        self._failures = 0
        self._retry_at = 0.0
        self._seen_at = 0.0
        """When kubelet was last seen to read our units."""
        self._dead_looks = 0
        self._said = ""
        self._known_at = 0.0
        self._watching: asyncio.Task[None]
        self._ending: set[asyncio.Task[None]] = set()
        self.registered: Callable[[], None] = lambda: None
        """Called when kubelet has taken us."""
        self.taking_over: Callable[[], None] = lambda: None
        """Called before we serve for the first time, and before we step in for another plugin that has served."""
        self._has_served = False

    @property
    def state(self) -> State:
        """How we stand with kubelet."""
        return self._state

    async def __aenter__(self) -> Self:
        """Begin to serve and to register, now or when kubelet is there."""
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the streams and the server, and remove our socket."""
        self._watching.cancel()
        await asyncio.wait([self._watching])
        if self._own and _look_at(self.path) == self._own:
            self.path.unlink(missing_ok=True)
        self._end_server()
        await asyncio.gather(*self._ending)

    async def _watch(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:
                log.exception("registration failed")
            await asyncio.sleep(POLL_S)

    async def _look(self) -> None:
        """Look at the sockets once, and do what follows."""
        now = asyncio.get_running_loop().time()
        if self._state is State.STANDING_BY and self._is_served():
            return
        self._look_at_own()
        if self._state is State.STANDING_BY:
            return
        kubelet = _look_at(self._kubelet)
        if kubelet != self._tried:
            self._tried, self._failures, self._retry_at = kubelet, 0, 0.0
        if kubelet is None:
            self._wait("kubelet is away", f"{self._kubelet} is not there")
        elif self._own and kubelet == self._known_to and self._is_watched(now):
            return
        elif now >= self._retry_at:
            await self._announce(kubelet)

    def _is_served(self) -> bool:
        """Return whether the plugin that has our place is alive, while we stand by."""
        self._dead_looks = 0 if _is_served(self.path) else self._dead_looks + 1
        if self._dead_looks < STAND_BY_LOOKS:
            return True
        self.taking_over()
        self._state = State.WAITING
        return False

    def _look_at_own(self) -> None:
        """See whether our socket is removed or another plugin's."""
        if not self._own:
            return
        found = _look_at(self.path)
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
        self._state, self._said, self._dead_looks = State.STANDING_BY, "", 0
        self._end_server()

    def _is_watched(self, now: float) -> bool:
        """Return whether kubelet reads our units, or did so a moment ago."""
        if self._service.watchers:
            self._seen_at = now
            # Not sooner: a plugin of another make with our resource's name would register again at once, too.
            if now - self._known_at > RETRY_MAX_S:
                self._failures = 0
        if now - self._seen_at < UNWATCHED_S:
            return True
        self._known_to = None
        self._retry("kubelet does not read the units: registering again", f"none read for {UNWATCHED_S:g} s")
        return False

    async def _announce(self, kubelet: _Socket) -> None:
        """Serve, then register: kubelet connects to us before it answers."""
        before = self._server
        try:
            if not self._own:
                await self._serve()
            await self._register()
        except OSError as error:
            self._retry("no socket for kubelet", f"{error.filename or self.path}: {error.strerror or error}")
            return
        except grpc.aio.AioRpcError as error:
            away = error.code() is grpc.StatusCode.UNAVAILABLE
            event = "kubelet is away" if away else "kubelet refused the registration"
            self._retry(event, f"{error.code().name}: {error.details()}")
            return
        finally:
            if before is not self._server:
                self._end(before)
        self._known_to, self._state, self._said = kubelet, State.REGISTERED, ""
        self._known_at = self._seen_at = asyncio.get_running_loop().time()
        self.registered()
        log.info("registered with kubelet", extra={"resource": self._resource, "socket": str(self.path)})

    async def _serve(self) -> None:
        """Make a socket and put it in its place, whatever is there: a crashed plugin leaves its own behind."""
        if _is_served(self.path):
            log.warning(
                "another device plugin serves: taking over from it",
                extra={"socket": str(self.path), "remedy": "stop one of the two, unless this is an upgrade"},
            )
        # grpc removes the path that it was given when it ends: by then the name is the next plugin's.
        made = self._new_path()
        server = await listen(self._service, made)
        try:
            own = _look_at(made)
            if not self._has_served:
                self.taking_over()
            made.rename(self.path)
            self._has_served = True
        except BaseException:
            await server.stop(None)
            raise
        self._server, self._own = server, own

    async def _register(self) -> None:
        request = pb.RegisterRequest(
            version=VERSION, endpoint=self.path.name, resource_name=self._resource, options=OPTIONS
        )
        # A pool of its own: another channel's failure to connect would make this one wait.
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=options) as channel:
            await rpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)

    def _wait(self, event: str, cause: str) -> None:
        """Be unregistered, and say once why."""
        self._state, self._known_to = State.WAITING, None
        if self._said != event:
            self._said = event
            log.warning(event, extra={"cause": cause, "resource": self._resource})

    def _retry(self, event: str, cause: str) -> None:
        self._wait(event, cause)
        delay_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._retry_at = asyncio.get_running_loop().time() + delay_s

    def _end_server(self) -> None:
        self._service.end_streams()
        self._end(self._server)
        self._server = self._own = None

    def _end(self, server: grpc.aio.Server | None) -> None:
        """Let a server's calls finish meanwhile."""
        if server:
            task = asyncio.ensure_future(server.stop(GRACE_S))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _new_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")


def _look_at(path: Path) -> _Socket | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _Socket(found.st_dev, found.st_ino, found.st_mtime_ns)


def _is_served(path: Path) -> bool:
    """Return whether somebody listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except BlockingIOError:  # so many connect that it has not come to all of them
            return True
        except OSError:
            return False
        return True
