"""Serves kubelet's device plugin protocol. Only this file reads and writes the messages; the work is `allocator.py`'s.

Every call turns ids into units, asks the allocator, and turns its answer into a message. A PluginError becomes a
status, with its text cut to what fits into a pod's status. Any other error is a bug: it is logged once and answered
with INTERNAL.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import grpc

from sharepod.deviceplugin.core.agent import NoRoom
from sharepod.deviceplugin.core.unit import UnitId, Units, pack
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.metrics import Counters
from sharepod.proto import deviceplugin_pb2 as pb
from sharepod.proto import deviceplugin_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from sharepod.deviceplugin.cdi.injection import ContainerEdits

log = logging.getLogger("sharepod.deviceplugin.server")

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]

MESSAGE_MAX: Final = 400
"""Characters of an error's text: kubelet writes it into the pod's status and into an Event."""
DEBOUNCE_S: Final = 0.1
"""Changes within this time go to kubelet in one message."""
SOCKET_MODE: Final = 0o600
"""Only root may connect, as kubelet does: any process that can connect could allocate."""

OPTIONS: Final = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


class Allocator(Protocol):
    """What the service asks the allocator: see `allocator.py`. Errors are PluginErrors."""

    async def allocate(self, units: frozenset[UnitId]) -> ContainerEdits:
        """Return the edits of the container that is being admitted with these units; they hold for its whole life."""

    async def pre_start(self, units: frozenset[UnitId]) -> None:
        """Make the share of the container with these units, which is about to start. Idempotent."""

    def taken(self) -> Mapping[str, frozenset[UnitId]]:
        """Return the units in use, by the UUID of their device; NOT_BOUND: their allocation has no device yet."""


class _Stream:
    """One ListAndWatch call of kubelet."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        """Set to have the call look at the units and at `ended` again."""
        self.ended = False
        """True: the call ends."""


def _answered(
    method: Callable[[PluginService, Request], Awaitable[Response]],
) -> Callable[[PluginService, Request, Context], Awaitable[Response]]:
    """Turn a method into an rpc: an error becomes a status. After `abort`, which raises, nothing more is run."""

    @functools.wraps(method)
    async def handler(self: PluginService, request: Request, context: Context) -> Response:
        try:
            return await method(self, request)
        except PluginError as error:
            code = grpc.StatusCode.UNAVAILABLE if error.retriable else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, _told(error))
        except Exception:
            log.exception("call failed", extra={"call": method.__name__})
            await context.abort(grpc.StatusCode.INTERNAL, "SharePod's device plugin failed on this call: see its log")

    return handler


class PluginService(rpc.DevicePluginServicer):
    """The DevicePlugin service of one resource. All of it runs in one event loop."""

    def __init__(
        self,
        allocator: Allocator,
        units: Units,
        *,
        debounce_s: float = DEBOUNCE_S,
        counters: Counters | None = None,
    ) -> None:
        """Take the units to advertise first. `counters` None: the counts are not shown."""
        self._allocator = allocator
        self._counters = counters or Counters()
        self._units = units
        self._debounce_s = debounce_s
        self._streams: set[_Stream] = set()

    @property
    def watchers(self) -> int:
        """How many ListAndWatch streams kubelet reads: one, unless it is away."""
        return len(self._streams)

    def show(self, units: Units) -> None:
        """Advertise the units of these devices, with their health, from now on."""
        if units.devices != self._units.devices:
            self._units = units
            self.changed()

    def changed(self) -> None:
        """Have every stream compute the units again: shares came or went, or devices changed."""
        for stream in self._streams:
            stream.woken.set()

    def end_streams(self) -> None:
        """End every ListAndWatch, because the plugin leaves: kubelet then takes the units for unhealthy."""
        for stream in self._streams:
            stream.ended = True
            stream.woken.set()

    @_answered
    async def GetDevicePluginOptions(self, _request: pb.Empty) -> pb.DevicePluginOptions:  # noqa: N802 - proto
        """Tell kubelet to make both optional calls: GetPreferredAllocation and PreStartContainer."""
        return OPTIONS

    async def ListAndWatch(  # noqa: N802
        self, _request: pb.Empty, _context: Context
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Send all units now, and all of them again whenever one changes."""
        stream, last_inputs, sent = _Stream(), None, None
        self._streams.add(stream)
        try:
            while not stream.ended:
                stream.woken.clear()
                # Every container start wakes this. Few starts take new units, and fewer change what is listed.
                taken = self._allocator.taken()
                if (self._units, taken) != last_inputs:
                    last_inputs, listed = (self._units, taken), self._units.all(taken)
                    if listed != sent:
                        yield pb.ListAndWatchResponse(devices=[_device(*item) for item in listed])
                        sent = listed
                await stream.woken.wait()
                if not stream.ended:
                    await asyncio.sleep(self._debounce_s)
        finally:
            self._streams.discard(stream)

    @_answered
    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest
    ) -> pb.PreferredAllocationResponse:
        """Advise the lowest units. An unhealthy device takes out the highest ones, so these are seldom in use."""
        chosen = [
            pack(_units(ask.available_device_ids), _units(ask.must_include_device_ids), ask.allocation_size)
            for ask in request.container_requests
        ]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(device_ids=units) for units in chosen]
        )

    @_answered
    async def Allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:  # noqa: N802
        """Make an allocation for each container of the request, which kubelet is admitting."""
        begun_ns = time.monotonic_ns()
        try:
            edits = [await self._allocator.allocate(_units(ask.devices_ids)) for ask in request.container_requests]
        finally:
            self._counters.allocate.add(time.monotonic_ns() - begun_ns)
        return pb.AllocateResponse(container_responses=[_container(item) for item in edits])

    @_answered
    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest
    ) -> pb.PreStartContainerResponse:
        """Make the share of the container that holds these units, before it starts."""
        begun_ns, result = time.monotonic_ns(), "failed"
        try:
            await self._allocator.pre_start(_units(request.devices_ids))
            result = "ready"
        except PluginError as error:
            result = "no_room" if isinstance(error, NoRoom) else "waiting" if error.retriable else "refused"
            raise
        finally:
            self._counters.started(result, time.monotonic_ns() - begun_ns)
        return pb.PreStartContainerResponse()


async def listen(service: PluginService, path: Path) -> grpc.aio.Server:
    """Serve on a new socket at this path, and return the running server. Raises OSError if there can be no socket."""
    # Kubelet names all free units when it asks for advice: incoming messages have no size limit.
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1),))
    rpc.add_DevicePluginServicer_to_server(service, server)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise OSError(f"no socket can be made at {path}: {error}") from None
    await server.start()
    try:
        # grpc makes the socket 0755. To connect takes write permission, so nobody but root could connect until now.
        path.chmod(SOCKET_MODE)
    except OSError:
        await server.stop(None)
        raise
    return server


def _units(ids: Iterable[str]) -> frozenset[UnitId]:
    """Return kubelet's ids as units."""
    return frozenset(map(UnitId, ids))


def _device(unit: UnitId, healthy: bool) -> pb.Device:
    """Return a unit as a message: for kubelet each unit is a device."""
    return pb.Device(id=unit, health="Healthy" if healthy else "Unhealthy")


def _container(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    """Return a container's edits as kubelet's message."""
    return pb.ContainerAllocateResponse(
        envs=edits.variables,
        mounts=[
            pb.Mount(container_path=mount.container, host_path=mount.host, read_only=mount.read_only)
            for mount in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=node.container, host_path=node.host, permissions=node.permissions)
            for node in edits.devices
        ],
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi],
    )


def _told(error: PluginError) -> str:
    """Return an error's text as one line of at most MESSAGE_MAX characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= MESSAGE_MAX else f"{text[: MESSAGE_MAX - 1]}…"
